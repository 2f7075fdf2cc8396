"""In which formats are keys and values written and read? One module or folder for each, with its converter's names and keys."""
