"""The secrets that this process has resolved, cut out of whatever it says: texts of libraries may quote them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from cdcworker.connectors.config import MASK

CHARS_MIN: Final = 4
"""Shorter ones would cut up every word."""
KNOWN_MAX: Final = 1_000

_known: list[str] = []


def remember(values: Iterable[str]) -> None:
    """Longest first: one may be part of another."""
    global _known
    found = {value for value in (*_known, *values) if len(value) >= CHARS_MIN}
    _known = sorted(found, key=lambda value: (-len(value), value))[:KNOWN_MAX]


def forget() -> None:
    """For tests: a process that resolves secrets ends with its connector."""
    _known.clear()


def clean(text: str) -> str:
    for secret in _known:
        if secret in text:
            text = text.replace(secret, MASK)
    return text


def clean_all(content: Any) -> Any:
    """The same in every text of what is going to be JSON."""
    if not _known:
        return content
    if isinstance(content, str):
        return clean(content)
    if isinstance(content, dict):
        return {name: clean_all(value) for name, value in content.items()}
    if isinstance(content, list | tuple):
        return [clean_all(value) for value in content]
    return content
