"""Consistent sets of a Parquet warehouse: numbered files, each of which names for one position of the source the manifest of
every table. A number is taken by one writer only; readers take the tables as the newest one names them."""

from __future__ import annotations

import contextlib
import json
import logging
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from cdcworker.connectors.api.table_batch import SinkBatch, VisibleThrough
from cdcworker.connectors.api.table_writer import TargetRows
from cdcworker.connectors.sink_errors import FENCED, LEDGER_MOVED
from cdcworker.connectors.warehouses import consistent_sets
from cdcworker.connectors.warehouses.consistent_sets import Marks, PublishedSet, PublishedSets, SetMember
from cdcworker.connectors.warehouses.parquet.writer import ParquetWriter
from cdcworker.connectors.warehouses.storage.files import Storage
from cdcworker.connectors.warehouses.table_state import FOLDER, OWN, Manifest, Manifests, late, number_of, parse
from cdcworker.schemas.errors import CdcError
from cdcworker.schemas.failpoints import hit

if TYPE_CHECKING:
    from cdcworker.connectors.warehouses.parquet.writer import Epoch

log = logging.getLogger(__name__)

TRIES: Final = 5
KEPT: Final = 5
"""Sets whose manifests stay, for readers that have begun with them."""


@dataclass(frozen=True, slots=True)
class _Set:
    """One file. `sources` has per source its position and, by topic, folder and manifest of each table."""

    epoch: tuple[int, int] = (-1, -1)
    version: int = 0
    marks: Mapping[str, int] = field(default_factory=dict)
    sources: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def manifests(self) -> Iterator[tuple[str, int]]:
        """Topic and number of each."""
        for source in self.sources.values():
            for topic, table in source["tables"].items():
                yield topic, number_of(table["manifest"])


