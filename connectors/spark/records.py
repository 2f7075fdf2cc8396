"""Kafka records of one micro-batch to table batches: grouped by topic and schema, decoded, reduced."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cdcworker.connectors.api import KEY, POSITION, DeadLetter, SinkBatch, TableBatch
from cdcworker.connectors.spark import arrays, dead, headers, logs, moments, reduce
from cdcworker.connectors.spark.decode import Plan, Undecodable, decode
from cdcworker.connectors.spark.errors import UNDECODABLE
from cdcworker.connectors.spark.reduce import NONE
from cdcworker.connectors.spark.schemas import KeyShape, Shape, Shapes, unframed
from cdcworker.schemas.errors import CdcError
from cdcworker.schemas.topics import subject

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

Partition = tuple[str, int]
_Built = tuple[list[TableBatch], dict[Partition, tuple[bytes, int]], tuple[Any, Any]]


@dataclass(slots=True)
class Topic:
    """The records of one topic, in the order of partition and offset, as columns."""

    name: str
    partition: np.ndarray[Any, Any]
    offset: np.ndarray[Any, Any]
    key: pa.Array
    value: pa.Array
    headers: pa.Array
    schema: np.ndarray[Any, Any]
    """Schema id per row, 0 for a tombstone."""

    def where(self, row: int) -> dict[str, str | int]:
        return {"topic": self.name, "partition": int(self.partition[row]), "offset": int(self.offset[row])}


@dataclass(slots=True)
class Decoded:
    """Positions, operations and rows of a topic; `local` is a row's index in the decoded array of its schema."""

    major: np.ndarray[Any, Any]
    minor: np.ndarray[Any, Any]
    op: np.ndarray[Any, Any]
    ts_ms: np.ndarray[Any, Any]
    local: np.ndarray[Any, Any]
    arrays: dict[int, Any]


