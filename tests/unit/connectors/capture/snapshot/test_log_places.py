"""Boundaries of a log whose places are sets of transactions: rows wait until the stream has all that their read saw."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace

from cdcworker.connectors.capture.snapshot.chunk_window import ChunkWindow
from cdcworker.connectors.capture.snapshot.chunks import ReadView
from cdcworker.connectors.capture.snapshot.progress import KeyRange, SnapshotLoad, SnapshotProgress, TableLoad
from cdcworker.connectors.capture.snapshot.watermark_snapshot import WatermarkSnapshot

TABLE = TableLoad(1, "shop", "t", [KeyRange()])
LOAD = SnapshotLoad("initial", "start", [TABLE])
Place = frozenset[str]


@dataclass
class SetSource:
    """A source whose log has places that hold transactions by name, and need not lie behind one another."""

    emitted: list[Place] = field(default_factory=list)

    def current(self) -> Place:
        raise AssertionError("not asked for")

    def visibility(self, stored: str) -> Place:
        return frozenset(stored.split(","))

    def place(self, stored: list[str]) -> Place:
        return frozenset(stored)

    def stored_place(self, place: Place) -> list[str]:
        return sorted(place)

    def new_key(self, plan: object, message: object) -> None: ...

    def emit(self, chunk: object, position: Place) -> list:
        self.emitted.append(position)
        return []


@dataclass
class OneWindow:
    """A scheduler with one window whose chunk has been read."""

    progress: SnapshotProgress
    windows: list[ChunkWindow]
    moves: int = 0

    def take_results(self) -> None: ...

    def order_reads(self) -> None: ...

    def note_progress(self) -> None:
        self.moves += 1

    def again(self, table: TableLoad, keys: list) -> None: ...

    def finish_if_done(self, load: SnapshotLoad, table: TableLoad) -> None: ...


def snapshot(hw: Place, source: SetSource) -> WatermarkSnapshot:
    window = ChunkWindow(LOAD, TABLE, TABLE.parts[0])
    window.chunk = SimpleNamespace(view=ReadView(hw, hw, 0), size=1, count=1, last=None, ended=True)
    return WatermarkSnapshot(OneWindow(SnapshotProgress(loads=[LOAD]), [window]), source)


def test_rows_are_handed_on_at_the_first_place_that_holds_all_of_what_was_read():
    source = SetSource()
    one = snapshot(frozenset("ab"), source)
    # Neither place lies behind the other: more transactions are no further place.
    assert one.passed(frozenset("acd")) == []
    assert one.is_behind(frozenset("acd"))
    assert source.emitted == []

    assert not one.is_behind(frozenset("abc"))
    one.passed(frozenset("abc"))
    assert source.emitted == [frozenset("abc")]


def test_the_place_of_a_table_without_a_key_is_stored_in_the_sources_form():
    source = SetSource()
    stored = SnapshotProgress(skips={"1": ["a,b", source.stored_place(frozenset("ab"))]})
    one = WatermarkSnapshot(OneWindow(SnapshotProgress.from_json(stored.to_json()), []), source)
    one.passed(frozenset("ac"))
    assert not one.finished
    one.passed(frozenset("abc"))
    assert one.finished
