"""HTTP requests as bytes: bodies, paths, limits, and errors in Kafka Connect's form."""