class Assembler:
    """Turns raw records into what a TableWriter takes. Pure but for the schemas it asks for."""

    def __init__(self, shapes: Shapes, log: bool = False, tolerant: bool = False) -> None:
        """With `log` every change is a row of its own; `tolerant` sets aside what cannot be decoded."""
        self._shapes = shapes
        self._log = log
        self._tolerant = tolerant

    def build(self, raw: pa.Table, ledger: Mapping[Partition, int], batch_id: int) -> SinkBatch:
        """`raw` has topic, partition, offset, key, value, headers; rows below the ledger are replays and dropped."""
        tables: list[TableBatch] = []
        offsets: dict[Partition, tuple[int, int]] = {}
        applied: dict[Partition, tuple[bytes, int]] = {}
        letters: list[DeadLetter] = []
        times: dict[str, list[tuple[Any, Any]]] = {}
        for topic in self._topics(raw, ledger, offsets):
            try:
                built: _Built | None = self._topic(topic)
            except CdcError as exc:
                if not self._tolerant or exc.code not in dead.CODES:
                    raise
                built, found = dead.rescue(topic, self._shapes, exc, self._topic)
                letters += found
            if built is not None:
                tables += built[0]
                applied.update(built[1])
                times[topic.name] = [built[2]]
        return SinkBatch(tables, offsets, batch_id, applied, letters, moments=times)

    def _topic(self, topic: Topic) -> _Built:
        import numpy as np

        for row in np.flatnonzero(topic.schema < 0)[:1]:
            raise unframed("value", topic.value[int(row)].as_py(), topic.where(int(row)))
        decoded = self._decode(topic)
        # Before tombstones get the place of another record.
        applied, pairs = moments.applied(topic, decoded), moments.committed(decoded)
        return self._tables(topic, decoded), applied, pairs

    def _topics(
        self, raw: pa.Table, ledger: Mapping[Partition, int], offsets: dict[Partition, tuple[int, int]]
    ) -> Iterator[Topic]:
        import numpy as np
        import pyarrow as pa

        for name, found in arrays.by_topic(raw).items():
            partition, offset = arrays.one(found["partition"]).to_numpy(), arrays.one(found["offset"]).to_numpy()
            rows = np.flatnonzero(_new_rows(name, partition, offset, ledger, offsets))
            if not len(rows):
                continue
            rows = rows[np.lexsort((offset[rows], partition[rows]))]
            part = found if arrays.is_whole(rows, len(offset)) else found.take(pa.array(rows))
            value = arrays.one(part["value"])
            yield Topic(
                name,
                partition[rows],
                offset[rows],
                arrays.one(part["key"]),
                value,
                arrays.one(part["headers"]),
                arrays.frame_ids(value),
            )

    # -- decoding -----------------------------------------------------------------------------------------------------

    def _decode(self, topic: Topic) -> Decoded:
        import numpy as np
        import pyarrow.compute as pc

        n = len(topic.schema)
        keyless = topic.key.null_count == n
        unset, zero = np.full(n, -1, np.int64), np.zeros(n, np.int64)
        out = Decoded(unset, unset.copy(), np.full(n, "", "U1"), zero, zero.copy(), {})
        for id in np.unique(topic.schema[topic.schema > 0]).tolist():
            rows = np.flatnonzero(topic.schema == id)
            shape = self._shapes.value(id, topic.where(int(rows[0])))
            _ = shape.row
            plan = shape.keyless_plan if keyless or self._log else shape.plan
            found = _decode(plan, topic.value, rows, topic)
            source, op = found.field("source"), found.field("op")
            if source.type.num_fields < 3:
                raise CdcError(UNDECODABLE, "the source block has no position", where=topic.where(int(rows[0])))
            out.major[rows] = arrays.ints(source.field("commit_lsn"))
            out.minor[rows] = arrays.ints(source.field("tx_index")) << 32 | arrays.ints(source.field("tx_sub"))
            if source.type.get_field_index("ts_ms") >= 0:
                out.ts_ms[rows] = arrays.ints(source.field("ts_ms"))
            ops = pc.dictionary_encode(op)
            out.op[rows] = np.array(ops.dictionary.to_pylist(), "U1")[ops.indices.to_numpy()]
            out.local[rows] = np.arange(len(rows))
            out.arrays[id] = found
        return out

    # -- per table ----------------------------------------------------------------------------------------------------

    def _tables(self, topic: Topic, decoded: Decoded) -> list[TableBatch]:
        """One batch per run of one writer schema, in the order of positions."""
        import numpy as np
        import pyarrow as pa

        if self._log:
            used = np.flatnonzero((decoded.op != "m") & (decoded.op != ""))
            order = used[np.lexsort((decoded.minor[used], decoded.major[used]))]
            return [
                logs.append(topic, decoded, order[start:end], self._shapes.value(id, topic.where(0)), True)
                for id, start, end in arrays.runs(topic.schema[order])
            ]
        _place_tombstones(topic, decoded)
        used = np.flatnonzero((decoded.op != "m") & (decoded.op != ""))
        truncates = used[decoded.op[used] == "t"]
        floor: tuple[int, int] | None = None
        if len(truncates):
            floor = max(zip(decoded.major[truncates].tolist(), decoded.minor[truncates].tolist(), strict=True))
            major, minor = decoded.major[used], decoded.minor[used]
            later = (major > floor[0]) | ((major == floor[0]) & (minor > floor[1]))
            used = used[(later | (major < 0)) & (decoded.op[used] != "t")]
        order = used[np.lexsort((decoded.minor[used], decoded.major[used]))]
        runs = arrays.runs(topic.schema[order])
        out = [self._table(topic, decoded, order[start:end], id) for id, start, end in runs]
        if floor is not None:
            id = int(topic.schema[truncates[0]])
            shape = self._shapes.value(id, topic.where(int(truncates[0])))
            # Rows beside it know better: a topic that somebody mirrors under another name has no subject of its own.
            key = out[0].key if out else self._key_fields(topic)
            place = arrays.position(*map(arrays.lone, floor))[0].as_py()
            none = pa.table({})
            out.insert(0, TableBatch(topic.name, key, none, none, shape.row, shape.path, floor=place, changes=1))
        return out

    def _key_fields(self, topic: Topic) -> tuple[str, ...]:
        id = self._shapes.latest(subject(topic.name, "key"))
        return () if id is None else self._shapes.key(id, topic.where(0)).fields

    def _table(self, topic: Topic, decoded: Decoded, rows: np.ndarray[Any, Any], id: int) -> TableBatch:
        import pyarrow as pa

        if not id:
            latest = self._shapes.latest(subject(topic.name, "value"))
            if latest is None:
                raise CdcError(UNDECODABLE, "a tombstone of a table without a schema", where=topic.where(int(rows[0])))
            id = latest
        shape = self._shapes.value(id, topic.where(int(rows[0])))
        keys = topic.key.take(pa.array(rows))
        if keys.null_count == len(keys):
            return logs.append(topic, decoded, rows, shape, False)
        if keys.null_count:
            row = int(rows[keys.is_null().to_numpy(zero_copy_only=False).argmax()])
            raise CdcError(UNDECODABLE, "a record of a table with a key has none", where=topic.where(row))
        return self._keyed(topic, decoded, rows, shape, keys)

    def _keyed(
        self, topic: Topic, decoded: Decoded, rows: np.ndarray[Any, Any], shape: Shape, keys: pa.Array
    ) -> TableBatch:
        import numpy as np

        marks = headers.read(topic.headers, rows)
        key_shape = self._shapes.key(_last_id(keys, topic, rows), topic.where(int(rows[0])))
        for at in headers.without_frame(marks):
            raise CdcError(UNDECODABLE, "a header names a key without a frame", where=topic.where(int(rows[at])))
        codes, bodies = arrays.key_codes(keys, [marks.old, marks.new])
        unchanged = logs.unchanged(marks, shape, len(rows), topic, rows)
        is_delete = np.where(decoded.op[rows] == "d", reduce.DELETE, reduce.PUT).astype(np.int64)
        changes = reduce.Changes(
            is_delete, codes[0], decoded.major[rows], decoded.minor[rows], unchanged,
            codes[1] if marks.old is not None else None, codes[2] if marks.new is not None else None,
        )  # fmt: skip
        reduced = reduce.reduce(changes)
        view = _View(topic, decoded, rows, shape, key_shape, codes[0], bodies)
        upserts, flags = view.upserts(reduced.upserts)
        moved, moved_flags = view.upserts(reduced.moved, reduced.moved_by) if len(reduced.moved_by) else (None, {})
        return TableBatch(
            topic.name, key_shape.fields, upserts, view.deletes(reduced.deletes), shape.row, shape.path, flags,
            view.origins(reduced.upserts), moved, moved_flags, view.origins(reduced.moved), None, len(rows),
            reduce.fresh(changes, reduced.upserts, np.isin(decoded.op[rows], ("c", "r"))),
        )  # fmt: skip


