"""The genuine programs that ours is compared with: Kafka Connect itself, and what it answers to each request."""
