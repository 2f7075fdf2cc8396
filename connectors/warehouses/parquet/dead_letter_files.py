"""Files of the dead letters of a Parquet warehouse, by topic, partition and offset. A sink and whoever sends its letters again
write them: each file is there whole or not at all, and one of them at a time looks and changes."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from cdcworker.connectors.api.table_batch import DeadLetter
from cdcworker.connectors.warehouses.dead_letters import headers_text
from cdcworker.connectors.warehouses.table_state import alone, sync_folder, write_synced

if TYPE_CHECKING:
    from cdcworker.connectors.warehouses.dead_letters import Place


class DeadLetterFiles:
    """The files of one sink's dead letters."""

    def __init__(self, root: Path, sink: str) -> None:
        self._sink = sink
        self._home = root / "_cdcworker" / "dead" / quote(sink, safe="")

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        self._home.mkdir(parents=True, exist_ok=True)
        with alone(self._home / "lock", {"sink": self._sink}):
            yield

    def path(self, place: Place) -> Path:
        return self._home / place[0] / f"{place[1]}-{place[2]}.json"

    def places(self, topic: str = "") -> list[Place]:
        """Returns topic, partition and offset of each letter, in order; of all topics when none is named."""
        out = []
        for path in self._home.glob("*/*.json"):
            if topic in ("", path.parent.name):
                partition, offset = map(int, path.stem.split("-"))
                out.append((path.parent.name, partition, offset))
        return sorted(out)

    def has(self, topic: str) -> bool:
        return any((self._home / topic).glob("*.json"))

    def read(self, place: Place) -> Mapping[str, Any]:
        found: Mapping[str, Any] = json.loads(self.path(place).read_text(encoding="utf-8"))
        return found

    def write(self, place: Place, said: Mapping[str, Any]) -> None:
        """Writes a letter; to be called inside `alone`."""
        path = self.path(place)
        scratch = path.with_suffix(".new")
        write_synced(scratch, json.dumps(said).encode())
        scratch.replace(path)

    def add(self, letters: Sequence[DeadLetter]) -> None:
        """A file each, before the offsets pass them; the same name again when the batch comes again."""
        if not letters:
            return
        with self.alone():
            for letter in letters:
                place = letter.topic, letter.partition, letter.offset
                self.path(place).parent.mkdir(exist_ok=True)
                self.write(place, _said(letter))
            for topic in {letter.topic for letter in letters}:
                sync_folder(self._home / topic)

    def forget(self, topics: Sequence[str], ends: Mapping[tuple[str, int], int]) -> None:
        """Removes letters at or behind the ledger's offsets: their records are read again."""
        if not self._ahead(topics, ends):
            return
        with self.alone():
            for place in self._ahead(topics, ends):
                self.path(place).unlink()

    def _ahead(self, topics: Sequence[str], ends: Mapping[tuple[str, int], int]) -> list[Place]:
        found = self.places() if self._home.exists() else ()
        return [place for place in found if place[0] in topics and place[2] >= ends.get(place[:2], 0)]


def _said(letter: DeadLetter) -> dict[str, Any]:
    said: dict[str, Any] = {"code": letter.code, "cause": letter.cause, "at_ms": time.time_ns() // 1_000_000}
    said["headers"] = headers_text(letter.headers)
    for name, content in (("key", letter.key), ("value", letter.value)):
        said[name] = None if content is None else content.hex()
    return said
