"""Which ways to log in a PostgreSQL server may ask for where TLS does not prove that it is the right one: whoever answers
in its place must not learn the password."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Final

from cdcworker.schemas.errors import CdcError, declare

WEAK_LOGIN: Final = declare(
    "postgres.weak_login",
    "config",
    "The server asks for the password in a form that whoever answers in its place could use",
    "Set sslmode to verify-full with sslrootcert, or store the role's password anew with password_encryption ="
    " scram-sha-256. Where the network is trusted, set the worker property connector.auth.weakest to md5 or password.",
)
METHODS: Final = ("scram-sha-256", "md5", "password")
"""The values of `connector.auth.weakest`, the strongest first. SCRAM alone tells the server nothing of the password."""
VERIFIED: Final = ("verify-ca", "verify-full")
DEFAULT_MODE: Final = "prefer"
REFUSAL: Final = "authentication method requirement"
"""How libpq's message begins when a server has asked for more than `require_auth` allows."""
REQUIRE_AUTH_VERSION: Final = 160_000

_weakest = METHODS[0]


def use(weakest: str) -> None:
    """For this process, which runs one connector for a worker."""
    global _weakest
    _weakest = weakest


def passwords_are_open() -> bool:
    """Returns whether a server that TLS does not verify may get the password itself."""
    return _weakest == METHODS[-1]


def refused(required: str) -> frozenset[str]:
    """Returns the methods that a value of `require_auth` as made here rules out."""
    return frozenset(name.removeprefix("!") for name in required.split(",") if name.startswith("!"))


def values() -> tuple[str, ...]:
    """Returns every value of `require_auth` that is made here."""
    return tuple(_ruling_out(METHODS[number + 1 :]) for number in range(len(METHODS)))


def required(parts: Mapping[str, Any]) -> str | None:
    """Returns libpq's `require_auth` for a connection with these parameters; None where it is free, or where the
    operator's environment says it. CdcError `postgres.weak_login` where libpq is too old to refuse anything."""
    mode = str(parts.get("sslmode") or os.environ.get("PGSSLMODE") or DEFAULT_MODE)
    ruled_out = METHODS[METHODS.index(_weakest) + 1 :]
    if mode in VERIFIED or not ruled_out or parts.get("require_auth") or os.environ.get("PGREQUIREAUTH"):
        return None
    if libpq_version() < REQUIRE_AUTH_VERSION:
        raise CdcError(WEAK_LOGIN, "libpq is older than 16 and would answer whatever it is asked")
    return _ruling_out(ruled_out)


def _ruling_out(methods: Sequence[str]) -> str:
    return ",".join(f"!{name}" for name in sorted(methods, reverse=True))


def libpq_version() -> int:
    from psycopg import pq

    return pq.version()
