"""How are rows read beside the stream? Chunks of a key's order in short transactions, without a lock, and what each of them saw."""
