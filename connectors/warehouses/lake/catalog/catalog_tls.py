"""How the clients of a lake's catalog reach its database or its metastore: what the worker's properties ask of connections
as to TLS and passwords holds for them too. Addresses that say http or https are judged with all others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from cdcworker.connectors.config import server_authentication, tls_policy
from cdcworker.connectors.config.allowed_hosts import is_loopback
from cdcworker.connectors.config.tls_policy import ENCRYPTED, PLAIN, TLS_NOT_ENOUGH
from cdcworker.connectors.warehouses.lake.catalog import jdbc_uris
from cdcworker.schemas.errors import CdcError

_METASTORE_TLS: Final = "hadoop.hive.metastore.use.SSL"
_S3A_TLS: Final = "hadoop.fs.s3a.connection.ssl.enabled"
_S3A_ENDPOINT: Final = "hadoop.fs.s3a.endpoint"
_JDBC: Final = "jdbc."
_POSTGRES: Final = "jdbc:postgresql:"
_MODES: Final = {
    "disabled": "disable",
    "preferred": "prefer",
    "required": "require",
    "trust": "require",
    "verify-identity": "verify-full",
}
"""Words of MySQL's and MariaDB's drivers, with libpq's for the same."""


def check_properties(key: str, properties: Mapping[str, str]) -> None:
    """CdcError `config.tls_not_enough` where one property takes the TLS of another's address away."""
    if properties.get(_S3A_TLS) == "false":
        endpoint = properties.get(_S3A_ENDPOINT, "").partition("://")[2] or properties.get(_S3A_ENDPOINT, "s3")
        tls_policy.check(key, f"{_S3A_TLS}=false", PLAIN, [endpoint.partition("/")[0].partition(":")[0]])


def check_uri(catalog: str, key: str, uri: str, hosts: Sequence[str], properties: Mapping[str, str]) -> None:
    """CdcError `config.tls_not_enough` for the address of a catalog that is reached with less TLS than the worker's
    properties ask for, and for one whose database would get a password without having proved that it is the right one."""
    if catalog == "hive":
        level = ENCRYPTED if properties.get(_METASTORE_TLS) == "true" else PLAIN
        tls_policy.check(key, f"thrift with {_METASTORE_TLS}={str(level == ENCRYPTED).lower()}", level, hosts)
    elif catalog == "jdbc":
        _check_database(key, uri, hosts, properties)


def _check_database(key: str, uri: str, hosts: Sequence[str], properties: Mapping[str, str]) -> None:
    given = {name.removeprefix(_JDBC): value for name, value in properties.items() if name.startswith(_JDBC)}
    # A driver lets the address win.
    given |= dict(jdbc_uris.parameters(uri))
    mode = _mode(given, is_postgres=uri.startswith(_POSTGRES))
    tls_policy.check(key, f"TLS of the database as with sslmode={mode}", tls_policy.level_of(mode), hosts)
    is_proved = mode in server_authentication.VERIFIED or all(map(is_loopback, hosts))
    if given.get("password") and not is_proved and not server_authentication.passwords_are_open():
        text = (
            f"{key}: the database's driver sends the password in the form that the server asks for, and sslmode={mode} "
            "does not prove that it is the right server; this takes verify-full, or the worker property "
            "connector.auth.weakest=password"
        )
        raise CdcError(TLS_NOT_ENOUGH, text, where={"key": key})


def _mode(given: Mapping[str, str], *, is_postgres: bool) -> str:
    """Returns the sslmode that a driver's parameters amount to, in libpq's words."""
    if is_postgres:
        return given.get("sslmode") or ("verify-full" if given.get("ssl") == "true" else "prefer")
    mode = given.get("sslMode", "").lower().replace("_", "-")
    if mode:
        found = _MODES.get(mode, mode)
        return found if found in ("disable", "prefer", "require", "verify-ca", "verify-full") else "prefer"
    if given.get("useSSL") == "false":
        return "disable"
    if given.get("useSSL") == given.get("requireSSL") == "true":
        return "verify-ca" if given.get("verifyServerCertificate") == "true" else "require"
    return "prefer"
