"""Delta tables read and written by their own files: the log, Parquet files and deletion vectors."""
