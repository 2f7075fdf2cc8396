"""How do records get into files of an object store? Whole files, each record in one of them, whatever dies."""
