"""Turns the Kafka records of one micro-batch into batches per table: grouped by topic and schema, decoded, reduced to one change
per key."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cdcworker.connectors.api.table_batch import KEY, POSITION, DeadLetter, SinkBatch, TableBatch
from cdcworker.connectors.arrow import (
    array_ops,
    changelog,
    commit_times,
    exact_keys,
    headers,
    reduce,
    undecodable,
    versions,
)
from cdcworker.connectors.arrow.decode import DecodePlan, UndecodableRow, decode
from cdcworker.connectors.arrow.envelope_schemas import EnvelopeSchema, EnvelopeSchemas, KeySchema, unframed
from cdcworker.connectors.arrow.reduce import NONE
from cdcworker.connectors.arrow.topic_records import DecodedTopic, TopicRecords
from cdcworker.connectors.sink_errors import UNDECODABLE
from cdcworker.schemas.errors import CdcError
from cdcworker.schemas.topics import subject

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

Partition = tuple[str, int]
_Built = tuple[list[TableBatch], dict[Partition, tuple[bytes, int]], tuple[Any, Any]]


class Assembler:
    """Turns raw records into what a TableWriter takes. It does no I/O except looking up schemas."""

    def __init__(
        self, shapes: EnvelopeSchemas, log: bool = False, tolerant: bool = False, *, keeps_versions: bool = False
    ) -> None:
        """`log` makes every change a row of its own; `tolerant` sets records aside that cannot be decoded; `keeps_versions` makes
        of every change of a table with a key a version of its row."""
        self._shapes = shapes
        self._log = log
        self._keeps_versions = keeps_versions
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
                if not self._tolerant or exc.code not in undecodable.CODES:
                    raise
                built, found = undecodable.rescue(topic, self._shapes, exc, self._topic)
                letters += found
            if built is not None:
                tables += built[0]
                applied.update(built[1])
                times[topic.name] = [built[2]]
        return SinkBatch(tables, offsets, batch_id, applied, letters, moments=times)

    def _topic(self, topic: TopicRecords) -> _Built:
        import numpy as np

        for row in np.flatnonzero(topic.schema < 0)[:1]:
            raise unframed("value", topic.value[int(row)].as_py(), topic.where(int(row)))
        decoded = self._decode(topic)
        # Before tombstones get the place of another record.
        applied, pairs = commit_times.applied(topic, decoded), commit_times.committed(decoded)
        return self._tables(topic, decoded), applied, pairs

    def _topics(
        self, raw: pa.Table, ledger: Mapping[Partition, int], offsets: dict[Partition, tuple[int, int]]
    ) -> Iterator[TopicRecords]:
        import numpy as np
        import pyarrow as pa

        for name, found in array_ops.by_topic(raw).items():
            partition, offset = array_ops.one(found["partition"]).to_numpy(), array_ops.one(found["offset"]).to_numpy()
            rows = np.flatnonzero(_new_rows(name, partition, offset, ledger, offsets))
            if not len(rows):
                continue
            rows = rows[np.lexsort((offset[rows], partition[rows]))]
            part = found if array_ops.is_whole(rows, len(offset)) else found.take(pa.array(rows))
            value = array_ops.one(part["value"])
            yield TopicRecords(
                name,
                partition[rows],
                offset[rows],
                array_ops.one(part["key"]),
                value,
                array_ops.one(part["headers"]),
                array_ops.frame_ids(value),
            )

    # -- decoding -----------------------------------------------------------------------------------------------------

    def _decode(self, topic: TopicRecords) -> DecodedTopic:
        import numpy as np
        import pyarrow.compute as pc

        n = len(topic.schema)
        keyless = topic.key.null_count == n
        unset, zero = np.full(n, -1, np.int64), np.zeros(n, np.int64)
        out = DecodedTopic(unset, unset.copy(), np.full(n, "", "U1"), zero, zero.copy(), {})
        out.ts_us = zero.copy() if self._keeps_versions else None
        for id in np.unique(topic.schema[topic.schema > 0]).tolist():
            rows = np.flatnonzero(topic.schema == id)
            shape = self._shapes.value(id, topic.where(int(rows[0])))
            _ = shape.row
            plan = shape.keyless_plan if keyless or self._log else shape.plan
            if self._keeps_versions:
                plan = shape.keyless_version_plan if keyless else shape.version_plan
            found = _decode(plan, topic.value, rows, topic)
            source, op = found.field("source"), found.field("op")
            if source.type.num_fields < 3:
                raise CdcError(UNDECODABLE, "the source block has no position", where=topic.where(int(rows[0])))
            out.major[rows] = array_ops.ints(source.field("commit_lsn"))
            out.minor[rows] = array_ops.ints(source.field("tx_index")) << 32 | array_ops.ints(source.field("tx_sub"))
            if source.type.get_field_index("ts_ms") >= 0:
                out.ts_ms[rows] = array_ops.ints(source.field("ts_ms"))
            if out.ts_us is not None:
                out.ts_us[rows] = versions.times_us(source, out.ts_ms[rows], topic.where(int(rows[0])))
            ops = pc.dictionary_encode(op)
            out.op[rows] = np.array(ops.dictionary.to_pylist(), "U1")[ops.indices.to_numpy()]
            out.local[rows] = np.arange(len(rows))
            out.arrays[id] = found
        return out

    # -- per table ----------------------------------------------------------------------------------------------------

    def _tables(self, topic: TopicRecords, decoded: DecodedTopic) -> list[TableBatch]:
        """One batch per run of one writer schema, in the order of positions."""
        import numpy as np
        import pyarrow as pa

        if self._log:
            used = np.flatnonzero((decoded.op != "m") & (decoded.op != ""))
            order = used[np.lexsort((decoded.minor[used], decoded.major[used]))]
            return [
                self._logged(topic, decoded, order[start:end], id)
                for id, start, end in array_ops.runs(topic.schema[order])
            ]
        if self._keeps_versions and self._is_keyed(topic, decoded):
            return self._versions(topic, decoded)
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
        runs = array_ops.runs(topic.schema[order])
        out = [self._table(topic, decoded, order[start:end], id) for id, start, end in runs]
        if floor is not None:
            id = int(topic.schema[truncates[0]])
            shape = self._shapes.value(id, topic.where(int(truncates[0])))
            # The key of this batch's rows is preferred: a topic mirrored under another name has no key subject.
            key = out[0].key if out else self._key_fields(topic)
            place = array_ops.position(*map(array_ops.lone, floor))[0].as_py()
            none = pa.table({})
            out.insert(0, TableBatch(topic.name, key, none, none, shape.row, shape.path, floor=place, changes=1))
        return out

    def _is_keyed(self, topic: TopicRecords, decoded: DecodedTopic) -> bool:
        """Returns whether the table has a key. Where there is nothing but a TRUNCATE of a topic without a schema of its key,
        the target knows."""
        return topic.key.null_count < len(topic.key) or bool((decoded.op != "t").sum() == 0)

    def _versions(self, topic: TopicRecords, decoded: DecodedTopic) -> list[TableBatch]:
        """One batch per run of one writer schema, then tombstones that tell no position, then every TRUNCATE."""
        import numpy as np
        import pyarrow as pa

        versions.place_tombstones(topic, decoded)
        truncates = np.flatnonzero(decoded.op == "t")
        used = np.flatnonzero(np.isin(decoded.op, ("c", "r", "u", "d")))
        lone, used = used[decoded.major[used] < 0], used[decoded.major[used] >= 0]
        order = used[np.lexsort((decoded.minor[used], decoded.major[used]))]
        runs = array_ops.runs(topic.schema[order])
        out = [self._table(topic, decoded, order[start:end], id) for id, start, end in runs]
        if len(lone):
            out.append(self._table(topic, decoded, lone, runs[-1][0] if runs else 0))
        if len(truncates):
            shape = self._shapes.value(int(topic.schema[truncates[-1]]), topic.where(int(truncates[-1])))
            key, none = out[0].key if out else self._key_fields(topic), pa.table({})
            found = versions.truncates(decoded, truncates)
            out.append(
                TableBatch(
                    topic.name, key, none, none, shape.row, shape.path, floor=found[POSITION][-1].as_py(),
                    changes=len(truncates), versions=True, truncates=found,
                )
            )  # fmt: skip
        return out

    def _logged(self, topic: TopicRecords, decoded: DecodedTopic, rows: np.ndarray[Any, Any], id: int) -> TableBatch:
        shape = self._shapes.value(id, topic.where(0))
        exact = exact_keys.read(topic, rows, shape, self._shapes)
        return changelog.append(topic, decoded, rows, shape, True, exact)

    def _key_fields(self, topic: TopicRecords) -> tuple[str, ...]:
        id = self._shapes.latest(subject(topic.name, "key"))
        return () if id is None else self._shapes.key(id, topic.where(0)).fields

    def _table(self, topic: TopicRecords, decoded: DecodedTopic, rows: np.ndarray[Any, Any], id: int) -> TableBatch:
        import pyarrow as pa

        if not id:
            latest = self._shapes.latest(subject(topic.name, "value"))
            if latest is None:
                raise CdcError(UNDECODABLE, "a tombstone of a table without a schema", where=topic.where(int(rows[0])))
            id = latest
        shape = self._shapes.value(id, topic.where(int(rows[0])))
        keys = topic.key.take(pa.array(rows))
        if keys.null_count == len(keys):
            return changelog.append(topic, decoded, rows, shape, False)
        if keys.null_count:
            row = int(rows[keys.is_null().to_numpy(zero_copy_only=False).argmax()])
            raise CdcError(UNDECODABLE, "a record of a table with a key has none", where=topic.where(row))
        return self._keyed(topic, decoded, rows, shape, keys)

    def _keyed(
        self,
        topic: TopicRecords,
        decoded: DecodedTopic,
        rows: np.ndarray[Any, Any],
        shape: EnvelopeSchema,
        keys: pa.Array,
    ) -> TableBatch:
        import numpy as np

        marks = headers.read(topic.headers, rows)
        key_shape = self._shapes.key(_last_id(keys, topic, rows), topic.where(int(rows[0])))
        for at in headers.without_frame(marks):
            raise CdcError(UNDECODABLE, "a header names a key without a frame", where=topic.where(int(rows[at])))
        codes, bodies = array_ops.key_codes(keys, [marks.old, marks.new])
        unchanged = changelog.unchanged(marks, shape, len(rows), topic, rows)
        is_delete = np.where(decoded.op[rows] == "d", reduce.DELETE, reduce.PUT).astype(np.int64)
        changes = reduce.TableChanges(
            is_delete, codes[0], decoded.major[rows], decoded.minor[rows], unchanged,
            codes[1] if marks.old is not None else None, codes[2] if marks.new is not None else None,
        )  # fmt: skip
        view = _View(topic, decoded, rows, shape, key_shape, codes[0], bodies)
        if self._keeps_versions:
            return view.versions(changes)
        reduced = reduce.reduce(changes)
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

    topic: TopicRecords
    decoded: DecodedTopic
    rows: np.ndarray[Any, Any]
    shape: EnvelopeSchema
    key_shape: KeySchema
    codes: np.ndarray[Any, Any]
    bodies: pa.Array

    def upserts(
        self, part: reduce.RowSelection, moved_by: np.ndarray[Any, Any] | None = None
    ) -> tuple[pa.Table, dict[str, Any]]:
        """Returns the rows, and per column the mask of rows that keep the target's value. `moved_by`: the changes that
        give moved rows their key and position."""
        import numpy as np
        import pyarrow as pa

        changes = part.last if moved_by is None else moved_by
        after = self.decoded.arrays[self.shape.id].field("after") if self.shape.id in self.decoded.arrays else None
        columns: dict[str, Any] = {}
        flags: dict[str, Any] = {}
        same = bool((part.last == NONE).any())
        plain = self._local(part.last)
        for name in self.shape.fields:
            index = self._local(part.take[name]) if name in part.take else plain
            columns[name] = array_ops.take(after, name, index)
            source = part.take.get(name, part.last)
            if (name in part.take or same) and bool((source == NONE).any()):
                flags[name] = source == NONE
        keys = self._key_columns(self.codes[changes])
        in_key = self.key_shape.fields
        if moved_by is not None or any(name not in columns or name in self.shape.bounded for name in in_key):
            columns.update(keys())
        flags = {name: flag for name, flag in flags.items() if name not in self.key_shape.fields}
        columns[KEY] = self.bodies.take(pa.array(self.codes[changes]))
        columns[POSITION] = array_ops.position(
            self.decoded.major[self.rows[changes]], self.decoded.minor[self.rows[changes]]
        )
        return pa.table(columns), {name: np.asarray(flag) for name, flag in flags.items()}

    def versions(self, changes: reduce.TableChanges) -> TableBatch:
        import numpy as np

        op = self.decoded.op[self.rows]
        found = versions.of_changes(changes, np.isin(op, ("c", "r")), op == "r")
        places = versions.places_of(self.decoded, self.rows)
        upserts, flags = self.upserts(found.puts)
        return TableBatch(
            self.topic.name, self.key_shape.fields, versions.with_versions(upserts, found, places),
            versions.with_times(self.deletes(found.deletes), found, places), self.shape.row, self.shape.path, flags,
            self.origins(found.puts), changes=len(self.rows), fresh=found.fresh, versions=True,
        )  # fmt: skip

    def deletes(self, index: np.ndarray[Any, Any]) -> pa.Table:
        import pyarrow as pa

        codes = self.codes[index]
        columns = self._key_columns(codes)()
        columns[KEY] = self.bodies.take(pa.array(codes))
        rows = self.rows[index]
        columns[POSITION] = array_ops.position(self.decoded.major[rows], self.decoded.minor[rows])
        return pa.table(columns)

    def origins(self, part: reduce.RowSelection) -> pa.Table | None:
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
                found = exact_keys.columns_of(self.key_shape, self.shape, bodies, self.key_shape.fields)
            except UndecodableRow as exc:
                raise CdcError(UNDECODABLE, "a key does not fit its schema", where=first) from exc
            assert all(len(column) == len(np.asarray(codes)) for column in found.values())
            return found

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


def _decode(plan: DecodePlan, values: Any, rows: Any, topic: TopicRecords) -> Any:
    try:
        return decode(plan, *array_ops.chosen(values, rows))
    except UndecodableRow as exc:
        where = topic.where(int(rows[exc.row]))
        raise CdcError(UNDECODABLE, "the value does not fit its schema", where=where) from exc


def _place_tombstones(topic: TopicRecords, decoded: DecodedTopic) -> None:
    """Ignores a tombstone right after its delete. Any other one becomes a delete just after the key's last change in this
    batch, or without a position if there is none."""
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


def _last_id(keys: Any, topic: TopicRecords, rows: Any) -> int:
    ids = array_ops.frame_ids(keys)
    for at in (ids <= 0).nonzero()[0][:1].tolist():
        raise unframed("key", keys[at].as_py(), topic.where(int(rows[at])))
    return int(ids[-1])
