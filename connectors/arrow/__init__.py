"""How do records become table batches? Decoding into Arrow and reducing to one row a key, without Spark or a target."""
