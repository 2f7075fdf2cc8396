"""What may a connector say of an Iceberg catalog? Its properties, JDBC URIs and TLS, each judged before a client is made."""
