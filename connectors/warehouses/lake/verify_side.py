"""A lake as the target of a comparison. Spark's own processes read its files, make the texts and their checksums, and only those
leave them; keys of rows where something differs."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from cdcworker.connectors.verify.canonical_text import VerifiedColumn
from cdcworker.connectors.verify.client_hashes import hash_of, parts_of, short_hash
from cdcworker.connectors.verify.databases import (
    MODULUS,
    POLL_S,
    KeyState,
    LedgerGoal,
    SpanSum,
    VerifyLimits,
    states_of,
    sums_of,
)
from cdcworker.connectors.verify.errors import BEHIND
from cdcworker.connectors.verify.lake_texts import LAKE, TEXTS
from cdcworker.connectors.verify.plan import ComparisonPlan, Key, SideTable
from cdcworker.connectors.verify.sql import KeySpan
from cdcworker.connectors.warehouses.lake.statements import plain_name
from cdcworker.connectors.warehouses.lake.tables import LakeName, TableVersion, Work
from cdcworker.connectors.warehouses.target_columns import position_of
from cdcworker.schemas.errors import CdcError

if TYPE_CHECKING:
    import pyarrow as pa

SUMS: Final = "part int, n bigint, total string"
ROWS: Final = "k array<string>, h string, v string, c array<string>"


class LakeReader(Protocol):
    """What is read: a sink's `LakeWriter` with a session, which writes nothing, or the files of a Parquet warehouse."""

    def place(self, schema: str, table: str) -> LakeName: ...

    def found(self) -> Iterable[tuple[LakeName, TableVersion]]: ...

    def read(
        self, place: LakeName, found: TableVersion, names: Sequence[str], work: Work, columns: str
    ) -> pa.Table: ...

    def close(self) -> None: ...


class LakeTarget:
    keys_at_once: Final = 1 << 20
    """They are looked for in one pass over the table, however many there are."""

    def __init__(self, writer: LakeReader, sink: str) -> None:
        self._writer = writer
        self._sink = sink
        self._found: dict[LakeName, TableVersion] = {}

    def prepare(self, limits: VerifyLimits) -> None:
        """One task at a time: it is one core of Spark that compares."""

    def table(self, schema: str, name: str) -> SideTable | None:
        place = self._writer.place(schema, name)
        # All of them are looked at at once.
        self._found = self._found or dict(self._writer.found())
        found = self._found.get(place)
        if found is None or found.state is None or found.state.arrow is None:
            return None
        columns = tuple(VerifiedColumn(name, kind, LAKE, declared=kind) for name, kind in found.columns.items())
        return SideTable(
            plain_name(place.schema),
            plain_name(place.table),
            columns,
            found.state.key,
            0 if found.empty else 1,
            position=position_of(found.state.arrow),
        )

    def begin(self, goal: LedgerGoal, deadline: float) -> None:
        """Each table as it was at one moment between now and the goal's being reached."""
        while True:
            began = time.monotonic()
            self._found = dict(self._writer.found())
            ledger = self.ledger()
            if goal.reached(ledger):
                return
            if time.monotonic() > deadline:
                raise CdcError(BEHIND, goal.lagging(ledger), where={"sink": self._sink})
            # Of a large lake one look takes long, and it is the sink that has to come along.
            time.sleep(max(POLL_S, time.monotonic() - began))

    def ledger(self) -> Mapping[tuple[str, int], int]:
        states = [found.state for found in self._found.values() if found.state is not None]
        return {(state.topic, int(number)): at for state in states for number, at in state.offsets.items()}

    def end(self) -> None:
        self._found = {}

    def close(self) -> None:
        self._writer.close()

    # -- reading ------------------------------------------------------------------------------------------------------

    def sums(self, plan: ComparisonPlan, span: KeySpan, chosen: Sequence[int] | None = None) -> Mapping[int, SpanSum]:
        return sums_of(self._ask(plan, TableReading.of(plan, span, chosen).sums, SUMS))

    def rows(self, plan: ComparisonPlan, span: KeySpan, chosen: Sequence[int]) -> Mapping[Key, KeyState]:
        return states_of(self._ask(plan, TableReading.of(plan, span, None, frozenset(chosen)).rows, ROWS))

    def rows_of(self, plan: ComparisonPlan, keys: Sequence[Key]) -> Mapping[Key, KeyState]:
        reading = TableReading.of(plan, KeySpan(), None, None, frozenset(map(tuple, keys)))
        return states_of(self._ask(plan, reading.rows, ROWS))

    def _ask(self, plan: ComparisonPlan, read: Work, columns: str) -> Iterator[tuple[Any, ...]]:
        assert plan.target is not None
        place, position = self._writer.place(plan.target.schema, plan.target.name), plan.target.position
        names = [*dict.fromkeys([*(item.target.name for item in plan.columns), *([position] if position else [])])]
        table = self._writer.read(place, self._found[place], names, read, columns)
        for batch in table.to_batches():
            yield from zip(*(batch.column(at).to_pylist() for at in range(batch.num_columns)), strict=True)


