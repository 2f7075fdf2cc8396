"""How much TLS the worker's properties ask for of connectors' connections to other machines, in this process."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from cdcworker.connectors.config.allowed_hosts import is_loopback
from cdcworker.schemas.errors import CdcError, declare

TLS_NOT_ENOUGH: Final = declare(
    "config.tls_not_enough",
    "config",
    "The worker's settings ask for more TLS than the connector's config",
    "Set what the message names: an sslmode, for verify-full with sslrootcert (a file of authorities, or system), or an"
    " address that begins with https.",
)
PROPERTY: Final = "connector.tls"
LEVELS: Final = ("any", "encrypted", "verified")
"""The values of `connector.tls`, each of which asks for more. With `encrypted` any server is accepted as the right one."""
MODES: Final = {
    "any": (),
    "encrypted": ("require", "verify-ca", "verify-full"),
    "verified": ("verify-full",),
}
"""libpq's sslmodes that satisfy each value."""
MYSQL_WORDS: Final = {
    "disabled": "disable",
    "preferred": "prefer",
    "required": "require",
    "verify_ca": "verify-ca",
    "verify_identity": "verify-full",
}
"""Debezium's modes of TLS for MySQL, and libpq's that say the same."""
MARIADB_WORDS: Final = {
    "disable": "disable",
    "trust": "require",
    "verify-ca": "verify-ca",
    "verify-full": "verify-full",
}
"""Those of its MariaDB connector."""
PLAIN, ENCRYPTED, VERIFIED = LEVELS

_needed = LEVELS[0]


def use(needed: str) -> None:
    """For this process, which runs one connector for a worker."""
    global _needed
    _needed = needed


def sslmode_of(text: str) -> str:
    """Returns libpq's sslmode for a mode in the words of any connector."""
    return {**MYSQL_WORDS, **MARIADB_WORDS}.get(text, text)


def level_of(sslmode: str) -> str:
    """Returns how much TLS a connection has at least with one of libpq's sslmodes."""
    return next(level for level in reversed(LEVELS) if sslmode in MODES[level] or level == LEVELS[0])


def check(key: str, what: str, level: str, hosts: Iterable[str]) -> None:
    """CdcError `config.tls_not_enough` for a connection with less TLS than is asked for, unless it stays on this machine.

    `what` says what it is and what would be enough.
    """
    if LEVELS.index(level) < LEVELS.index(_needed) and not all(map(is_loopback, hosts)):
        text = f"{key}: {what} is not enough for {PROPERTY}={_needed} on this worker"
        raise CdcError(TLS_NOT_ENOUGH, text, where={"key": key})
