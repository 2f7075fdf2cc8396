"""Pieces of JSON as they stand in a text: numbers keep all their digits, which parsing would round."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from json.encoder import encode_basestring
from typing import Final

_DECODER: Final = json.JSONDecoder()
_SPACE: Final = re.compile(r"[ \t\n\r]*")


def members(text: str) -> dict[str, str]:
    """Returns the texts of an object's members by their names. ValueError for anything else."""
    return dict(_members(text))


def items(text: str) -> list[str]:
    """Returns the texts of an array's items. ValueError for anything else."""
    return list(_values(text, "[]"))


def joined(pieces: Mapping[str, str]) -> str:
    """Returns an object of pieces by their names."""
    return "{" + ",".join([f"{encode_basestring(name)}:{text}" for name, text in pieces.items()]) + "}"


def last_of_each(text: str) -> str:
    """Returns a value in whose objects each name stands once: of several members with one name the last. ValueError."""
    begin = _after(text, 0)
    if text[begin : begin + 1] == "{":
        return joined({name: last_of_each(member) for name, member in members(text).items()})
    if text[begin : begin + 1] == "[":
        return "[" + ",".join([last_of_each(item) for item in items(text)]) + "]"
    return text


def _members(text: str) -> Iterator[tuple[str, str]]:
    at = _opened(text, "{")
    while text[at : at + 1] != "}":
        name, at = _DECODER.raw_decode(text, at)
        at = _after(text, at)
        if text[at : at + 1] != ":":
            raise ValueError("no object")
        begin = _after(text, at + 1)
        _, end = _DECODER.raw_decode(text, begin)
        yield str(name), text[begin:end]
        at = _next(text, end, "}")


def _values(text: str, brackets: str) -> Iterator[str]:
    at = _opened(text, brackets[0])
    while text[at : at + 1] != brackets[1]:
        _, end = _DECODER.raw_decode(text, at)
        yield text[at:end]
        at = _next(text, end, brackets[1])


def _opened(text: str, bracket: str) -> int:
    at = _after(text, 0)
    if text[at : at + 1] != bracket:
        raise ValueError(f"no {bracket}")
    return _after(text, at + 1)


def _next(text: str, at: int, end: str) -> int:
    at = _after(text, at)
    if text[at : at + 1] == ",":
        return _after(text, at + 1)
    if text[at : at + 1] != end:
        raise ValueError("no end")
    return at


def _after(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found else at
