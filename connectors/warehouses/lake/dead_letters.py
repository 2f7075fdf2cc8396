"""Dead letters of a lake: rows of a table of the sink's own, and tables that are written beside their sink."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from cdcworker.connectors.api.table_batch import SinkBatch, TableBatch
from cdcworker.connectors.sink_errors import LEDGER_MOVED, SCHEMA_REFUSED
from cdcworker.connectors.warehouses import target_columns
from cdcworker.connectors.warehouses.dead_letters import BYTES_MAX, ROWLESS, Failed, Place, StoredLetter, headers_of
from cdcworker.connectors.warehouses.lake import statements
from cdcworker.connectors.warehouses.lake.affected_rows import AffectedRows, AppliedRows, read_arrow
from cdcworker.connectors.warehouses.lake.side_tables import letters_place
from cdcworker.connectors.warehouses.lake.tables import LakeName, TableVersion
from cdcworker.connectors.warehouses.lake.writer import LakeWriter
from cdcworker.connectors.warehouses.offline_redrive import Listed, OfflineLetters
from cdcworker.connectors.warehouses.table_state import Manifest, moved
from cdcworker.schemas.errors import CdcError

if TYPE_CHECKING:
    import pyarrow as pa
    from cdcworker.connectors.warehouses.column_changes import Where
    from pyspark.sql import SparkSession

VIEW: Final = "cdc_letters"
TRIES: Final = 4
_ORDER: Final = "ORDER BY topic, partition, offset"


class LakeOfflineTables(LakeWriter):
    """Writes to the tables of a sink that goes on, and to its letters."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._dry_run = False
        self._written = 0
        self.letters = OfflineLetters(LakeLetters(self), self, self._output.versions)

    def state(self, topic: str) -> Manifest | None:
        with self._translated():
            found = self._beside(topic)
            return None if found is None else found[1].state

    def put(
        self, state: Manifest, parts: Sequence[TableBatch], letters: tuple[tuple[int, int], ...], dry_run: bool
    ) -> int:
        with self._translated():
            beside = self._beside(state.topic)
            if beside is None or beside[1].state != state:
                raise moved(state)
            place, found = beside
            found.state = replace(state, redriven=letters)
            self._epoch, self._dry_run = state.epoch, dry_run
            self._written = sum(part.upserts.num_rows for part in parts if not part.key)
            with contextlib.suppress(_Undone):
                self._write(self._spark(), place, found, parts, SinkBatch([], {}, 0))
            return self._written

    def _beside(self, topic: str) -> tuple[LakeName, TableVersion] | None:
        if topic not in self._places:
            self._places.update({found.state.topic: place for place, found in self._mine() if found.state is not None})
        place = self._places.get(topic)
        found = None if place is None else self._tables.load(place)
        return None if place is None or found is None or found.state is None else (place, found)

    def _shaped(
        self, session: SparkSession, place: LakeName, found: TableVersion, schema: pa.Schema, where: Where
    ) -> TableVersion:
        if found.state is not None and statements.room(found.state.arrow, schema):
            # A state between would say that the letters are in.
            text = "columns whose names change hands are the sink's own to rename"
            raise CdcError(SCHEMA_REFUSED, text, where=where)
        if found.state is not None and target_columns.gone(found.state.arrow, schema):
            raise CdcError(SCHEMA_REFUSED, "columns that the source dropped are the sink's own to drop", where=where)
        return found if self._dry_run else super()._shaped(session, place, found, schema, where)

    def _merged(self, session: SparkSession, place: LakeName, found: TableVersion, work: AffectedRows) -> AppliedRows:
        done = super()._merged(session, place, found, work)
        if done.orphans:
            raise CdcError(ROWLESS, "the row is not there", where={"table": ".".join(place)})
        self._written += done.written
        return done

    def _ready(self) -> None:
        if self._dry_run:
            raise _Undone

    # -- what letters ask for -----------------------------------------------------------------------------------------

    def letter_columns(self) -> Mapping[str, str]:
        """Returns the types of the columns of the table of dead letters; empty when there is no such table."""
        with self._translated():
            self._spark()
            found = self._tables.load(letters_place())
            return {} if found is None else found.columns

    def ask(self, query: str) -> list[dict[str, Any]]:
        """`{letters}` is their table."""
        with self._translated():
            rows = read_arrow(self._spark(), query.format(letters=self._tables.name(letters_place())))
            return list(rows.to_pylist())

    def tell(self, statement: str, rows: Any = None) -> None:
        """`{view}` are the rows. The sink may set more letters aside meanwhile."""
        for left in reversed(range(TRIES)):
            try:
                with self._translated():
                    session = self._spark()
                    view = "" if rows is None else self._stage.view(session, VIEW, rows)
                    session.sql(statement.format(letters=self._tables.name(letters_place()), view=view))
                return
            except CdcError as exc:
                if exc.code != LEDGER_MOVED or not left:
                    raise

    @property
    def sink(self) -> str:
        return self._sink