@dataclass(slots=True)
class _View:
    """Builds Arrow tables from the reduced indexes of one run."""

    topic: Topic
    decoded: Decoded
    rows: np.ndarray[Any, Any]
    shape: Shape
    key_shape: KeyShape
    codes: np.ndarray[Any, Any]
    bodies: pa.Array

    def upserts(
        self, part: reduce.Rows, speakers: np.ndarray[Any, Any] | None = None
    ) -> tuple[pa.Table, dict[str, Any]]:
        """The rows and, per column, where it keeps the target's value. `speakers` (moved rows) give key and position."""
        import numpy as np
        import pyarrow as pa

        said = part.last if speakers is None else speakers
        after = self.decoded.arrays[self.shape.id].field("after") if self.shape.id in self.decoded.arrays else None
        columns: dict[str, Any] = {}
        flags: dict[str, Any] = {}
        same = bool((part.last == NONE).any())
        plain = self._local(part.last)
        for name in self.shape.fields:
            index = self._local(part.take[name]) if name in part.take else plain
            columns[name] = arrays.take(after, name, index)
            source = part.take.get(name, part.last)
            if (name in part.take or same) and bool((source == NONE).any()):
                flags[name] = source == NONE
        keys = self._key_columns(self.codes[said])
        if speakers is not None or any(name not in columns for name in self.key_shape.fields):
            columns.update(keys())
        flags = {name: flag for name, flag in flags.items() if name not in self.key_shape.fields}
        columns[KEY] = self.bodies.take(pa.array(self.codes[said]))
        columns[POSITION] = arrays.position(self.decoded.major[self.rows[said]], self.decoded.minor[self.rows[said]])
        return pa.table(columns), {name: np.asarray(flag) for name, flag in flags.items()}

    def deletes(self, index: np.ndarray[Any, Any]) -> pa.Table:
        import pyarrow as pa

        codes = self.codes[index]
        columns = self._key_columns(codes)()
        columns[KEY] = self.bodies.take(pa.array(codes))
        rows = self.rows[index]
        columns[POSITION] = arrays.position(self.decoded.major[rows], self.decoded.minor[rows])
        return pa.table(columns)

    def origins(self, part: reduce.Rows) -> pa.Table | None:
        """Old keys of rows that need columns of the old row; null where there is none."""
        import numpy as np
        import pyarrow as pa

        other = part.origin != NONE
        if not other.any():
            return None
        found = self._key_columns(part.origin[other])()
        found[KEY] = self.bodies.take(pa.array(part.origin[other]))
        spread = np.full(len(other), -1, np.int64)
        spread[other] = np.arange(int(other.sum()))
        index = pa.array(spread, mask=~other)
        return pa.table({name: column.take(index) for name, column in found.items()})

    def _local(self, index: np.ndarray[Any, Any]) -> Any:
        import pyarrow as pa

        none = index == NONE
        local = self.decoded.local[self.rows[index]]
        return pa.array(local, mask=none) if none.any() else pa.array(local)

    def _key_columns(self, codes: np.ndarray[Any, Any]) -> Any:
        """Decodes the keys only if it is called."""

        def columns() -> dict[str, Any]:
            import numpy as np
            import pyarrow as pa

            bodies = self.bodies.take(pa.array(codes))
            # Not one record's place: the key may stand in another one's header.
            first: dict[str, str | int] = {
                "topic": self.topic.name,
                "from_offset": int(self.topic.offset[self.rows[0]]),
            }
            try:
                found = decode(self.key_shape.plan, *arrays.slices(bodies), 0)
            except Undecodable as exc:
                raise CdcError(UNDECODABLE, "a key does not fit its schema", where=first) from exc
            assert len(found) == len(np.asarray(codes))
            return {name: found.field(name) for name in self.key_shape.fields}

        return columns


