"""Delta tables on a local file system read and written by their own files: the log, Parquet files and deletion vectors."""
