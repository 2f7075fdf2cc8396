"""Rows of a table that is written to all the while, read by a process that is killed, paused and failed at every step of a snapshot: with
the table's changes they are what the table holds, and each change is what the witness saw."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace

from .source_crashes import EXACT, Child, CrashStage, check, check_loosely, strike

POINTS = (
    "snapshot.window_opened",
    "snapshot.snapshot_taken",
    "snapshot.rows_read",
    "snapshot.read_ended",
    "snapshot.before_emit",
    "snapshot.before_emit>source.produced",
    "snapshot.before_emit>source.after_commit",
)
"""The last two: a chunk's rows are in the Kafka transaction, and are committed together with its progress."""
SMALL = {"snapshot.chunk.max.bytes": "16384", "snapshot.inflight.max.bytes": "65536", "snapshot.max.threads": "2"}
"""A few dozen chunks, some at a time."""
PAUSE_S = 0.01


class LoadedStage(CrashStage):
    """The table `t` has rows before the source's first start."""

    rows_written: int

    def go_on(self, point: str = "") -> None:
        """Others write all the while."""

    def loaded(self) -> bool:
        position = self.cluster.position()
        return position is not None and not position["snapshot"].get("loads")

    @abstractmethod
    def write(self, ended: threading.Event) -> None:
        """Changes and deletes rows of all ages, until the event."""

    @abstractmethod
    def held(self) -> dict[int, str]:
        """Returns v by id of the rows of `t`."""


@contextmanager
def beside(write: Callable[[threading.Event], None]) -> Iterator[None]:
    """Runs in a thread until the event that it is given."""
    ended = threading.Event()
    thread = threading.Thread(target=write, args=(ended,))
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def folded(records: list[dict], *, once: bool) -> dict[int, str]:
    """What a reader of the topic has of the table. `once`: each row is read once, and as old as its place says."""
    rows: dict[int, str] = {}
    touched, read = set(), set()
    for record in records:
        row = record["before"] if record["op"] == "d" else record["after"]
        number = row["id"]
        if record["op"] == "r":
            assert not (once and number in read)
            held = rows.get(number)
            assert not (once and number in touched) or held == row["v"], (
                f"row {number} was read as {row['v'][-12:]} at {record.get('source')} behind {held and held[-12:]}"
            )
            read.add(number)
        else:
            touched.add(number)
        if record["op"] == "d":
            rows.pop(number, None)
        else:
            rows[number] = row["v"]
    return rows


def check_rows(stage: LoadedStage) -> None:
    delivered, once = stage.delivered("t"), stage.delivery == EXACT
    records = [record for _, record in delivered]
    assert sum(record["op"] == "r" for record in records) > stage.rows_written / 2
    assert folded(records, once=once) == stage.held()
    streamed = [item for item in delivered if item[1]["op"] != "r"]
    (check if once else check_loosely)(SimpleNamespace(delivered=lambda _: streamed, witnessed=stage.witnessed))


def run_loading(stage: LoadedStage, cases: list[tuple[str, str, int]]) -> None:
    with beside(stage.write):
        for turn, (point, action, count) in enumerate(cases):
            strike(stage, turn, point, action, count)
        last = stage.child()
        last.wait(stage.loaded, "all rows")
    finish(stage, last)
    check_rows(stage)


def finish(stage: LoadedStage, last: Child) -> None:
    target = stage.work(0)
    last.wait(lambda: last.reached(target), "the end")
    assert last.stop() == 0
