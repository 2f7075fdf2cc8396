"""Mixed changes of many tables with schema changes in between, and what current state and change log must hold in the end."""

from __future__ import annotations

import datetime as dt
import itertools
import json
import random
from decimal import Decimal

from cdcworker.connectors.api.table_batch import IS_CURRENT, OP, POSITION, UNCHANGED

from tests import change_streams

PHASES = 5
DEFAULT = "none"


TYPED = (
    ("money", {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 2}, "numeric(12,2)"),
    ("at", {"type": "string", "connect.name": "io.debezium.time.ZonedTimestamp"}, "timestamp with time zone"),
    ("doc", {"type": "string", "connect.name": "io.debezium.data.Json"}, "jsonb"),
    ("raw", "bytes", "bytea"),
    ("flag", "boolean", "boolean"),
    ("tags", {"type": "array", "items": ["null", "string"]}, "text[]"),
)
"""Columns of one table in five, besides the others."""
EPOCH = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)


def sent(name, value):
    """As a record carries it; `value` is as a reader gets it."""
    if value is None or name not in ("money", "at", "doc"):
        return value
    if name == "money":
        return int(value.scaleb(2)).to_bytes(8, "big", signed=True)
    return json.dumps(value) if name == "doc" else value.isoformat().replace("+00:00", "Z")


def read(name, value):
    """A reader gets JSON, where arrays are that too, as text or as what it says, and times in UTC with their zone or without it."""
    if name in ("doc", "tags") and isinstance(value, str):
        return json.loads(value)
    if name == "at" and isinstance(value, dt.datetime) and value.tzinfo is None:
        return value.replace(tzinfo=dt.UTC)
    return value


class Shape:
    """A table whose columns change; `key` is empty for one without."""

    def __init__(self, number):
        self.name = f"t{number:02d}"
        self.keyed, self.composite = number % 10 != 9, number % 5 == 3
        self.columns = [
            change_streams.column("id", "long", "bigint", False, column_id=1),
            change_streams.column("n", "int", "integer", column_id=2),
            change_streams.column("a", "string", "text", column_id=3),
            change_streams.column("big", "string", "text", column_id=4),
        ]
        if number % 5 == 1:
            self.columns += [change_streams.column(*given, column_id=10 + at) for at, given in enumerate(TYPED)]
        if self.composite:
            self.columns.insert(1, change_streams.column("part", "string", "text", False, column_id=5))
        self.remake()

    def remake(self):
        key = () if not self.keyed else (0, 1) if self.composite else (0,)
        self.table = change_streams.table(*self.columns, key=key, name=self.name)
        self.names = [column.name for column in self.columns]

    def change(self, phase):
        """What the source's owner does to it at the beginning of a phase."""
        if phase == 1:
            self.columns.append(change_streams.column("extra", "string", "text", default=DEFAULT, column_id=6))
        elif phase == 2:
            self._put("n", change_streams.column("n", "long", "bigint", column_id=2))
        elif phase == 3:
            self._put("a", change_streams.column("label", "string", "text", column_id=3))
        else:
            self.columns = [column for column in self.columns if column.name != "extra"]
        self.remake()

    def _put(self, name, column):
        self.columns = [column if item.name == name else item for item in self.columns]


