"""What a history of versions has to hold: one change after the other in the order of positions, in plain Python."""

from __future__ import annotations

import contextlib
import datetime as dt
import random
import struct
from dataclasses import dataclass, field
from typing import Any

from cdcworker.connectors.api.table_batch import IS_CURRENT, OP, POSITION, VALID_FROM, VALID_TO, VALID_TO_POSITION
from cdcworker.schemas.change import Change, Position

from .change_streams import NARROW, Stream

EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
OWN = (POSITION, OP, VALID_FROM, VALID_TO, VALID_TO_POSITION, IS_CURRENT)
KEPT = "big"
KEPT_AT = 3


@dataclass
class Version:
    position: bytes
    op: str
    row: tuple[Any, ...]
    valid_from: dt.datetime
    valid_to: dt.datetime | None = None
    end: bytes | None = None

    @property
    def told(self):
        return (*self.row, self.position, self.op, self.valid_from, self.valid_to, self.end, self.end is None)


@dataclass
class History:
    """By key what is current, and all that was."""

    current: dict[tuple[Any, ...], Version] = field(default_factory=dict)
    versions: list[Version] = field(default_factory=list)

    def apply(self, event):
        if event.op == "t":
            for key in list(self.current):
                self.end(key, event)
        elif event.op == "d":
            self.end(event.key, event)
        elif event.op != "r" or event.key not in self.current or self.current[event.key].row != event.row:
            self.end(event.key, event)
            self.current[event.key] = Version(event.position, event.op, event.row, event.at)
            self.versions.append(self.current[event.key])

    def end(self, key, event):
        ended = self.current.pop(key, None)
        if ended is not None:
            ended.valid_to, ended.end = event.at, event.position


@dataclass(frozen=True)
class Event:
    op: str
    position: bytes
    at: dt.datetime
    key: tuple[Any, ...] | None = None
    row: tuple[Any, ...] | None = None


class VersionedStream(Stream):
    """A stream whose changes the model follows; `rows` are those of the source now. Several may be of one transaction."""

    def __init__(self, of=NARROW, **more):
        super().__init__(**more)
        self.of, self.rows, self.events, self._index = of, {}, [], None

    @contextlib.contextmanager
    def transaction(self):
        self.lsn += 8
        self._index = 0
        yield
        self._index = None

    def change(self, op, of, sub=0, **more):
        if self._index is None:
            change = super().change(op, of, sub, **more)
        else:
            self._index += sub == 0
            found = super().change(op, of, sub=1, **more)
            source = {**found.source, "tx_index": self._index, "tx_sub": sub}
            change = Change(op, of, Position(self.lsn, self._index, sub), source, **more)
        self._note(change)
        return change

    def _note(self, change):
        place = struct.pack(">qii", *(change.source[name] for name in ("commit_lsn", "tx_index", "tx_sub")))
        at = EPOCH + dt.timedelta(milliseconds=change.source["ts_ms"])
        if change.op == "t":
            self.rows.clear()
            self.events.append(Event("t", place, at))
        elif change.op == "d":
            key = tuple(change.before[i] for i in self.of.key)
            self._left = self.rows.pop(key, None)
            self.events.append(Event("d", place, at, key))
        else:
            key = tuple(change.after[i] for i in self.of.key)
            base = self._left if change.other_key else self.rows.get(key)
            row = tuple(base[i] if i in change.unchanged else value for i, value in enumerate(change.after))
            self.rows[key] = row
            self.events.append(Event(change.op, place, at, key, row))

    def wanted(self):
        history = History()
        for event in sorted(self.events, key=lambda event: event.position):
            history.apply(event)
        return sorted((version.told for version in history.versions), key=repr)


class RandomChanges:
    """Random changes of a few keys. `keeps`: changes may leave a column out; `reads`: rows of snapshots come between."""

    def __init__(self, stream, seed, *, keeps=True, reads=True, truncates=True, keys=6):
        self.stream, self.random = stream, random.Random(seed)
        self.keeps, self.reads, self.truncates, self.keys = keeps, reads, truncates, keys

    def run(self, count):
        while count > 0:
            several = self.random.choice([1, 1, 1, 2, 4])
            with self.stream.transaction() if several > 1 else contextlib.nullcontext():
                for _ in range(several):
                    self._one(several > 1)
            count -= several

    def _one(self, in_transaction):
        stream, chance = self.stream, self.random
        dice, alive = chance.random(), sorted(stream.rows)
        free = [(id,) for id in range(self.keys) if (id,) not in stream.rows]
        if self.truncates and dice < 0.03:
            stream.truncate(stream.of)
        elif self.reads and dice < 0.15 and alive and not in_transaction:
            row = stream.rows[chance.choice(alive)]
            stream.insert(stream.of, row if chance.random() < 0.7 else (row[0], *self._values()), "r")
        elif free and (not alive or dice < 0.4):
            stream.insert(stream.of, (*chance.choice(free), *self._values()))
        elif free and dice < 0.5:
            new, kept = chance.choice(free), self._kept()
            stream.move(stream.of, chance.choice(alive), self._sent((*new, *self._values()), kept), kept)
        elif alive and dice < 0.65:
            stream.delete(stream.of, chance.choice(alive))
        elif alive:
            kept = self._kept()
            stream.update(stream.of, self._sent((*chance.choice(alive), *self._values()), kept), kept)

    def _values(self):
        chance = self.random
        return chance.choice([None, 1, 2]), chance.choice(["", "a", "b", None]), "big" * chance.randrange(3)

    def _kept(self):
        return (KEPT_AT,) if self.keeps and self.random.random() < 0.4 else ()

    @staticmethod
    def _sent(row, kept):
        return tuple(None if i in kept else value for i, value in enumerate(row))


def versions(writer, topic, of=NARROW):
    """Versions as a reader sees them, in the form of `VersionedStream.wanted`."""
    names = [*(column.name for column in of.columns), *OWN]
    found = writer.rows(topic)
    if found is None:
        return []
    rows = [tuple(_told(row[name]) for name in names) for batch in found.batches for row in batch.to_pylist()]
    found.close()
    return sorted(rows, key=repr)


def _told(value):
    """Some servers have no time zones: their times are UTC's."""
    return value.replace(tzinfo=dt.UTC) if isinstance(value, dt.datetime) else value


def assert_equal(found, wanted):
    """Tells the first few that differ."""
    lacking, others = (
        [row for row in one if row not in other][:4] for one, other in ((wanted, found), (found, wanted))
    )
    assert found == wanted, f"lacking {lacking}\nothers {others}"
