"""The parts that handlers of the REST API share: context, routing, forwarding to the leader, dry runs, and Kafka
Connect's JSON."""
