"""Dead letters of a Parquet warehouse: a file each, and tables that are written beside their sink."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from cdcworker.connectors.api.table_batch import SinkBatch, TableBatch
from cdcworker.connectors.warehouses import target_columns
from cdcworker.connectors.warehouses.dead_letters import BYTES_MAX, ROWLESS, Failed, Place, StoredLetter, headers_of
from cdcworker.connectors.warehouses.offline_redrive import Listed, OfflineLetters
from cdcworker.connectors.warehouses.parquet.dead_letter_files import DeadLetterFiles
from cdcworker.connectors.warehouses.parquet.writer import OpenTable, ParquetWriter
from cdcworker.connectors.warehouses.storage.files import Storage
from cdcworker.connectors.warehouses.table_state import BESIDE, Manifest, begun, moved
from cdcworker.schemas.errors import CdcError


class ParquetLetters:
    """Files of letters."""

    def __init__(self, files: Storage, sink: str) -> None:
        self._files = DeadLetterFiles(files, sink)

    def listed(self, topic: str, after: Place, limit: int) -> tuple[int, list[Listed]]:
        places = self._files.places(topic)
        out = []
        for place in [place for place in places if place > after][:limit]:
            with contextlib.suppress(FileNotFoundError):
                said = json.loads(self._files.read(place))
                sizes = [None if said[name] is None else len(said[name]) // 2 for name in ("key", "value")]
                out.append((*place, said["code"], said["cause"], self._at_ms(place, said), sizes[0], sizes[1]))
        return len(places), out

    def some(self, topic: str, after: Place, limit: int) -> list[StoredLetter]:
        places = [place for place in self._files.places(topic) if place > after]
        first = places[0][0] if places else ""
        out: list[StoredLetter] = []
        left = 2 * BYTES_MAX
        for place in [place for place in places if place[0] == first][:limit]:
            with contextlib.suppress(FileNotFoundError):
                text = self._files.read(place)
                left -= len(text) if out else 0
                if left < 0:
                    break
                said = json.loads(text)
                key, value = (None if said[name] is None else bytes.fromhex(said[name]) for name in ("key", "value"))
                headers = headers_of(json.loads(said["headers"])) if "headers" in said else None
                out.append(StoredLetter(*place, key, value, headers, said["code"], said["cause"]))
        return out

    def there(self, places: Sequence[Place]) -> set[Place]:
        return {place for place in places if self._files.exists(place)}

    def drop(self, places: Sequence[Place]) -> None:
        if places:
            with self._files.alone():
                self._files.remove(places)

    def note(self, failed: Sequence[Failed]) -> None:
        for letter, error in failed:
            why = {"code": error.code, "cause": error.message}
            with self._files.alone():
                self._files.update(letter.place, lambda said, why=why: {**said, **why})  # type: ignore[misc]

    def _at_ms(self, place: Place, said: Mapping[str, Any]) -> int:
        return int(said.get("at_ms") or self._files.written_ms(place))


class ParquetOfflineTables(ParquetWriter):
    """Writes to the tables of a sink that goes on."""

    _prefix = BESIDE

    def state(self, topic: str) -> Manifest | None:
        found = list(self._of(topic))
        return next((state for _, state in [*begun(found).values(), *found]), None)

    def put(
        self, state: Manifest, parts: Sequence[TableBatch], letters: tuple[tuple[int, int], ...], dry_run: bool
    ) -> int:
        manifests = next((found for found, newest in self._of(state.topic) if newest == state), None)
        if manifests is None:
            raise moved(state)
        table = OpenTable(manifests, replace(state, redriven=letters), state.arrow)
        try:
            with manifests.writing(state):
                self._parts(table, parts)
            if table.orphans:
                raise CdcError(ROWLESS, "the row is not there", where={"topic": state.topic})
            if not dry_run:
                self._commit(table, SinkBatch([], {}, 0))
                table.added.clear()
        finally:
            manifests.files.remove(manifests.at(file.path) for file in table.added)
        return table.written


def letters_of(files: Storage, sink: str, output: target_columns.OutputForm, buckets: int = 8) -> OfflineLetters:
    tables = ParquetOfflineTables(files, sink, output=output, buckets=buckets)
    return OfflineLetters(ParquetLetters(files, sink), tables, output.versions)
