"""Dead letters of a Parquet warehouse: a file each, and tables that are written beside their sink."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from cdcworker.connectors.api.table_batch import SinkBatch, TableBatch
from cdcworker.connectors.warehouses import target_columns
from cdcworker.connectors.warehouses.dead_letters import BYTES_MAX, ROWLESS, Place, StoredLetter, headers_of
from cdcworker.connectors.warehouses.offline_redrive import Failed, Listed, OfflineLetters
from cdcworker.connectors.warehouses.parquet.dead_letter_files import DeadLetterFiles
from cdcworker.connectors.warehouses.parquet.writer import OpenTable, ParquetWriter
from cdcworker.connectors.warehouses.table_state import BESIDE, Manifest, begun, moved
from cdcworker.schemas.errors import CdcError


class ParquetLetters:
    """Files of letters."""

    def __init__(self, root: str, sink: str) -> None:
        self._files = DeadLetterFiles(Path(root), sink)

    def listed(self, topic: str, after: Place, limit: int) -> tuple[int, list[Listed]]:
        places = self._files.places(topic)
        out = []
        for place in [place for place in places if place > after][:limit]:
            with contextlib.suppress(FileNotFoundError):
                said = self._files.read(place)
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
                left -= self._files.path(place).stat().st_size if out else 0
                if left < 0:
                    break
                said = self._files.read(place)
                key, value = (None if said[name] is None else bytes.fromhex(said[name]) for name in ("key", "value"))
                headers = headers_of(json.loads(said["headers"])) if "headers" in said else None
                out.append(StoredLetter(*place, key, value, headers, said["code"], said["cause"]))
        return out

    def there(self, places: Sequence[Place]) -> set[Place]:
        return {place for place in places if self._files.path(place).exists()}

    def drop(self, places: Sequence[Place]) -> None:
        if places:
            with self._files.alone():
                for place in places:
                    self._files.path(place).unlink(missing_ok=True)

    def note(self, failed: Sequence[Failed]) -> None:
        for letter, error in failed:
            # A letter that was dropped meanwhile does not come back.
            with self._files.alone(), contextlib.suppress(FileNotFoundError):
                said = self._files.read(letter.place)
                self._files.write(letter.place, {**said, "code": error.code, "cause": error.message})

    def _at_ms(self, place: Place, said: Mapping[str, Any]) -> int:
        return int(said.get("at_ms") or self._files.path(place).stat().st_mtime * 1000)


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
            for file in table.added:
                (manifests.folder / file.path).unlink(missing_ok=True)
        return table.written


def letters_of(root: str, sink: str, output: target_columns.OutputForm, buckets: int = 8) -> OfflineLetters:
    return OfflineLetters(ParquetLetters(root, sink), ParquetOfflineTables(root, sink, output=output, buckets=buckets))
