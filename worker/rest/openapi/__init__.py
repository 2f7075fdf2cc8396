"""The OpenAPI document of the REST API, made from the table of endpoints."""
