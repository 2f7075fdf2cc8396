"""Which request follows an answer: pages by link, by number, by offset or by token. A page is named by the target of its request."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode, urljoin, urlsplit

from cdcworker.connectors.http_source.pointers import Pointer, value_at

KINDS: Final = ("none", "link", "next", "page", "offset", "cursor")
COUNTED: Final = ("page", "offset")
PARAMETERS: Final[Mapping[str, str]] = {"page": "page", "offset": "offset", "cursor": "cursor"}
"""How those kinds name their parameter, where the config does not."""
TARGET_CHARS_MAX: Final = 8_000
"""The next page is a part of the position."""
_TARGET: Final = re.compile(r"/[!-~]*")
_NUMBER: Final = re.compile(r"[0-9]{1,18}")
_LINK: Final = re.compile(r'<([^>]*)>((?:\s*;\s*[^\s,;="]+(?:\s*=\s*(?:"[^"]*"|[^\s,;"]*))?)*)')
_RELATION: Final = re.compile(r';\s*rel\s*=\s*(?:"([^"]*)"|([^\s,;"]*))', re.IGNORECASE)


class ElsewhereError(ValueError):
    """The next page lies on another server."""


@dataclass(frozen=True, slots=True)
class Paging:
    """How pages follow each other."""

    kind: str
    url: str
    """The address of the config: only its server is asked."""
    parameter: str = ""
    first: int = 0
    size: int | None = None
    size_parameter: str = ""
    next: Pointer = ()

    def begin(self, parameters: Mapping[str, str]) -> str:
        """Returns the target of the first page."""
        if self.kind in COUNTED:
            parameters = {**parameters, self.parameter: str(self.first)}
        if self.size_parameter:
            parameters = {**parameters, self.size_parameter: str(self.size)}
        url = urlsplit(self.url)
        return with_parameters((url.path or "/") + (f"?{url.query}" if url.query else ""), parameters)

    def following(self, target: str, headers: Mapping[str, str], body: Any, count: int) -> str | None:
        """Returns the target of the page behind an answer with so many items; None: it was the last. ElsewhereError for one on
        another server; ValueError for one that names no page."""
        found: str | None = None
        if self.kind in COUNTED:
            is_last = count == 0 or (self.size is not None and count < self.size)
            found = None if is_last else self._counted(target, count)
        elif self.kind == "link":
            found = self._resolved(target, next_link(headers.get("link", "")))
        elif self.kind == "next":
            found = self._resolved(target, value_at(body, self.next))
        elif self.kind == "cursor":
            found = self._with_token(target, value_at(body, self.next))
        if found == target:
            raise ValueError("the next page is the one that was read")
        return found

    def continues(self, target: str) -> bool:
        """Returns whether a page that was stored is one that is counted as these are: of another size fewer items look like the last
        page."""
        if self.kind not in COUNTED:
            return True
        given = dict(parse_qsl(urlsplit(target).query))
        is_numbered = _NUMBER.fullmatch(given.get(self.parameter, "")) is not None
        return is_numbered and (not self.size_parameter or given.get(self.size_parameter) == str(self.size))

    def _counted(self, target: str, count: int) -> str:
        now = int(dict(parse_qsl(urlsplit(target).query))[self.parameter])
        return with_parameters(target, {self.parameter: str(now + (1 if self.kind == "page" else count))})

    def _with_token(self, target: str, token: Any) -> str | None:
        if token is None or token in ("", False):
            return None
        if not isinstance(token, str | int):
            raise ValueError("the token of the next page is neither a text nor a number")
        return judged(with_parameters(target, {self.parameter: token if isinstance(token, str) else json.dumps(token)}))

    def _resolved(self, target: str, found: Any) -> str | None:
        if not found:
            return None
        if not isinstance(found, str):
            raise ValueError("the address of the next page is no text")
        address = urlsplit(urljoin(urljoin(self.url, target), found))
        if origin(address.geturl()) != origin(self.url) or "@" in address.netloc:
            raise ElsewhereError("the next page lies on another server")
        return judged((address.path or "/") + (f"?{address.query}" if address.query else ""))


def origin(url: str) -> tuple[str, str, int | None]:
    """Returns the scheme, the host and the port of an address. ValueError for one without."""
    parts = urlsplit(url)
    return parts.scheme, parts.hostname or "", parts.port or {"http": 80, "https": 443}.get(parts.scheme)


def judged(target: str) -> str:
    """Returns a target that a request can have. ValueError."""
    if len(target) > TARGET_CHARS_MAX or not _TARGET.fullmatch(target):
        raise ValueError("the address of the next page is too long, or holds characters that addresses do not have")
    return target


def with_parameters(target: str, parameters: Mapping[str, str]) -> str:
    """Returns a target with these parameters, each in the place of one of its name."""
    if not parameters:
        return target
    path, _, query = target.partition("?")
    kept = [
        part
        for part in query.split("&")
        if part and not set(dict(parse_qsl(part, keep_blank_values=True))) & set(parameters)
    ]
    return f"{path}?{'&'.join([*kept, urlencode(parameters)])}"


def next_link(header: str) -> str:
    """Returns the address of the relation `next` in a header Link; empty: there is none."""
    for address, parameters in _LINK.findall(header):
        for found in _RELATION.findall(parameters):
            relations: Sequence[str] = (found[0] or found[1]).lower().split()
            if "next" in relations:
                return str(address)
    return ""
