"""The binary log of MySQL and MariaDB: how is it read, and what do its bytes mean?"""
