"""The processes of the product: workers and their tasks, the REST API, the command line and the embedded stack."""
