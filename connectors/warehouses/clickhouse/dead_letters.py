"""Dead letters of a ClickHouse warehouse: rows of a table of the sink's own, and tables that are written beside their sink."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from cdcworker.connectors.api.table_batch import TableBatch
from cdcworker.connectors.sink_errors import SCHEMA_REFUSED
from cdcworker.connectors.warehouses.clickhouse.client import Client
from cdcworker.connectors.warehouses.clickhouse.ledger import LETTERS, ClickHouseLedger
from cdcworker.connectors.warehouses.clickhouse.tables import TablePlace, literal
from cdcworker.connectors.warehouses.clickhouse.writer import ClickHouseWriter, OpenTable
from cdcworker.connectors.warehouses.dead_letters import BYTES_MAX, ROWLESS, Failed, StoredLetter, headers_of
from cdcworker.connectors.warehouses.dead_letters import Place as LetterPlace
from cdcworker.connectors.warehouses.offline_redrive import Listed, OfflineLetters
from cdcworker.connectors.warehouses.table_state import Manifest, moved
from cdcworker.connectors.warehouses.target_columns import OutputForm
from cdcworker.schemas.errors import CdcError

if TYPE_CHECKING:
    import pyarrow as pa

_ORDER = "ORDER BY topic, partition, offset"


class ClickHouseLetters:
    """Rows of the letters' table that are of one sink."""

    def __init__(self, client: Client, sink: str) -> None:
        self._client = client
        self._sink = sink
        self._ledger = ClickHouseLedger(client, sink)

    def listed(self, topic: str, after: LetterPlace, limit: int) -> tuple[int, list[Listed]]:
        if not self._ledger.is_there():
            return 0, []
        count = self._ask(f"SELECT count() AS n FROM {LETTERS} FINAL WHERE {self._mine(topic)}")
        names = "topic, partition, offset, code, cause, at_ms, length(key) AS k, length(value) AS v"
        where = f"{self._mine(topic)} AND {_behind(after)}"
        rows = self._ask(f"SELECT {names} FROM {LETTERS} FINAL WHERE {where} {_ORDER} LIMIT {limit}") if limit else []
        order = ("topic", "partition", "offset", "code", "cause", "at_ms", "k", "v")
        return int(count[0]["n"]), [_listed(*(row[name] for name in order)) for row in rows]

    def some(self, topic: str, after: LetterPlace, limit: int) -> list[StoredLetter]:
        if not self._ledger.is_there():
            return []
        where = f"{self._mine(topic)} AND {_behind(after)}"
        names = "topic, partition, offset, key, value, headers, code, cause, coalesce(length(value), 0) AS size"
        first = f"SELECT min(topic) FROM {LETTERS} FINAL WHERE {where}"
        rows = self._ask(
            f"SELECT {names} FROM {LETTERS} FINAL WHERE {where} AND topic = ({first}) {_ORDER} LIMIT {limit}"
        )
        out, left = [], BYTES_MAX
        for row in rows:
            if left <= 0:
                break
            left -= int(row["size"])
            out.append(_letter(row))
        return out

    def there(self, places: Sequence[LetterPlace]) -> set[LetterPlace]:
        if not places:
            return set()
        rows = self._ask(
            f"SELECT topic, partition, offset FROM {LETTERS} FINAL WHERE {self._mine()} AND {_any(places)}"
        )
        return {(row["topic"].decode(), row["partition"], row["offset"]) for row in rows}

    def drop(self, places: Sequence[LetterPlace]) -> None:
        if places:
            self._client.do(f"DELETE FROM {LETTERS} WHERE {self._mine()} AND {_any(places)}")

    def note(self, failed: Sequence[Failed]) -> None:
        for letter, error in failed:
            sets = f"{literal(error.code)} AS code, {literal(error.message)} AS cause, version + 1 AS version"
            self._client.do(
                f"INSERT INTO {LETTERS} SELECT * REPLACE({sets}) FROM {LETTERS} FINAL"
                f" WHERE {self._mine()} AND {_any([letter.place])}"
            )

    def _ask(self, query: str) -> list[dict[str, Any]]:
        return list(self._client.ask(query).to_pylist())

    def _mine(self, topic: str = "") -> str:
        text = f"sink = {literal(self._sink)}"
        return f"{text} AND topic = {literal(topic)}" if topic else text


class ClickHouseOfflineTables(ClickHouseWriter):
    """Writes to the tables of a sink that goes on."""

    _looks = True

    def __init__(self, client: Client, sink: str, *, schema: str = "", output: OutputForm | None = None) -> None:
        super().__init__(client, sink, schema=schema, output=output)
        self._is_dry = False

    def state(self, topic: str) -> Manifest | None:
        found = self._ledger.states([topic]).get(topic) if self._ledger.is_there() else None
        return None if found is None else found[1]

    def put(
        self, state: Manifest, parts: Sequence[TableBatch], letters: tuple[tuple[int, int], ...], dry_run: bool
    ) -> int:
        """Rows that were put in by somebody who died before the state was stored are put in once more, and are the same."""
        place, now = self._ledger.states([state.topic])[state.topic]
        if now != state:
            raise moved(state)
        self._shaped.clear()
        self._is_dry = dry_run
        table = OpenTable(place, replace(state, redriven=letters), state.arrow)
        self._parts(table, parts)
        if not dry_run:
            assert table.schema is not None
            self._ledger.commit([(place, table.state)], state.epoch)
        return table.written

    def _shape(self, table: OpenTable, schema: pa.Schema, part: TableBatch, where: Mapping[str, str | int]) -> None:
        known = self._shaped.get(table.state.topic) or table.schema
        if known is None or not known.equals(schema, check_metadata=False):
            raise CdcError(SCHEMA_REFUSED, "columns are the sink's own to change", where=where)

    def _write(self, table: OpenTable, rows: pa.Table, numbers: Mapping[str, Any]) -> None:
        if table.orphans:
            raise CdcError(ROWLESS, "the row is not there", where={"topic": table.state.topic})
        super()._write(table, rows, numbers)

    def _insert(self, place: TablePlace, rows: pa.Table, numbers: Mapping[str, Any]) -> None:
        if not self._is_dry:
            super()._insert(place, rows, numbers)


def letters_of(client: Client, sink: str, schema: str, output: OutputForm) -> OfflineLetters:
    """Returns the dead letters of a sink with the tables that they go to."""
    tables = ClickHouseOfflineTables(client, sink, schema=schema, output=output)
    return OfflineLetters(ClickHouseLetters(client, sink), tables)


def _any(places: Iterable[LetterPlace]) -> str:
    some = ", ".join(f"({literal(topic)}, {partition}, {offset})" for topic, partition, offset in places)
    return f"(topic, partition, offset) IN ({some})"


def _behind(after: LetterPlace) -> str:
    topic, partition, offset = literal(after[0]), int(after[1]), int(after[2])
    return f"(topic, partition, offset) > ({topic}, {partition}, {offset})"


def _listed(*row: Any) -> Listed:
    topic, partition, offset, code, cause, at_ms, key, value = row
    return topic.decode(), partition, offset, code.decode(), cause.decode(), int(at_ms), key, value


def _letter(row: Mapping[str, Any]) -> StoredLetter:
    return StoredLetter(
        *(row["topic"].decode(), row["partition"], row["offset"], row["key"], row["value"]),
        headers_of(json.loads(row["headers"])) if row["headers"] else None,
        code=row["code"].decode(),
        cause=row["cause"].decode(),
    )
