"""What do the native cores of all databases' sources share? How rows become records, once a database's walk has found the values."""
