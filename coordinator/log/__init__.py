"""What do the cluster's compacted topics hold? Their record formats, and the folds of records into a state."""
