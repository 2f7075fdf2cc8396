"""What can a connector be told? Keys as types, with defaults, validators and documentation."""
