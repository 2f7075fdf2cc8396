"""How far behind is a task that does not run? Measured from outside, so that alerts see a connector that stands still."""