class Mixed:
    """60/30/10 inserts, updates and deletes; some updates leave a value out, some change the key, now and then a table is
    truncated. `rows` are dicts by key, or id where there is no key; `logged` counts changes by table."""

    def __init__(self, stream, tables, seed=1):
        self.stream, self.random = stream, random.Random(seed)
        self.shapes = [Shape(number) for number in range(tables)]
        self.rows = [{} for _ in self.shapes]
        self.live = [[] for _ in self.shapes]
        self.logged = [0] * tables
        self.made = [0] * tables
        self.next = 0

    def run(self, changes):
        """Yields after each hundredth of them."""
        for number in range(changes):
            if number % (changes // PHASES) == 0:
                self._evolve(number // (changes // PHASES))
            self._one(number % len(self.shapes))
            if number % max(1, changes // 100) == 0:
                yield number

    def _evolve(self, phase):
        # Not all tables at once: of the others the old columns go on.
        for at, shape in enumerate(self.shapes):
            if phase and phase < PHASES and at % 3 != phase % 3:
                before = shape.names
                if phase == 4 and "extra" not in before:
                    continue
                shape.change(phase)
                for row in self.rows[at].values():
                    if phase == 1:
                        row["extra"] = DEFAULT
                    elif phase == 3:
                        row["label"] = row.pop("a")
                    elif phase == 4:
                        del row["extra"]

    def _one(self, at):
        shape, dice = self.shapes[at], self.random.random()
        self.logged[at] += 1
        if not shape.keyed or not self.live[at] or dice < 0.6:
            self._insert(at)
        elif dice < 0.86:
            self._update(at)
        elif dice < 0.9:
            self._move(at)
        elif dice < 0.9998:
            self._delete(at)
        else:
            self.stream.truncate(shape.table)
            self.rows[at].clear()
            self.live[at].clear()

    def _values(self, at, id):
        shape, chance = self.shapes[at], self.random
        wide = shape.columns[shape.names.index("n")].type == "long"
        found = {
            "id": id,
            "part": f"p{id % 3}",
            "n": chance.choice([None, id % 1000, id << 33 if wide else -(id % 77)]),
            "a": f"a{id}",
            "label": f"label {id}",
            "extra": chance.choice([None, "", "more"]),
            "big": "b" * chance.choice([0, 3, 40]),
        }
        if "doc" in shape.names:
            found |= self._typed(id)
        return {name: found[name] for name in shape.names}

    def _typed(self, id):
        chance = self.random
        found = {
            "money": Decimal(chance.randrange(-(10**11), 10**11)).scaleb(-2),
            "at": EPOCH + dt.timedelta(microseconds=chance.randrange(10**15)),
            "doc": {"id": id, "deep": [chance.random() < 0.5, None, "ü"]},
            "raw": bytes([0, 255, id % 256]),
            "flag": id % 2 == 0,
            "tags": ["", None, f"t,{id}"][: id % 4],
        }
        return {name: chance.choice([None, value, value, value]) for name, value in found.items()}

    def _new(self, at):
        self.next += 1
        row = self._values(at, self.next)
        key = tuple(row[self.shapes[at].names[i]] for i in self.shapes[at].table.key)
        return key or (self.next,), row

    def _insert(self, at):
        key, row = self._new(at)
        self.made[at] += 1
        self.stream.insert(self.shapes[at].table, self._sent(row, ()))
        self.rows[at][key] = row
        if self.shapes[at].keyed:
            self.live[at].append(key)

    def _update(self, at):
        key = self.random.choice(self.live[at])
        row = self._values(at, key[0])
        kept = self._kept(at)
        self._put(at, key, key, row, kept)
        self.stream.update(self.shapes[at].table, self._sent(row, kept), kept)

    def _move(self, at):
        old = self._taken(at)
        key, row = self._new(at)
        kept = self._kept(at)
        self.stream.move(self.shapes[at].table, old, self._sent(row, kept), kept)
        self._put(at, old, key, row, kept)
        self.live[at].append(key)
        self.logged[at] += 1

    def _delete(self, at):
        key = self._taken(at)
        self.stream.delete(self.shapes[at].table, key)
        del self.rows[at][key]

    def _taken(self, at):
        live = self.live[at]
        place = self.random.randrange(len(live))
        live[place], live[-1] = live[-1], live[place]
        return live.pop()

    def _kept(self, at):
        return (self.shapes[at].names.index("big"),) if self.random.random() < 0.12 else ()

    @staticmethod
    def _sent(row, kept):
        return tuple(None if i in kept else sent(name, value) for i, (name, value) in enumerate(row.items()))

    def _put(self, at, old, key, row, kept):
        self.made[at] += 1
        before = self.rows[at].pop(old)
        self.rows[at][key] = {**row, **({"big": before["big"]} if kept else {})}

    # -- the end ------------------------------------------------------------------------------------------------------

    def check(self, writer, topic, log, versions=False):
        """Every table of a target, by `topic(name)`; the number of its rows. Of `versions` the current ones are compared, and that
        there is one for each change that made a row."""
        total = 0
        for at, shape in enumerate(self.shapes):
            found = writer.rows(topic(shape.name))
            rows = [row for batch in found.batches for row in batch.to_pylist()]
            found.close()
            rows = [{name: read(name, value) for name, value in row.items()} for row in rows]
            total += len(rows)
            if versions and shape.keyed:
                assert len(rows) == self.made[at], shape.name
                rows = [row for row in rows if row[IS_CURRENT]]
            if log or not shape.keyed:
                assert len(rows) == self.logged[at], shape.name
                assert len({row[POSITION] for row in rows}) == len(rows), shape.name
            wrong = different(self._current(shape, rows, log), self.rows[at])
            assert not wrong, f"{shape.name}: {wrong}"
        return total

    def _current(self, shape, rows, log):
        names = [column.name for column in shape.columns]
        # Ids are never used twice.
        key = [shape.names[i] for i in shape.table.key] or ["id"]
        if not log:
            assert len({tuple(row[name] for name in key) for row in rows}) == len(rows)
            return {tuple(row[name] for name in key): {name: row[name] for name in names} for row in rows}
        return folded(rows, key, names)


def different(found, wanted):
    """A few of the keys, with both rows."""
    keys = (key for key in {**found, **wanted} if found.get(key) != wanted.get(key))
    return {key: (found.get(key), wanted.get(key)) for key in itertools.islice(keys, 3)}


def folded(rows, key, names):
    """What a change log says is there now: columns that a change left out keep the value of the row before, which a
    changed key takes along from the row that went just before it."""
    out, gone = {}, {}
    for row in sorted(rows, key=lambda row: row[POSITION]):
        if row[OP] == "t":
            out.clear()
            continue
        at = tuple(row[name] for name in key)
        if row[OP] == "d":
            gone = out.pop(at)
            continue
        kept = (row[UNCHANGED] or "").split(",")
        before = out.get(at, gone)
        out[at] = {name: before[name] if name in kept else row[name] for name in names}
    return out
