"""How does a connector reach a server that its config names? Addresses that were judged, TLS, and HTTP without detours."""
