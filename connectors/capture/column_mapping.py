"""How one column is written: its Avro type, and the parser from the database's form of a value."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cdcworker.schemas.change import Avro

Parser = Callable[[Any], Any]
"""From a column's value as the source's reader has it (PostgreSQL: the bytes of its text form) to the value that is written."""


@dataclass(frozen=True, slots=True)
class MappedType:
    """A column's Avro type, and its parser; `required` is the parser of a column that must not be null, where it is another
    one. `zero` is the value that stands for one that was not sent, where the Avro type does not tell it."""

    avro: Avro
    parse: Parser
    required: Parser | None = None
    zero: Any = None
