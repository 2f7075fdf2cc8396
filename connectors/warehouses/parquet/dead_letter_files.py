"""Files of the dead letters of a Parquet warehouse, by topic, partition and offset. A sink and whoever sends its letters again
write them: each file is there whole or not at all, and one of them at a time looks and changes."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from cdcworker.connectors.api.table_batch import DeadLetter
from cdcworker.connectors.warehouses.dead_letters import headers_text
from cdcworker.connectors.warehouses.storage.files import Storage
from cdcworker.connectors.warehouses.table_state import OWN

if TYPE_CHECKING:
    from cdcworker.connectors.warehouses.dead_letters import Place


class DeadLetterFiles:
    """The files of one sink's dead letters."""

    def __init__(self, files: Storage, sink: str) -> None:
        self._sink = sink
        self._storage = files
        self._home = f"{OWN}/dead/{quote(sink, safe='')}"

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        with self._storage.alone(f"{self._home}/lock", {"sink": self._sink}):
            yield

    def path(self, place: Place) -> str:
        return f"{self._home}/{place[0]}/{place[1]}-{place[2]}.json"

    def places(self, topic: str = "") -> list[Place]:
        """Returns topic, partition and offset of each letter, in order; of all topics when none is named."""
        out = []
        for found in [topic] if topic else self._storage.folders(self._home):
            for name in self._storage.names(f"{self._home}/{found}", ".json"):
                partition, offset = map(int, name.removesuffix(".json").split("-"))
                out.append((found, partition, offset))
        return sorted(out)

    def has(self, topic: str) -> bool:
        return bool(self._storage.names(f"{self._home}/{topic}", ".json"))

    def exists(self, place: Place) -> bool:
        return self._storage.exists(self.path(place))

    def written_ms(self, place: Place) -> int:
        """Returns when a letter was written, for those of a version that did not store it."""
        return int(self._storage.modified(self.path(place)) * 1000)

    def read(self, place: Place) -> bytes:
        """Returns a letter as it is stored: the JSON of an object. FileNotFoundError where it was dropped."""
        return self._storage.read(self.path(place))

    def update(self, place: Place, change: Callable[[Mapping[str, Any]], Mapping[str, Any]]) -> None:
        """Changes a letter; one that was dropped meanwhile does not come back. To be called inside `alone`."""

        def changed(before: bytes | None) -> bytes | None:
            return None if before is None else json.dumps(change(json.loads(before))).encode()

        self._storage.update(self.path(place), changed)

    def remove(self, places: Sequence[Place]) -> None:
        """Removes letters; to be called inside `alone`."""
        self._storage.remove(self.path(place) for place in places)

    def add(self, letters: Sequence[DeadLetter]) -> None:
        """A file each, before the offsets pass them; the same name again when the batch comes again."""
        if not letters:
            return
        with self.alone():
            for topic in {letter.topic for letter in letters}:
                self._storage.make_folder(f"{self._home}/{topic}")
            for letter in letters:
                path = self.path((letter.topic, letter.partition, letter.offset))
                self._storage.replace(path, json.dumps(_said(letter)).encode())

    def forget(self, topics: Sequence[str], ends: Mapping[tuple[str, int], int]) -> None:
        """Removes letters at or behind the ledger's offsets: their records are read again."""
        if not self._ahead(topics, ends):
            return
        with self.alone():
            self.remove(self._ahead(topics, ends))

    def _ahead(self, topics: Sequence[str], ends: Mapping[tuple[str, int], int]) -> list[Place]:
        return [place for place in self.places() if place[0] in topics and place[2] >= ends.get(place[:2], 0)]


def _said(letter: DeadLetter) -> dict[str, Any]:
    said: dict[str, Any] = {"code": letter.code, "cause": letter.cause, "at_ms": time.time_ns() // 1_000_000}
    said["headers"] = headers_text(letter.headers)
    for name, content in (("key", letter.key), ("value", letter.value)):
        said[name] = None if content is None else content.hex()
    return said
