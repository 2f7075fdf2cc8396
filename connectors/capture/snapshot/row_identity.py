"""Keys of rows as values that can be looked up and compared."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cdcworker.schemas.change import Row

Identity = Any
"""A key that can be looked up in a dictionary."""

KeyTexts = tuple[str, ...]
"""A key as the texts of its columns, in which it is stored and sent to the server."""


def identity_of(row: Row, key: tuple[int, ...]) -> Identity:
    """The key of a row; `key` are the indexes of its columns."""
    return identity(tuple(row[i] for i in key))


def identity(values: tuple[Any, ...]) -> Identity:
    """A key as something that can be looked up, also where a value is NaN or cannot be hashed."""
    for value in values:
        if value != value or isinstance(value, dict | list):
            return repr(values)
    return values


def differ(old: Sequence[Any], new: Row, key: tuple[int, ...]) -> bool:
    """Returns whether two rows have different keys."""
    return any(old[i] != new[i] for i in key) and identity_of(tuple(old), key) != identity_of(new, key)
