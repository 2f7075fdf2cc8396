"""Java and its libraries: the runtime, and the jars, fetched and checked by their locked hashes."""
