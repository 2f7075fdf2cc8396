"""What may Spark's Java process reach, and by whom? This process answers it."""
