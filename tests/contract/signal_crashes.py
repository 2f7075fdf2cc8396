"""Rows that a signal asks for, of a table with a key and of one without, read by a process that is killed, paused and failed at every step
of it."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from typing import Any

from .snapshot_crashes import LoadedStage, beside, folded
from .source_crashes import EXACT, position_of, strike

POINTS = (
    "snapshot.asked",
    "snapshot.signal_followed",
    "snapshot.keyless_begun",
    "snapshot.keyless_rows",
    "snapshot.keyless_rows>source.after_commit",
    "snapshot.keyless_read",
    "snapshot.keyless_read>source.before_commit",
)
ROWS = 3000
ASKED = "once"
"""The signal's id."""


class AskedStage(LoadedStage):
    """Tables with rows of which nobody has read any: `t` with a key, `u` without one, and a signal table."""

    rows_written = ROWS

    @abstractmethod
    def ask(self) -> None:
        """Writes the signal `ASKED`, for rows of both tables."""

    @abstractmethod
    def held_without_key(self) -> list[tuple[int, str]]:
        """Returns id and v of the rows of `u`."""

    def work(self, shape: int, point: str = "") -> Any:
        """Asks, once."""
        if point:
            self.ask()
        self.insert(1)
        return self.end()

    def loaded(self) -> bool:
        done = (self.cluster.position() or {}).get("snapshot", {}).get("done", ())
        return any((one["id"], one["state"]) == (ASKED, "COMPLETED") for one in done)


def newest(records: list[dict]) -> list[dict]:
    """What a reader goes by who keeps the highest position per key: with at-least-once delivery a request that was half
    written when its process was stopped still arrives when that wakes."""
    highest: dict[int, tuple] = {}
    kept = []
    for record in records:
        number = (record["after"] or record["before"])["id"]
        if position_of(record) >= highest.get(number, ()):
            highest[number] = position_of(record)
            kept.append(record)
    return kept


def emptied_last(records: list[dict]) -> list[tuple[int, str]]:
    """What a reader of a table without a key has: the rows behind the last truncate."""
    last = max(position_of(record) for record in records if record["op"] == "t")
    return [(r["after"]["id"], r["after"]["v"]) for r in records if r["op"] != "t" and position_of(r) > last]


def run_asked(stage: AskedStage, point: str, action: str) -> None:
    """One life that meets the failpoint, and one that reads the rest; both tables are whole then."""
    with beside(stage.write):
        strike(stage, 0, point, action, 1)
        last = stage.child()
        last.wait(stage.loaded, "what was asked for")
    target = stage.work(0)
    last.wait(lambda: last.reached(target), "the end")
    assert last.stop() == 0
    t, u = ([record for _, record in stage.delivered(table)] for table in ("t", "u"))
    assert sum(record["op"] == "r" for record in t) > ROWS / 2
    is_exact = stage.delivery == EXACT
    assert folded(t if is_exact else newest(t), once=is_exact) == stage.held()
    found, held = Counter(emptied_last(u)), Counter(stage.held_without_key())
    assert found == held if is_exact else found.keys() == held.keys()
