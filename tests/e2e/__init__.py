"""The whole product from the outside: real workers, real faults."""
