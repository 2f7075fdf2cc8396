"""Addresses of databases as Iceberg's JDBC catalog takes them, and the parameters of their drivers that connectors may set.

Drivers take names of classes, of files and of statements among their parameters, so only the listed ones are taken.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final
from urllib.parse import unquote

from cdcworker.connectors.config.place_forms import (
    PATH,
    PLACE,
    PlaceForm,
    bare,
    host_problem,
    one_of,
    path_problem,
    text_of,
)

TEXT: Final = text_of(r"[^\x00-\x1f\x7f]{0,8192}", "text without control characters")
NUMBER: Final = text_of(r"-?[0-9]{1,19}", "a whole number")
BOOLEAN: Final = one_of("true", "false")
WORD: Final = text_of(r"[A-Za-z0-9_.:+@=-]{1,512}", "a word of letters, digits and _ . : + @ = -")

PARAMETERS: Final[Mapping[str, PlaceForm]] = {
    "user": TEXT,
    "password": TEXT,
    **dict.fromkeys(("connectTimeout", "socketTimeout", "loginTimeout"), NUMBER),
    "tcpKeepAlive": BOOLEAN,
    # PostgreSQL
    "ApplicationName": WORD,
    "currentSchema": WORD,
    "ssl": BOOLEAN,
    "sslmode": one_of("disable", "allow", "prefer", "require", "verify-ca", "verify-full"),
    "sslrootcert": PATH,
    "targetServerType": WORD,
    # MySQL and MariaDB
    **dict.fromkeys(("requireSSL", "useSSL", "useUnicode", "verifyServerCertificate"), BOOLEAN),
    "sslMode": text_of(r"[A-Za-z_-]{1,32}", "a word"),
    "characterEncoding": WORD,
    "serverTimezone": text_of(r"[A-Za-z0-9_/+:-]{1,64}", "the name of a time zone"),
}
_PLACES: Final = r"(?P<places>[^/?#@\\\s]+)"
_SERVER: Final = re.compile(
    rf"jdbc:(?:postgresql|mysql|mariadb)://{_PLACES}/(?P<database>[A-Za-z0-9_.%-]*)(?:\?(?P<parameters>[^#\s]*))?"
)
_PLACE: Final = re.compile(PLACE)
_SQLITE: Final = "jdbc:sqlite:"
EXPECTED: Final = (
    "expects jdbc:postgresql://host:port/database, jdbc:mysql or jdbc:mariadb in the same form, or jdbc:sqlite:/path"
)


def parameters(value: str) -> list[tuple[str, str]]:
    """Returns the parameters in the address of a database, each decoded."""
    found = _SERVER.fullmatch(value)
    pairs = (found["parameters"] or "").split("&") if found else ()
    return [(name, unquote(text)) for name, _, text in (pair.partition("=") for pair in pairs if pair)]


def _problem(value: str) -> str | None:
    if value.startswith(_SQLITE):
        path = value.removeprefix(_SQLITE)
        return EXPECTED if re.search(r"[?#%]", path) else path_problem(path)
    found = _SERVER.fullmatch(value)
    if not found:
        return EXPECTED
    for text in found["places"].split(","):
        place = _PLACE.fullmatch(text)
        problem = host_problem(place["host"]) if place else EXPECTED
        if problem:
            return problem
    for name, content in parameters(value):
        form = PARAMETERS.get(name)
        if form is None:
            return f"does not take the parameter {name[:100]}"
        if problem := form.problem(content):
            return f"{problem} for the parameter {name}"
    return None


def _hosts(value: str) -> Sequence[str]:
    found = _SERVER.fullmatch(value)
    places = (_PLACE.fullmatch(text) for text in found["places"].split(",")) if found else ()
    return [bare(place["host"]) for place in places if place]


def _paths(value: str) -> Sequence[str]:
    if value.startswith(_SQLITE):
        return [value.removeprefix(_SQLITE)]
    return [path for name, text in parameters(value) if name in PARAMETERS for path in PARAMETERS[name].paths(text)]


URI: Final = PlaceForm(_problem, _hosts, paths=_paths)