class ParquetSets(PublishedSets):
    """The consistent sets of one sink, in the folder `_cdcworker/sets/<sink>`."""

    def __init__(self, files: Storage, sink: str) -> None:
        super().__init__()
        self._storage = files
        self._sink = sink
        self._home = f"{OWN}/sets/{quote(sink, safe='')}"
        self._now = _Set()
        self._kept: list[_Set] = []

    @property
    def marks(self) -> Marks:
        pairs = [(name.partition(":"), at) for name, at in self._now.marks.items()]
        return {(topic, int(number)): at for (number, _, topic), at in pairs}

    @property
    def number(self) -> int:
        """The number of the newest set."""
        return self._now.version

    def versions(self, topic: str) -> set[int]:
        """Numbers of the manifests that a set which stays names."""
        return {number for found in self._kept for name, number in found.manifests if name == topic}

    def read(self) -> Mapping[str, PublishedSet]:
        """Returns the published set of each source as it is now."""
        for left in reversed(range(TRIES)):
            try:
                return self._shown(next(self._files(), _Set()))
            except FileNotFoundError:
                # So many sets have come meanwhile that its manifests are gone.
                if not left:
                    raise
        return {}

    def claim(self, epoch: Epoch) -> None:
        """Raises the epoch: from now on no task with an older one publishes. CdcError FENCED when there is a newer one."""
        self._kept = list(self._files())[:KEPT]
        self._now = self._kept[0] if self._kept else _Set()
        if self._now.epoch > epoch:
            raise self._newer()
        if self._now.epoch < epoch:
            self._commit(replace(self._now, epoch=epoch))
        self.shown = dict(self._shown(self._now, whole=False))

    def publish(self, epoch: Epoch, shown: Mapping[str, PublishedSet], marks: Marks) -> None:
        """Publishes the sets of several sources in one step; those of other sources stay."""
        made = {**self.shown, **shown}
        said = {**self._now.marks, **{f"{number}:{topic}": end for (topic, number), end in marks.items()}}
        hit("sink.before_publish")
        self._commit(_Set(epoch, self._now.version, said, {source: _told(item) for source, item in made.items()}))
        self.shown = made
        self.published = time.monotonic()

    def _commit(self, wanted: _Set) -> None:
        made = replace(wanted, version=self._now.version + 1)
        self._storage.make_folder(self._home)
        said = {"epoch": made.epoch, "marks": made.marks, "sources": made.sources, "at_ms": time.time_ns() // 1_000_000}
        path = self._path(made.version)
        try:
            self._storage.create(path, json.dumps(said).encode())
        except FileExistsError as exc:
            raise self._overtaken(made) from exc
        self._now = made
        self._kept = [made, *self._kept][:KEPT]
        if made.version % self._storage.commits_per_sweep == 0:
            numbers = map(number_of, self._names())
            self._storage.remove([self._path(number) for number in numbers if number <= made.version - KEPT])

    def _overtaken(self, mine: _Set) -> CdcError:
        newest = next(self._files(), mine)
        if newest.epoch > mine.epoch:
            return self._newer()
        if self._storage.is_late(self._path(mine.version)):
            self._kept = [newest, *self._kept][:KEPT]
            self._now = newest
            return late({"sink": self._sink})
        return CdcError(LEDGER_MOVED, "another task has published a set meanwhile", where={"sink": self._sink})

    def _newer(self) -> CdcError:
        return CdcError(FENCED, "a newer task publishes the sets of this sink", where={"sink": self._sink})

    # -- files --------------------------------------------------------------------------------------------------------

    def _path(self, number: int) -> str:
        return f"{self._home}/{number:012d}.json"

    def _names(self) -> list[str]:
        """The newest first."""
        return sorted(self._storage.names(self._home, ".json"), reverse=True)

    def _files(self) -> Iterator[_Set]:
        for name in self._names():
            with contextlib.suppress(FileNotFoundError):
                said = json.loads(self._storage.read(f"{self._home}/{name}"))
                yield _Set(tuple(said["epoch"]), number_of(name), said["marks"], said["sources"])

    def _shown(self, found: _Set, whole: bool = True) -> dict[str, PublishedSet]:
        """Not `whole`: without tables that were dropped, and may be there anew; the next set does not name them so."""
        out = {}
        for source, said in found.sources.items():
            members = {}
            for topic, table in said["tables"].items():
                try:
                    state = parse(self._storage.read(f"{table['folder']}/{table['manifest']}").decode())
                except FileNotFoundError:
                    if whole:
                        raise
                    log.warning("a table of the consistent set no longer exists topic=%s", topic)
                    continue
                schema, _, name = table["folder"].partition("/")
                members[topic] = SetMember((schema, name), state, state.version)
            out[source] = PublishedSet(
                VisibleThrough(said["position"], said["committed_ms"], tuple(said["left_out"])), members
            )
        return out


def _told(shown: PublishedSet) -> dict[str, Any]:
    tables = {
        topic: {"folder": "/".join(member.place), "manifest": f"{FOLDER}/{member.version:012d}.json"}
        for topic, member in shown.members.items()
    }
    through = shown.through
    return {
        "position": through.position,
        "committed_ms": through.ts_ms,
        "left_out": list(through.left_out),
        "tables": tables,
    }


class WholeParquetWriter(ParquetWriter):
    """A folder of which readers see whole transactions of the source, all tables at one position, by its sets."""

    def __init__(self, files: Storage, sink: str, task: int = 0, **more: Any) -> None:
        super().__init__(files, sink, task, **more)
        self._sets = ParquetSets(files, sink)
        self._places: dict[str, tuple[str, str]] = {}

    def _begin(self) -> None:
        self._sets.claim(self._epoch)

    def ledger(self) -> Mapping[tuple[str, int], int]:
        found = super().ledger()
        with self._reached():
            for manifests, state in self._mine():
                if self._folders.get(state.topic) == manifests.folder:
                    self._states[state.topic] = state
                    self._note(manifests, state)
        return {**found, **self._sets.marks}

    def through(self) -> Mapping[str, int]:
        return consistent_sets.through(self)

    def ahead(self) -> Mapping[str, int]:
        return consistent_sets.ahead(self)

    def apply_all(self, batches: Iterable[SinkBatch]) -> Mapping[str, Any]:
        return consistent_sets.apply_all(self, batches)

    def rows(self, topic: str) -> TargetRows | None:
        """Returns the rows of a topic's table in the published set; None when no set holds it."""
        for shown in self._sets.read().values():
            if topic in shown.members:
                member = shown.members[topic]
                return self._rows_of("/".join(member.place), member.state)
        return None

    # -- what sets ask for --------------------------------------------------------------------------------------------

    def valid(self) -> ParquetSets:
        return self._sets

    def member(self, topic: str, state: Manifest) -> SetMember:
        return SetMember(self._places[topic], state, state.version)

    def publish(self, shown: Mapping[str, PublishedSet], marks: Marks) -> None:
        with self._reached():
            self._still_ours()
            self._sets.publish(self._epoch, shown, marks)
            hit("sink.after_publish")
            due = self._sets.number % self._storage.commits_per_sweep == 0
            for topic, state in self._states.items() if due else ():
                self._sweep(self._at("/".join(self._places[topic])), state)

    def _tend(self, manifests: Manifests, made: Manifest) -> None:
        """Not before the next set: what the valid ones name is needed."""
        self._note(manifests, made)

    def _note(self, manifests: Manifests, state: Manifest) -> None:
        schema, _, table = manifests.folder.partition("/")
        self._places[state.topic] = schema, table

    def _sweep(self, manifests: Manifests, newest: Manifest, everything: bool = False) -> None:
        manifests.sweep(newest, everything, self._sets.versions(newest.topic))
