"""Several tasks of one connector: which of them captures which table."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Final

from cdcworker.schemas.change import JsonObject


@dataclass(frozen=True, slots=True)
class TableShare:
    """The tables of task `number` of `count`. A table belongs to one task by its full name alone: the same at every
    start, on every worker."""

    number: int = 0
    count: int = 1

    def has(self, table: str) -> bool:
        return self.count == 1 or zlib.crc32(table.encode()) % self.count == self.number

    def named(self, name: str) -> str:
        """The name of this task's own slot, publication or other object. The count is a part of it, so that objects of
        another split are recognised."""
        return name if self.count == 1 else f"{name}_{self.number}of{self.count}"

    def told(self) -> JsonObject:
        """The watermark's members that say how many tasks there are: it holds for all once each of them has sent it."""
        return {} if self.count == 1 else {"tasks": self.count}


WHOLE: Final = TableShare()
"""One task captures all tables."""
