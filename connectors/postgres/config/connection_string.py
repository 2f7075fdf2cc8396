"""A libpq connection string as the config of a source that reads every table of its database."""

from __future__ import annotations

from cdcworker.schemas.errors import CdcError


def config_of(text: str) -> dict[str, str]:
    """Takes either form of libpq's (a URI, or `key=value` pairs). Raises CdcError `config.invalid`."""
    import psycopg
    from psycopg.conninfo import conninfo_to_dict

    try:
        parts = {name: str(value) for name, value in conninfo_to_dict(text.strip()).items() if value is not None}
    except psycopg.Error:
        # The message repeats the string, password included.
        raise CdcError("config.invalid", "the connection string cannot be read", hint="postgresql://…") from None
    names = {"host": "hostname", "port": "port", "user": "user", "password": "password", "dbname": "dbname"}
    names |= {name: name for name in ("sslmode", "sslcert", "sslkey", "sslpassword", "sslrootcert")}
    config = {f"database.{names[key]}": value for key, value in parts.items() if key in names}
    user = parts.get("user", "postgres")
    basis = {"database.hostname": "localhost", "database.user": user, "database.dbname": parts.get("dbname", user)}
    return {"connector.class": "postgres", "topic.prefix": "doctor", **basis, **config}
