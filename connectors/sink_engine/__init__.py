"""How does a sink bring records from Kafka into a warehouse? Batches are read, built and applied, whatever reads and writes them."""
