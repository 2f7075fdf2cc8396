"""Consistent sets of a Parquet warehouse: numbered files, each of which names for one position of the source the manifest of
every table. A number is taken by one writer only; readers take the tables as the newest one names them."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from cdcworker.connectors.api.table_batch import SinkBatch, VisibleThrough
from cdcworker.connectors.api.table_writer import TargetRows
from cdcworker.connectors.sink_errors import FENCED, LEDGER_MOVED
from cdcworker.connectors.warehouses import consistent_sets
from cdcworker.connectors.warehouses.consistent_sets import Marks, PublishedSet, PublishedSets, SetMember
from cdcworker.connectors.warehouses.parquet.writer import ParquetWriter
from cdcworker.connectors.warehouses.table_state import FOLDER, Manifest, Manifests, parse, sync_folder, write_synced
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
                yield topic, int(Path(table["manifest"]).stem)


class ParquetSets(PublishedSets):
    """The consistent sets of one sink, in the folder `_cdcworker/sets/<sink>`."""

    def __init__(self, root: str, sink: str) -> None:
        super().__init__()
        self._root = Path(root)
        self._sink = sink
        self._home = self._root / "_cdcworker" / "sets" / quote(sink, safe="")
        self._now = _Set()
        self._kept: list[_Set] = []

    @property
    def marks(self) -> Marks:
        pairs = [(name.partition(":"), at) for name, at in self._now.marks.items()]
        return {(topic, int(number)): at for (number, _, topic), at in pairs}

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
        self._home.mkdir(parents=True, exist_ok=True)
        said = {"epoch": made.epoch, "marks": made.marks, "sources": made.sources, "at_ms": time.time_ns() // 1_000_000}
        scratch = self._home / f".{uuid.uuid4().hex}"
        try:
            write_synced(scratch, json.dumps(said).encode())
            os.link(scratch, self._home / f"{made.version:012d}.json")
        except FileExistsError as exc:
            newest = next(self._files(), made)
            if newest.epoch > made.epoch:
                raise self._newer() from exc
            text = "another task has published a set meanwhile"
            raise CdcError(LEDGER_MOVED, text, where={"sink": self._sink}) from exc
        finally:
            scratch.unlink(missing_ok=True)
        sync_folder(self._home)
        self._now = made
        self._kept = [made, *self._kept][:KEPT]
        for path in self._paths():
            if int(path.stem) <= made.version - KEPT:
                path.unlink(missing_ok=True)

    def _newer(self) -> CdcError:
        return CdcError(FENCED, "a newer task publishes the sets of this sink", where={"sink": self._sink})

    # -- files --------------------------------------------------------------------------------------------------------

    def _paths(self) -> list[Path]:
        """The newest first."""
        return sorted(self._home.glob("*.json"), reverse=True)

    def _files(self) -> Iterator[_Set]:
        for path in self._paths():
            with contextlib.suppress(FileNotFoundError):
                said = json.loads(path.read_text(encoding="utf-8"))
                yield _Set(tuple(said["epoch"]), int(path.stem), said["marks"], said["sources"])

    def _shown(self, found: _Set, whole: bool = True) -> dict[str, PublishedSet]:
        """Not `whole`: without tables that were dropped, and may be there anew; the next set does not name them so."""
        out = {}
        for source, said in found.sources.items():
            members = {}
            for topic, table in said["tables"].items():
                manifest = self._root / table["folder"] / table["manifest"]
                if not whole and not manifest.exists():
                    log.warning("a table of the consistent set no longer exists topic=%s", topic)
                    continue
                state = parse(manifest.read_text(encoding="utf-8"))
                schema, name = Path(table["folder"]).parts
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

    def __init__(self, root: str, sink: str, task: int = 0, **more: Any) -> None:
        super().__init__(root, sink, task, **more)
        self._sets = ParquetSets(root, sink)
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
                return self._rows_of(self._root.joinpath(*member.place), member.state)
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
            for topic, state in self._states.items():
                self._sweep(Manifests(self._root.joinpath(*self._places[topic])), state)

    def _tend(self, manifests: Manifests, made: Manifest) -> None:
        """Not before the next set: what the valid ones name is needed."""
        self._note(manifests, made)

    def _note(self, manifests: Manifests, state: Manifest) -> None:
        schema, table = manifests.folder.parts[-2:]
        self._places[state.topic] = schema, table

    def _sweep(self, manifests: Manifests, newest: Manifest, everything: bool = False) -> None:
        manifests.sweep(newest, everything, self._sets.versions(newest.topic))
