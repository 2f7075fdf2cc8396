"""The `cdcworker` command line. A command's module is imported only when the command is called."""
