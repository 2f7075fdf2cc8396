"""The console: a web page over the REST API, whose files every worker serves at `/ui`."""
