"""Pieces of JSON as they stand in a text: numbers keep all their digits, which parsing would round."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Final

_DECODER: Final = json.JSONDecoder()
_SPACE: Final = re.compile(r"[ \t\n\r]*")


def members(text: str) -> dict[str, str]:
    """Returns the texts of an object's members by their names. ValueError for anything else."""
    return dict(_members(text))


def items(text: str) -> list[str]:
    """Returns the texts of an array's items. ValueError for anything else."""
    return list(_values(text, "[]"))


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