class _Undone(Exception):
    """Ends a step that was for looking only."""


class LakeLetters:
    """Rows of the letters' table that are of one sink."""

    def __init__(self, lake: LakeOfflineTables) -> None:
        self._lake = lake

    def _mine(self, topic: str = "") -> str:
        text = f"sink = {_literal(self._lake.sink)}"
        return f"{text} AND topic = {_literal(topic)}" if topic else text

    def listed(self, topic: str, after: Place, limit: int) -> tuple[int, list[Listed]]:
        columns = self._lake.letter_columns()
        if not columns:
            return 0, []
        (count,) = self._lake.ask(f"SELECT count(*) AS n FROM {{letters}} WHERE {self._mine(topic)}")
        at = "at_ms" if "at_ms" in columns else "0 AS at_ms"
        names = f"topic, partition, offset, code, cause, {at}, octet_length(key) AS k, octet_length(value) AS v"
        where = f"{self._mine(topic)} AND {_behind(after)}"
        query = f"SELECT {names} FROM {{letters}} WHERE {where} {_ORDER} LIMIT {limit}"
        rows = self._lake.ask(query) if limit else []
        order = ("topic", "partition", "offset", "code", "cause", "at_ms", "k", "v")
        return int(count["n"]), [_listed(*(row[name] for name in order)) for row in rows]

    def some(self, topic: str, after: Place, limit: int) -> list[StoredLetter]:
        columns = self._lake.letter_columns()
        if not columns:
            return []
        where = f"{self._mine(topic)} AND {_behind(after)}"
        (first,) = self._lake.ask(f"SELECT min(topic) AS topic FROM {{letters}} WHERE {where}")
        if first["topic"] is None:
            return []
        headers = "headers" if "headers" in columns else "CAST(NULL AS string) AS headers"
        size = "coalesce(octet_length(value), 0)"
        names = f"topic, partition, offset, key, value, {headers}, code, cause"
        names += f", sum({size}) OVER (ORDER BY partition, offset) - {size} AS before"
        where = f"{self._mine(first['topic'])} AND {_behind(after)}"
        some = f"SELECT {names} FROM {{letters}} WHERE {where} {_ORDER} LIMIT {limit}"
        return [_letter(row) for row in self._lake.ask(f"SELECT * FROM ({some}) WHERE before < {BYTES_MAX} {_ORDER}")]

    def there(self, places: Sequence[Place]) -> set[Place]:
        if not places:
            return set()
        where = f"{self._mine(places[0][0])} AND ({_any(places)})"
        rows = self._lake.ask(f"SELECT topic, partition, offset FROM {{letters}} WHERE {where}")
        return {(row["topic"], row["partition"], row["offset"]) for row in rows}

    def drop(self, places: Sequence[Place]) -> None:
        for topic, mine in itertools.groupby(sorted(places), key=lambda place: place[0]):
            self._lake.tell(f"DELETE FROM {{letters}} WHERE {self._mine(topic)} AND ({_any(list(mine))})")

    def note(self, failed: Sequence[Failed]) -> None:
        import pyarrow as pa

        if not failed:
            return
        names = ("topic", "partition", "offset", "code", "cause")
        rows = [(*letter.place, error.code, error.message) for letter, error in failed]
        columns = zip(names, zip(*rows, strict=True), strict=True)
        kinds = {"partition": pa.int32(), "offset": pa.int64()}
        table = pa.table({name: pa.array(column, kinds.get(name, pa.string())) for name, column in columns})
        same = " AND ".join(f"t.{name} = s.{name}" for name in names[:3])
        self._lake.tell(
            f"MERGE INTO {{letters}} t USING {{view}} s ON t.sink = {_literal(self._lake.sink)} AND {same}"
            " WHEN MATCHED THEN UPDATE SET t.code = s.code, t.cause = s.cause",
            table,
        )


def _literal(text: str) -> str:
    """Its braces are none of a pattern's."""
    return statements.literal(text).replace("{", "{{").replace("}", "}}")


def _any(places: Sequence[Place]) -> str:
    return " OR ".join(f"(partition = {partition} AND offset = {offset})" for _, partition, offset in places)


def _behind(after: Place) -> str:
    topic, partition, offset = _literal(after[0]), int(after[1]), int(after[2])
    later = f"partition > {partition} OR (partition = {partition} AND offset > {offset})"
    return f"(topic > {topic} OR (topic = {topic} AND ({later})))"


def _listed(*row: Any) -> Listed:
    topic, partition, offset, code, cause, at_ms, key, value = row
    return topic, partition, offset, code, cause, int(at_ms or 0), key, value


def _letter(row: Mapping[str, Any]) -> StoredLetter:
    pairs: Iterable[Sequence[str | None]] | None = None if row["headers"] is None else json.loads(row["headers"])
    headers = None if pairs is None else headers_of(pairs)
    return StoredLetter(
        *(row["topic"], row["partition"], row["offset"], row["key"], row["value"], headers),
        code=row["code"],
        cause=row["cause"],
    )
