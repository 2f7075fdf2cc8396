"""What is asked of the tables of a lake?"""