# -- pieces -------------------------------------------------------------------------------------------------------------


def _new_rows(
    topic: str,
    partition: Any,
    offset: Any,
    ledger: Mapping[Partition, int],
    offsets: dict[Partition, tuple[int, int]],
) -> Any:
    """Mask of the rows at or past the ledger, whose range it notes. Offsets have gaps: next is last + 1."""
    import numpy as np

    keep = np.zeros(len(partition), np.bool_)
    for number in np.unique(partition).tolist():
        mine = (partition == number) & (offset >= ledger.get((topic, number), 0))
        if mine.any():
            offsets[topic, number] = (int(offset[mine].min()), int(offset[mine].max()) + 1)
            keep |= mine
    return keep


def _decode(plan: Plan, values: Any, rows: Any, topic: Topic) -> Any:
    try:
        return decode(plan, *arrays.chosen(values, rows))
    except Undecodable as exc:
        where = topic.where(int(rows[exc.row]))
        raise CdcError(UNDECODABLE, "the value does not fit its schema", where=where) from exc


def _place_tombstones(topic: Topic, decoded: Decoded) -> None:
    """A tombstone behind its delete says nothing new. A lone one is a delete right after the key's last change here;
    it has no position if there is none: delete whatever the target holds."""
    import numpy as np

    for row in np.flatnonzero(topic.schema == 0).tolist():
        key = topic.key[row]
        if not key.is_valid:
            continue
        same = row > 0 and topic.partition[row - 1] == topic.partition[row]
        if same and decoded.op[row - 1] == "d" and topic.key[row - 1].equals(key):
            continue
        decoded.op[row] = "d"
        before = next((at for at in range(row - 1, -1, -1) if topic.key[at].equals(key)), None)
        if before is not None:
            decoded.major[row], decoded.minor[row] = decoded.major[before], decoded.minor[before]
            topic.schema[row] = topic.schema[before]


def _last_id(keys: Any, topic: Topic, rows: Any) -> int:
    ids = arrays.frame_ids(keys)
    for at in (ids <= 0).nonzero()[0][:1].tolist():
        raise unframed("key", keys[at].as_py(), topic.where(int(rows[at])))
    return int(ids[-1])
