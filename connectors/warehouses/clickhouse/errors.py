"""What ClickHouse and its client say is wrong, as errors with codes; a server's message is left out, for it may quote a value."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from cdcworker.connectors.sink_errors import (
    SCHEMA_REFUSED,
    TARGET_AUTH,
    TARGET_FAILED,
    TARGET_GONE,
    TARGET_RIGHTS,
    TARGET_UNREACHABLE,
    TARGET_VALUE,
)
from cdcworker.schemas.errors import CdcError, declare

OPEN_PASSWORD: Final = declare(
    "spark.target_open_password",
    "config",
    "The warehouse's password would go to a server that TLS does not verify",
    "Set warehouse.sslmode to verify-full, with warehouse.sslrootcert where the authority is not the machine's. Where the network is"
    " trusted, set the worker property connector.auth.weakest to password.",
)

_CODES: Final[Mapping[str, tuple[int, ...]]] = {
    TARGET_AUTH: (192, 193, 194, 516),
    TARGET_RIGHTS: (164, 291, 497),
    TARGET_GONE: (60, 81, 218),
    # Too many parts, queries or bytes of memory, a full disk, a server that stops: it may pass.
    TARGET_UNREACHABLE: (159, 201, 202, 203, 209, 210, 236, 241, 242, 243, 252, 279, 319, 394, 425),
    TARGET_VALUE: (6, 27, 41, 69, 70, 72, 117, 131, 321, 349, 407),
    # Columns that are not there, or may not be altered.
    SCHEMA_REFUSED: (10, 15, 16, 20, 44, 50, 53, 524),
}
_BY_NUMBER: Final = {number: code for code, numbers in _CODES.items() for number in numbers}
_NUMBER: Final = re.compile(r"[Cc]ode: (\d+)")


def number_of(exc: BaseException) -> int:
    """Returns the number of a server's error; 0: it is none of a server."""
    found = _NUMBER.search(str(exc))
    return int(found[1]) if found else 0


def from_client(exc: Exception, where: Mapping[str, str | int] | None = None) -> CdcError:
    """The one translation of what the client raises."""
    number, name = number_of(exc), type(exc).__name__
    if number:
        return CdcError(_BY_NUMBER.get(number, TARGET_FAILED), f"error {number} ({name})", where=where)
    return CdcError(TARGET_UNREACHABLE, f"the connection failed ({name})", where=where)
