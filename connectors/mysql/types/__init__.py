"""What does a MySQL or MariaDB value mean? From a row image's bytes to Python values, by column type."""
