"""Configuration keys of the connection to the server, and what a login is made of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from cdcworker.connectors.config.allowed_hosts import host_list
from cdcworker.connectors.config.definition import ConfigKey, Importance, between, one_of
from cdcworker.connectors.config.tls_policy import MARIADB_WORDS, MYSQL_WORDS, sslmode_of
from cdcworker.connectors.mysql_client.login import Login

PORT: Final = 3306
_PORT_MAX: Final = 65_535
SERVER_ID_MAX: Final = (1 << 32) - 1
_GROUP: Final = "Connection"
_LOW: Final[Importance] = "LOW"


def connection_keys() -> Iterable[ConfigKey]:
    high: Importance = "HIGH"
    yield ConfigKey(
        "database.hostname", required=True, importance=high, group=_GROUP, validator=host_list, connects=True,
        doc="Host, or a comma list of hosts that have the same history.",
    )  # fmt: skip
    yield ConfigKey(
        "database.port",
        "INT",
        PORT,
        validator=between(1, _PORT_MAX),
        importance=high,
        group=_GROUP,
        connects=True,
        doc="Port.",
    )
    yield ConfigKey(
        "database.user", required=True, importance=high, group=_GROUP, connects=True,
        doc="A user with REPLICATION SLAVE, REPLICATION CLIENT and SELECT on the captured tables.",
    )  # fmt: skip
    yield ConfigKey(
        "database.password", "PASSWORD", importance=high, group=_GROUP, connects=False, doc="Password of database.user."
    )
    yield ConfigKey(
        "database.server.id", "LONG", required=True, validator=between(1, SERVER_ID_MAX), importance=high, group=_GROUP,
        connects=False, doc="The server id as which the binary log is read; no server and no other reader of it may have the same.",
    )  # fmt: skip
    yield ConfigKey(
        "connect.timeout.ms", "INT", 30_000, validator=between(1000, 600_000), importance=_LOW, group=_GROUP, connects=False,
        doc="How long to wait for the server when a connection is opened.",
    )  # fmt: skip
    yield from _tls_keys()


def _tls_keys() -> Iterable[ConfigKey]:
    modes = (*MYSQL_WORDS, *MARIADB_WORDS)
    yield ConfigKey(
        "database.ssl.mode", default="preferred", validator=one_of(*modes), recommended=tuple(MYSQL_WORDS), spellings=tuple(MARIADB_WORDS),
        group=_GROUP, connects=True, doc="TLS towards the server: disabled, preferred, required, verify_ca or verify_identity; or in the"
        " words for MariaDB disable, trust, verify-ca, verify-full.",
    )  # fmt: skip
    yield ConfigKey(
        "database.sslrootcert", group=_GROUP, importance=_LOW, connects=True,
        doc="File of trusted root certificates in PEM, or system for those of the machine.",
    )  # fmt: skip


def connection_checks(config: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    """Yields what the keys do not allow together."""
    if ssl_mode(config) in ("verify-ca", "verify-full") and not config["database.sslrootcert"]:
        yield (
            "database.sslrootcert",
            "names the authority that database.ssl.mode verifies the server by; system for the machine's",
        )


def ssl_mode(config: Mapping[str, Any]) -> str:
    """Returns the mode of TLS in the words of `Login`."""
    return sslmode_of(str(config["database.ssl.mode"]))


def login_of(config: Mapping[str, Any]) -> Login:
    """Returns what a connection logs in with; it holds the password."""
    password = config["database.password"]
    return Login(
        config["database.hostname"],
        config["database.port"],
        config["database.user"],
        password.reveal() if password else "",
        ssl_mode(config),
        config["database.sslrootcert"] or None,
    )
