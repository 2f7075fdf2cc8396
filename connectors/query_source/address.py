"""Where a database is: the address that `connection.url` holds, by its scheme."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from cdcworker.connectors import jdbc_url
from cdcworker.connectors.jdbc_url import Address, BadUrl

FILES: Final = ("sqlite", "duckdb")
"""Kinds of databases that are one file."""
_FILE: Final = re.compile(r"jdbc:(sqlite|duckdb):(?:file:)?(/[^?#\0]+)")
_OF_FILE: Final = tuple(f"jdbc:{kind}:" for kind in FILES)


@dataclass(frozen=True, slots=True)
class FileAddress:
    """A database that is one file. `kind` is one of `FILES`."""

    kind: str
    path: str


def parsed(url: str) -> FileAddress | Address:
    """Returns what an address says. BadUrl, which is a ValueError, without repeating it."""
    text = url.strip()
    found = _FILE.fullmatch(text)
    if found is not None:
        return FileAddress(found[1], found[2])
    if text.startswith(_OF_FILE):
        raise BadUrl(f"expects {' or '.join(f'{each}/PATH' for each in _OF_FILE)}, with a path that begins with /")
    try:
        return jdbc_url.parsed(text)
    except BadUrl as error:
        if str(error) != jdbc_url.EXPECTED:
            raise
        files = ", ".join(f"{each}/PATH" for each in _OF_FILE)
        raise BadUrl(f"{jdbc_url.EXPECTED}; or of a file {files}") from None


def problem(url: str) -> str | None:
    """Returns what is wrong with an address; None where it is fine."""
    try:
        parsed(url)
    except BadUrl as error:
        return str(error)
    return None
