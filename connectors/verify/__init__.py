"""Source and warehouse compared, both at one position, while the source moves on."""
