"""The benchmark of the MySQL and MariaDB source."""
