"""Places of the binary log as people write them: a GTID, or a file and a position in it."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any, Final

from cdcworker.connectors.mysql.source.position import StoredPosition
from cdcworker.schemas.errors import CdcError

_DIGITS_MAX: Final = 20
WANTED: Final = (
    "a place is a GTID (0-1-100, or UUID:100), a file and a position (log.000001:4), or the number of a commit"
)


def place_text(source: Mapping[str, Any]) -> str:
    """Returns the place that a record's source block tells; empty: it tells none."""
    gtid, file = str(source.get("gtid") or ""), _file_place(source)
    return f"{gtid} ({file})" if gtid and file else gtid or file


def _file_place(source: Mapping[str, Any]) -> str:
    file = source.get("file")
    return f"{file}:{source.get('pos', 0)}" if file else ""


def has_place(source: Mapping[str, Any], text: str) -> bool:
    """Returns whether a record's source block tells this place, in the form that `parse_place` returns."""
    return text in (str(source.get("gtid") or "").lower(), _file_place(source))


def parse_place(text: str) -> str:
    """Returns a GTID, or a file and a position, in the form in which records have them. Raises ValueError."""
    text = text.strip()
    if _is_mariadb(text) or _is_mysql(text):
        return text.lower()
    file, colon, position = text.rpartition(":")
    if not (colon and file and _is_number(position)):
        raise ValueError(WANTED)
    return f"{file}:{int(position)}"


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX


def _is_mariadb(text: str) -> bool:
    parts = text.split("-")
    return len(parts) == 3 and all(map(_is_number, parts))


def _is_mysql(text: str) -> bool:
    server, _, rest = text.partition(":")
    try:
        uuid.UUID(server)
    except ValueError:
        return False
    return _is_number(rest.rpartition(":")[2])


def stored_place(position: Mapping[str, Any]) -> tuple[int, str]:
    """Returns the number of the last commit that a stored position includes, and where it stands. Raises ValueError."""
    try:
        found = StoredPosition.from_json(dict(position))
    except CdcError as exc:
        raise ValueError(WANTED) from exc
    place = f"{found.place.file}:{found.place.position}" if found.place.file else ""
    return found.number, f"{found.gtids} ({place})" if found.gtids and place else found.gtids or place