class RowsHere(ABC):
    """A side whose rows are read, and their texts made, in this process."""

    keys_at_once: Final = 1 << 20
    """They are looked for in one pass over the table, however many there are."""

    @abstractmethod
    def _batches(self, plan: ComparisonPlan) -> Iterator[pa.RecordBatch]:
        """Yields the columns of a comparison of all rows that count."""

    def sums(self, plan: ComparisonPlan, span: KeySpan, chosen: Sequence[int] | None = None) -> Mapping[int, SpanSum]:
        return sums_of(self._ask(plan, TableReading.of(plan, span, chosen).sums))

    def rows(self, plan: ComparisonPlan, span: KeySpan, chosen: Sequence[int]) -> Mapping[Key, KeyState]:
        return states_of(self._ask(plan, TableReading.of(plan, span, None, frozenset(chosen)).rows))

    def rows_of(self, plan: ComparisonPlan, keys: Sequence[Key]) -> Mapping[Key, KeyState]:
        reading = TableReading.of(plan, KeySpan(), None, None, frozenset(map(tuple, keys)))
        return states_of(self._ask(plan, reading.rows))

    def _ask(self, plan: ComparisonPlan, read: Work) -> Iterator[tuple[Any, ...]]:
        for batch in read(self._batches(plan)):
            yield from zip(*(batch.column(at).to_pylist() for at in range(batch.num_columns)), strict=True)


@dataclass(frozen=True)
class TableReading:
    """What Spark's processes do with the rows of a table: `texts` by column, the key's columns, and which rows are meant."""

    texts: tuple[tuple[str, str], ...]
    key: tuple[int, ...]
    coarse: int
    chosen: frozenset[int] | None = None
    """Coarse parts that are taken apart."""
    fine: frozenset[int] | None = None
    keys: frozenset[Key] | None = None
    position: str = ""
    """The column of positions."""

    @classmethod
    def of(
        cls, plan: ComparisonPlan, span: KeySpan, chosen: Sequence[int] | None, fine: Any = None, keys: Any = None
    ) -> TableReading:
        columns = tuple((item.target.name, item.text.target) for item in plan.columns)
        names = [item.name for item in plan.columns]
        places = tuple(names.index(item.name) for item in plan.key)
        position = plan.target.position if plan.target else ""
        return cls(columns, places, span.coarse, None if chosen is None else frozenset(chosen), fine, keys, position)

    def sums(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        rows, totals = defaultdict[int, int](int), defaultdict[int, int](int)
        for batch in batches:
            for key, texts, _ in self._texts(batch):
                part = parts_of(key, self.coarse)[0 if self.chosen is None else 1]
                rows[part] += 1
                totals[part] += hash_of(texts)
        parts = list(rows)
        yield pa.record_batch(
            {
                "part": pa.array(parts, pa.int32()),
                "n": pa.array([rows[part] for part in parts], pa.int64()),
                "total": pa.array([str(totals[part] % MODULUS) for part in parts], pa.string()),
            }
        )

    def rows(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for batch in batches:
            found: list[tuple[Any, ...]] = []
            for key, texts, position in self._texts(batch):
                short = [*map(short_hash, texts)] if self.keys else []
                found.append((list(key), str(hash_of(texts)), position, short))
            lists = pa.list_(pa.string())
            kinds = {"k": lists, "h": pa.string(), "v": pa.string(), "c": lists}
            yield pa.record_batch(
                {name: pa.array([row[at] for row in found], kind) for at, (name, kind) in enumerate(kinds.items())}
            )

    def _texts(self, batch: pa.RecordBatch) -> Iterator[tuple[Key, list[str | None], str]]:
        """Key, texts of all columns, and position of the rows that are meant."""
        import pyarrow as pa

        keys = list(zip(*(self._column(batch, at) for at in self.key), strict=True))
        places = [at for at, key in enumerate(keys) if self._means(key)]
        if len(places) < len(keys):
            batch = batch.take(pa.array(places, pa.int64()))
        columns = [self._column(batch, at) for at in range(len(self.texts))]
        found = batch.column(self.position).to_pylist() if self.position else [None] * batch.num_rows
        positions = ["" if value is None else value.hex() for value in found]
        for at, (place, position) in enumerate(zip(places, positions, strict=True)):
            yield keys[place], [column[at] for column in columns], position

    def _column(self, batch: pa.RecordBatch, at: int) -> list[str | None]:
        name, text = self.texts[at]
        make = TEXTS[text]
        return [None if value is None else make(value) for value in batch.column(name).to_pylist()]

    def _means(self, key: Key) -> bool:
        if self.keys is not None:
            return key in self.keys
        if self.chosen is None and self.fine is None:
            return True
        coarse, fine = parts_of(key, self.coarse)
        return (self.chosen is None or coarse in self.chosen) and (self.fine is None or fine in self.fine)
