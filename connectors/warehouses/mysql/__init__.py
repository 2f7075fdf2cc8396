"""How are MySQL and MariaDB tables written? Rows and ledger in one transaction, staged by LOAD DATA; columns change before it."""
