"""Consistent sets: which state of each table belongs to one position of the source; and a writer of tables that commit alone,
whose readers take the tables as the valid set names them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

from cdcworker.connectors.api.table_batch import SinkBatch, VisibleThrough
from cdcworker.connectors.warehouses.staged_rows import add
from cdcworker.connectors.warehouses.table_state import Manifest
from cdcworker.schemas.topics import source_of, watermark_topics

IDLE_S: Final = 60.0
"""As long as no table changes, readers are told this often how far they are."""
Marks = Mapping[tuple[str, int], int]
"""Next offsets of the topics that say how far a source is."""


@dataclass(frozen=True, slots=True)
class SetMember:
    """A table in a set: its state there, and under which version it is found."""

    place: tuple[str, str]
    state: Manifest
    version: Any


@dataclass(frozen=True, slots=True)
class PublishedSet:
    """The set of tables, by topic, that readers see of one source, and the position to which it belongs."""

    through: VisibleThrough
    members: Mapping[str, SetMember]


class PublishedSets:
    """The sets of a sink as they were published last."""

    def __init__(self) -> None:
        self.shown: dict[str, PublishedSet] = {}
        self.published = 0.0

    @property
    def marks(self) -> Marks:
        raise NotImplementedError

    def is_due(self, source: str, shown: PublishedSet) -> bool:
        known = self.shown.get(source)
        same = known is not None and _versions(known) == _versions(shown)
        if same and known is not None and known.through.left_out == shown.through.left_out:
            return time.monotonic() - self.published > IDLE_S
        return True


class SetWriter(Protocol):
    _states: dict[str, Manifest]

    def apply(self, batch: SinkBatch) -> Mapping[str, Any]: ...

    def valid(self) -> PublishedSets: ...

    def member(self, topic: str, state: Manifest) -> SetMember: ...

    def publish(self, shown: Mapping[str, PublishedSet], marks: Marks) -> None: ...


def through(writer: SetWriter) -> dict[str, int]:
    """Returns, by source, the position before which readers see every transaction whole."""
    return {source: shown.through.position for source, shown in writer.valid().shown.items()}


def ahead(writer: SetWriter) -> dict[str, int]:
    """Returns, by source, the position of its furthest table: no earlier set can be shown any more."""
    out: dict[str, int] = {}
    for topic, state in writer._states.items():
        for position, _ in state.applied.values():
            source = source_of(topic)
            out[source] = max(out.get(source, 0), int(position[:16] or "0", 16) + 1)
    return out


def apply_all(writer: SetWriter, batches: Iterable[SinkBatch]) -> dict[str, Any]:
    """Applies batches one after the other and then publishes a set: readers see them together."""
    total: dict[str, Any] = {"rows": 0, "changes": 0, "orphans": 0, "tables": {}}
    replayed, told, marks = [], dict[str, VisibleThrough](), dict[tuple[str, int], int]()
    for batch in batches:
        told.update(batch.through)
        said = {place: span for place, span in batch.offsets.items() if _is_mark(place[0], batch)}
        marks.update({place: end for place, (_, end) in said.items()})
        left = replace(batch, offsets={place: span for place, span in batch.offsets.items() if place not in said})
        if left.offsets or left.tables or left.dead:
            counts = writer.apply(left)
            replayed.append(bool(counts["replayed"]))
            add(total, counts)
    show(writer, told, marks)
    return {**total, "replayed": bool(replayed) and all(replayed)}


def show(writer: SetWriter, told: Mapping[str, VisibleThrough], marks: Marks) -> None:
    shown = {}
    for source, mark in told.items():
        mine = {topic: state for topic, state in writer._states.items() if source_of(topic) == source}
        members = {topic: writer.member(topic, state) for topic, state in mine.items()}
        shown[source] = PublishedSet(mark, {**_standing(writer, source, mark), **members})
    if any(writer.valid().is_due(source, item) for source, item in shown.items()):
        writer.publish(shown, marks)


def _standing(writer: SetWriter, source: str, mark: VisibleThrough) -> dict[str, SetMember]:
    """Tables that are left out stay in the set as they were, also while nobody has claimed them."""
    known = writer.valid().shown.get(source)
    members = known.members if known is not None else {}
    return {topic: one for topic, one in members.items() if topic.removeprefix(f"{source}.") in mark.left_out}


def _is_mark(topic: str, batch: SinkBatch) -> bool:
    return not batch.tables and topic in watermark_topics([f"{source}.-.-" for source in batch.through])


def _versions(shown: PublishedSet) -> dict[str, Any]:
    return {topic: member.version for topic, member in shown.members.items()}
