"""A connection string, mysql://user:password@host:port/database or mariadb://…, as the config of a source that reads every table of its database."""

from __future__ import annotations

from typing import Final, NoReturn
from urllib.parse import parse_qsl, unquote, urlsplit

from cdcworker.connectors.mysql.config.connection_keys import PORT
from cdcworker.connectors.mysql.config.settings import PRODUCTS
from cdcworker.schemas.errors import CdcError

SERVER_ID: Final = 4_294_967_295
"""A source that only looks reads no log under it."""
_OPTIONS: Final = {"ssl-mode": "database.ssl.mode", "ssl-ca": "database.sslrootcert"}
"""Names of the client's own options."""


def config_of(text: str) -> dict[str, str]:
    """Raises CdcError `config.invalid` without repeating the text."""
    try:
        parts = urlsplit(text.strip())
        port = parts.port or PORT
        options = dict(parse_qsl(parts.query, strict_parsing=bool(parts.query)))
    except ValueError:
        _refuse()
    if parts.scheme not in PRODUCTS or parts.fragment or not options.keys() <= _OPTIONS.keys():
        _refuse()
    database = unquote(parts.path.strip("/"))
    return {
        "connector.class": parts.scheme,
        "topic.prefix": "doctor",
        "database.hostname": parts.hostname or "localhost",
        "database.port": str(port),
        "database.user": unquote(parts.username or "root"),
        "database.password": unquote(parts.password or ""),
        "database.server.id": str(SERVER_ID),
        **({"database.include.list": _pattern(database)} if database else {}),
        **{_OPTIONS[name]: _mode(value) if name == "ssl-mode" else value for name, value in options.items()},
    }


def _pattern(name: str) -> str:
    """Returns the pattern that means this name alone, in a list that is divided at commas."""
    return "".join(c if c.isalnum() or c == "_" else f"\\{c}" for c in name).replace(r"\,", r"\x2c")


def _mode(value: str) -> str:
    """The client writes its modes in capitals."""
    return value.lower()


def _refuse() -> NoReturn:
    hint = "mysql://USER:PASSWORD@HOST:PORT/DATABASE?ssl-mode=VERIFY_IDENTITY&ssl-ca=FILE"
    raise CdcError("config.invalid", "the connection string cannot be read", hint=hint)
