"""The logins of the user that runs the worker: libpq and JDBC take them by themselves where a config has none, so whoever
names a server would be logged in there as that user."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

PROPERTY: Final = "connector.auth.libpq.defaults"
NOWHERE: Final = "/dev/null/none"
"""A path at which there is never a file. libpq takes an empty one for none given, and looks at the usual place."""
_WITHHELD: Final = {"password": "", "passfile": NOWHERE, "sslcert": NOWHERE, "sslkey": NOWHERE}
"""An empty password is one that is given: neither a variable nor a service file is asked for another."""

_are_open = False


def use(are_open: bool) -> None:
    """For this process, which runs one connector for a worker."""
    global _are_open
    _are_open = are_open


def withheld(parts: Mapping[str, Any]) -> dict[str, str]:
    """Returns parameters that keep libpq from logins of its own, for a connection with these parameters."""
    return {} if _are_open else {name: value for name, value in _WITHHELD.items() if not parts.get(name)}


def of_java() -> dict[str, str]:
    """Returns variables that keep Java's driver from a password file of its own."""
    return {} if _are_open else {"PGPASSFILE": NOWHERE}
