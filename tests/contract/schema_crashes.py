"""Schema changes under load while the source's process is killed at any moment: each record has the shape of its time."""

from __future__ import annotations

import random
import threading
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from .source_crashes import EXACT, CrashStage, check, check_loosely

DEATHS = 4
TURNS_MAX = 100
"""Of columns that come and go: a table has a limit of them."""
Run = Callable[[str], object]
"""Executes a statement."""


class ChangingStage(CrashStage):
    """The table `t` (id, v, …) whose schema changes."""

    @abstractmethod
    def writer(self) -> AbstractContextManager[Run]:
        """Opens a connection whose statements are transactions of their own."""

    @abstractmethod
    def turn(self, run: Run, number: int, rng: random.Random) -> None:
        """Changes the schema: a column `c{number}` comes, of which each row holds the number; the one before is made wider or narrower, is
        given another type or another name or is a part of the key for a while, and goes."""


@contextmanager
def writers(stage: ChangingStage) -> Iterator[list[int]]:
    """One writes rows, another changes the schema; the numbers of its changes."""
    ended, turns = threading.Event(), []

    def write() -> None:
        with stage.writer() as run:
            while not ended.wait(0.002):
                number, stage.next_id = stage.next_id, stage.next_id + 1
                run(f"insert into t(id, v) values ({number}, 'load')")

    def change(rng: random.Random) -> None:
        with stage.writer() as run:
            while not ended.wait(0.3) and len(turns) < TURNS_MAX:
                turns.append(len(turns) + 1)
                stage.turn(run, turns[-1], rng)

    threads = [
        threading.Thread(target=write),
        threading.Thread(target=change, args=(random.Random(stage.rng.random()),)),
    ]
    for thread in threads:
        thread.start()
    try:
        yield turns
    finally:
        ended.set()
        for thread in threads:
            thread.join()


def run_changing(stage: ChangingStage) -> None:
    """Lives that are killed, and one that reads all; each record of `t` has the columns of its time."""
    with writers(stage) as turns:
        for _ in range(DEATHS):
            child, target = stage.child(), stage.end()
            child.wait(lambda: child.reached(target), "what was there")  # noqa: B023 - called at once
            more = len(turns) + stage.rng.randrange(1, 4)
            child.wait(lambda: len(turns) >= more or len(turns) == TURNS_MAX, "more changes")  # noqa: B023
            child.process.kill()
            child.process.wait()
            child.close()
    last, target = stage.child(), stage.end()
    stage.go_on()
    last.wait(lambda: last.reached(target), "the end")
    assert last.stop() == 0
    (check if stage.delivery == EXACT else check_loosely)(stage)
    rows = [record["after"] for _, record in stage.delivered("t")]
    named = [{name: value for name, value in row.items() if name.startswith("c")} for row in rows]
    assert all(int(value) == int(name.strip("c_")) for row in named for name, value in row.items())
    assert {type(value) for row in named for value in row.values()} == {int, str}
    keys = [sorted(name.rstrip("0123456789") for name in key) for key in stage.keys("t")]
    assert ["c", "id"] in keys
    assert len({tuple(row) for row in named}) > len(turns) > DEATHS
