"""Does a record meet a condition? Expressions in CEL over the fields of a record, and those in Groovy that mean the same."""
