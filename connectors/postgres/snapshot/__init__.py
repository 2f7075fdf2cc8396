"""How are a table's rows read beside the stream? Chunks between watermarks, resumable and in parallel."""
