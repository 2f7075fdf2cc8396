"""What runs? Processes, REST, command line and the embedded stack."""
