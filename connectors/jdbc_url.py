"""Connection strings of JDBC: which server, which database, how much TLS."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal
from urllib.parse import parse_qsl, unquote

from cdcworker.connectors.config import tls_policy

Kind = Literal["postgres", "mysql"]
EXPECTED: Final = (
    "expects jdbc:postgresql://HOST:PORT/DATABASE, jdbc:mysql://HOST:PORT/DATABASE or jdbc:mariadb://HOST:PORT/DATABASE"
)
_URL: Final = re.compile(
    r"jdbc:(?P<kind>[a-z0-9]+)://(?P<hosts>[^/?#\s]+)/(?P<database>[^?#/\s]+)(?:\?(?P<query>[^#\s]*))?"
)
_KINDS: Final[Mapping[str, Kind]] = {"postgresql": "postgres", "mysql": "mysql", "mariadb": "mysql"}
_PORTS: Final[Mapping[Kind, int]] = {"postgres": 5432, "mysql": 3306}
_HOST: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::([0-9]{1,5}))?")
_MODES: Final = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")
_SECRETS: Final = ("user", "password")
_NO_MATTER: Final = frozenset(
    {
        *("applicationname", "rewritebatchedstatements", "rewritebatchedinserts", "useunicode", "characterencoding", "tcpkeepalive"),
        *("servertimezone", "connectiontimezone", "stringtype", "sslfactory", "allowpublickeyretrieval", "uselegacydatetimecode"),
        *("useserverprepstmts", "preparethreshold", "logintimeout", "connecttimeout", "sockettimeout", "characterset", "connectioncollation"),
    }
)  # fmt: skip
"""Parameters of drivers that need nothing here: text is UTF-8, times are in UTC, batches are written in few statements."""


class BadUrl(ValueError):
    """What is wrong with a connection string, without any of it."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where a database is. Ports are those of the hosts, in their order."""

    kind: Kind
    hosts: tuple[str, ...]
    ports: tuple[int, ...]
    database: str
    sslmode: str = "prefer"
    sslrootcert: str = ""
    schema: str = field(default="")
    """Where tables are whose name has no schema: PostgreSQL's `currentSchema`, or `public`; with MySQL the database."""


def parsed(text: str) -> Address:
    """Returns what a connection string says. BadUrl without repeating it."""
    found = _URL.fullmatch(text.strip())
    if found is None or found["kind"] not in _KINDS:
        raise BadUrl(EXPECTED)
    if "@" in found["hosts"]:
        raise BadUrl("holds a login: give connection.username and connection.password instead")
    kind = _KINDS[found["kind"]]
    hosts = [_host(part, kind) for part in found["hosts"].split(",")]
    database = unquote(found["database"])
    options = _options(parse_qsl(found["query"] or "", keep_blank_values=True))
    mode, rootcert = _tls(kind, options)
    schema = database if kind == "mysql" else options.pop("currentschema", "").split(",")[0] or "public"
    if any(not each.isprintable() for each in (database, rootcert, schema)):
        raise BadUrl("has a letter that no name has")
    if options:
        raise BadUrl(f"has the parameter {sorted(options)[0]}, which is not available: leave it out")
    if kind == "mysql" and len({port for _, port in hosts}) > 1:
        raise BadUrl("names hosts with different ports, of which MySQL's client takes one")
    names, ports = zip(*hosts, strict=True)
    return Address(kind, tuple(names), tuple(ports), database, mode, rootcert, schema)


def problem(text: str) -> str | None:
    """Returns what is wrong with a connection string; None where it is fine."""
    try:
        parsed(text)
    except BadUrl as error:
        return str(error)
    return None


def conninfo(address: Address, user: str, password: str) -> str:
    """Returns libpq's connection string, which holds the password: it is passed on and never logged."""
    from psycopg.conninfo import make_conninfo

    more = {"sslrootcert": address.sslrootcert} if address.sslrootcert else {}
    return make_conninfo(
        host=",".join(address.hosts), port=",".join(map(str, address.ports)), dbname=address.database,
        user=user, password=password, sslmode=address.sslmode, **more,
    )  # fmt: skip


def _host(part: str, kind: Kind) -> tuple[str, int]:
    found = _HOST.fullmatch(part)
    if found is None or not 0 < int(found[2] or _PORTS[kind]) < 65_536:
        raise BadUrl(EXPECTED)
    return found[1].strip("[]"), int(found[2] or _PORTS[kind])


def _options(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    out = {}
    for name, value in pairs:
        if name.lower() in _SECRETS:
            raise BadUrl("holds a login: give connection.username and connection.password instead")
        if name.lower() not in _NO_MATTER:
            out[name.lower()] = value
    return out


def _tls(kind: Kind, options: dict[str, str]) -> tuple[str, str]:
    """Takes what is said of TLS out of the parameters; returns libpq's name of the mode, and the file of authorities."""
    rootcert = options.pop("sslrootcert", "") or options.pop("serversslcert", "")
    flag: Any = options.pop("ssl", None) or options.pop("usessl", None)
    mode = options.pop("sslmode", "").lower()
    mode = tls_policy.sslmode_of(mode) if kind == "mysql" else mode
    if not mode:
        # The drivers verify the server where they are told `ssl=true` and no more.
        mode = "prefer" if flag is None else "verify-full" if flag.lower() == "true" else "disable"
    if mode not in _MODES:
        raise BadUrl(f"has an sslmode that is none of {', '.join(_MODES)}")
    return mode, rootcert
