"""How are Parquet files written? Buckets of rows, and manifests that make a batch visible at once."""
