"""How does a sink apply whole source transactions? Batches that are cut where every transaction in them is complete."""
