"""How do records get into Kafka? Transactional, alternating and at-least-once producers behind one interface."""
