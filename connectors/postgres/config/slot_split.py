"""Configuration keys of several slots for one connector, each with its share of the tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from cdcworker.connectors.capture.config.table_share import TableShare
from cdcworker.connectors.config.definition import ConfigKey, between

COUNT_MAX: Final = 32
NAME_MAX: Final = 63


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
        if len(TableShare(count - 1, count).named(config[name])) > NAME_MAX:
            yield name, f"is too long for a name of each of {count} slots"
    if config["provide.transaction.metadata"]:
        yield "provide.transaction.metadata", "counts whole transactions, which several slots share"
    if config["signal.data.collection"]:
        yield "signal.data.collection", "is not available with several slots: ask over REST"
