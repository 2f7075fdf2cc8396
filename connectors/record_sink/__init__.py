"""How do records get from Kafka into a target that takes records? One process without Spark: read, convert, transform, write in
batches, try again, set aside, commit."""
