"""What does every database's source share? Configuration keys, snapshots beside the stream, and tables that are held back."""
