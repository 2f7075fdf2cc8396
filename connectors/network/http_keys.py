"""Keys of requests over HTTP that a source and a sink share: time-outs, headers, a login; and the headers that they make."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from cdcworker.connectors.config.definition import ConfigKey, Secret, between, one_of
from cdcworker.connectors.config.place_forms import http_problem
from cdcworker.schemas.errors import CdcError

_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
RESERVED: Final = frozenset(
    {"host", "content-length", "transfer-encoding", "connection", "authorization", "content-type"}
)


def address_problem(value: str) -> str | None:
    """Returns what is wrong with the address of a web service, without repeating it."""
    return http_problem(value) or _port_problem(value)


def _port_problem(url: str) -> str | None:
    try:
        port = urlsplit(url).port
    except ValueError:
        port = 0
    return "expects a port from 1 to 65535" if port == 0 else None


def headers_problem(value: Any, separator: str = ",") -> str | None:
    for item in filter(None, (part.strip() for part in value.reveal().split(separator))):
        name, colon, text = item.partition(":")
        if not colon or not _TOKEN.fullmatch(name.strip()) or not text.strip().isprintable():
            return f"expects NAME:VALUE, separated by {separator}"
        if name.strip().lower() in RESERVED:
            return "names a header that has a key of its own, or that belongs to the connection"
    return None


def parse_headers(value: Secret | None, separator: str = ",") -> list[tuple[str, str]]:
    """Returns the headers that a key names."""
    texts = value.reveal().split(separator) if value else []
    found = (text.partition(":") for text in texts if text.strip())
    return [(name.strip(), text.strip()) for name, _, text in found]


def printable(value: Any) -> str | None:
    """Returns what is wrong with a secret that is to be a header."""
    return None if value.reveal().isprintable() else "expects one line without control characters"


def additional_headers(group: str = "Requests") -> ConfigKey:
    """Returns the key of further headers."""
    return ConfigKey(
        "http.headers.additional", "PASSWORD", group=group, validator=headers_problem, connects=False,
        doc="Further headers, as NAME:VALUE separated by commas. They may be secrets, so they are shown nowhere.",
    )  # fmt: skip


def timeout_keys(limit: str = "", group: str = "Requests") -> Iterable[ConfigKey]:
    """Yields how long a connection and an answer are waited for; `limit` says what limits the whole."""
    yield ConfigKey(
        "http.connect.timeout.ms", "INT", 10_000, group=group, validator=between(1, 600_000), connects=False,
        doc="Longest wait for a connection.",
    )  # fmt: skip
    yield ConfigKey(
        "http.request.timeout.ms", "INT", 30_000, group=group, validator=between(1, 3_600_000), connects=False,
        doc=f"Longest wait for each piece of an answer{limit}.",
    )  # fmt: skip


def login_keys(group: str = "Login") -> Iterable[ConfigKey]:
    """Yields the keys of the header Authorization."""
    kinds = ("none", "basic", "bearer", "static")
    yield ConfigKey(
        "http.authorization.type", default="none", group=group, recommended=kinds, former="auth.type", connects=False,
        of_server=True, validator=one_of(*kinds), doc="What the header Authorization holds: nothing, a user with a password, a token, or a fixed text.",
    )  # fmt: skip
    yield ConfigKey(
        "http.authorization.user", group=group, former="connection.user", connects=False, of_server=True,
        doc="The user of basic.",
    )  # fmt: skip
    yield ConfigKey(
        "http.authorization.password", "PASSWORD", group=group, former="connection.password", connects=False,
        doc="The password of basic; best a reference such as ${file:/path}.",
    )  # fmt: skip
    yield ConfigKey(
        "http.authorization.token", "PASSWORD", group=group, validator=printable, connects=False,
        doc="The token of bearer; best a reference such as ${file:/path}.",
    )  # fmt: skip
    yield ConfigKey(
        "http.headers.authorization", "PASSWORD", group=group, validator=printable, connects=False,
        doc="The whole header of static.",
    )  # fmt: skip


def login_checks(config: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    """Yields keys of the login with what is wrong with them."""
    kind = config["http.authorization.type"]
    needs = {
        "basic": ("http.authorization.user", "http.authorization.password"),
        "bearer": ("http.authorization.token",),
        "static": ("http.headers.authorization",),
    }
    for name in needs.get(kind, ()):
        if not config[name]:
            yield name, f"is needed with http.authorization.type={kind}"


def login_headers(config: Mapping[str, Any], headers: Mapping[str, str], code: str) -> dict[str, str]:
    """Returns the headers with that of the login. CdcError of `code` for characters that HTTP does not have."""
    headers = dict(headers)
    kind = config["http.authorization.type"]
    if kind == "basic":
        login = f"{config['http.authorization.user']}:{config['http.authorization.password'].reveal()}"
        headers["Authorization"] = f"Basic {base64.b64encode(login.encode()).decode()}"
    elif kind == "bearer":
        headers["Authorization"] = f"Bearer {config['http.authorization.token'].reveal().strip()}"
    elif kind == "static":
        headers["Authorization"] = config["http.headers.authorization"].reveal().strip()
    for text in headers.values():
        try:
            text.encode("latin-1")
        except UnicodeEncodeError:
            raise CdcError(code, "a header holds characters that HTTP does not have") from None
        if not text.isprintable():
            raise CdcError(code, "a header holds control characters")
    return headers
