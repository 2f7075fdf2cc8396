"""Several slots for one connector: which of them has which table."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from cdcworker.connectors.config import ConfigKey, between
from cdcworker.schemas.change import JsonObject

COUNT_MAX: Final = 32
NAME_MAX: Final = 63


@dataclass(frozen=True, slots=True)
class Share:
    """One of `count` slots. A table belongs to one of them by its full name alone: the same at every start, anywhere."""

    number: int = 0
    count: int = 1

    def has(self, table: str) -> bool:
        return self.count == 1 or zlib.crc32(table.encode()) % self.count == self.number

    def named(self, name: str) -> str:
        """The count is a part of the name, so that slots of another split are seen."""
        return name if self.count == 1 else f"{name}_{self.number}of{self.count}"

    def told(self) -> JsonObject:
        """For watermarks: what one of several tasks says holds for all once each of them has said so."""
        return {} if self.count == 1 else {"tasks": self.count}


WHOLE: Final = Share()


def split_keys() -> Iterable[ConfigKey]:
    yield ConfigKey(
        "slot.count", "INT", 1, validator=between(1, COUNT_MAX), group="Replication",
        doc="Slots, each read by a task of its own with its share of the tables. Their names end with _0of4, _1of4 …; so do"
        " those of their publications. Needs tasks.max of at least as many.",
    )  # fmt: skip


def split_checks(config: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    count = config["slot.count"]
    if count == 1:
        return
    if count > config["tasks.max"]:
        yield "slot.count", f"needs tasks.max of at least {count}"
    for name in ("slot.name", "publication.name"):
        if len(Share(count - 1, count).named(config[name])) > NAME_MAX:
            yield name, f"is too long for a name of each of {count} slots"
    if config["provide.transaction.metadata"]:
        yield "provide.transaction.metadata", "counts whole transactions, which several slots share"
    if config["signal.data.collection"]:
        yield "signal.data.collection", "is not available with several slots: ask over REST"
