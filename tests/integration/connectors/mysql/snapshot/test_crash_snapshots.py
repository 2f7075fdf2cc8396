"""The rows of a table of MariaDB that is written to all the while, read by a process that is killed, paused and failed at every step."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.contract.snapshot_crashes import PAUSE_S, POINTS, SMALL, LoadedStage, run_loading
from tests.contract.source_crashes import EXACT, LOOSE

from ..crash_stage import UNLOCKED, MariaDbStage
from ..logged import LoggedServer
from ..source.test_crash_matrix import ACTIONS

pytestmark = [pytest.mark.kafka, pytest.mark.mysql, pytest.mark.sampled(2)]
ROWS = 5000


class Loading(LoadedStage, MariaDbStage):
    """Its first start dies before it has stored anything."""

    rows_written = ROWS

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.more = {"snapshot.mode": "initial", **SMALL}
        self._writes = random.Random(self.rng.random())
        self.insert(ROWS)
        self.begin_witness()
        first = self.child("source.first_stored=kill")
        first.wait(first.ended, "its death")

    def alone(self) -> None:
        """Rows that were read stay."""

    def write(self, ended: threading.Event) -> None:
        rng = self._writes
        with self.primary.connect() as connection, connection.cursor() as cursor:
            cursor.execute("use shop")
            cursor.execute(UNLOCKED)
            while not ended.wait(PAUSE_S):
                gone, *changed = [rng.randrange(1, ROWS) for _ in range(20)]
                for number in changed:
                    cursor.execute(f"update t set v = concat(v, '.') where id = {number}")
                cursor.execute(f"delete from t where id = {gone}")

    def held(self) -> dict[int, str]:
        return dict(self.primary.ask("select id, v from shop.t"))  # type: ignore[arg-type]


@pytest.fixture
def stage(
    kafka: Any, watched: tuple[LoggedServer, LoggedServer], tmp_path: Path, rng: random.Random, request: Any
) -> Iterator[Loading]:
    made = Loading(kafka.bootstrap, watched, rng, tmp_path, getattr(request, "param", EXACT))
    yield made
    made.close()


def test_a_sample_of_crashes_amid_a_snapshot_leaves_the_table_and_what_the_witness_saw(stage: Loading) -> None:
    first, second = stage.rng.sample(POINTS, 2)
    run_loading(stage, [(first, "kill", stage.rng.randrange(1, 4)), (second, stage.rng.choice(ACTIONS[1:]), 2)])


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("stage", [EXACT, LOOSE], indirect=True)
@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("point", POINTS)
def test_a_crash_at_every_step_of_a_snapshot_leaves_the_table_and_what_the_witness_saw(
    stage: Loading, point: str, action: str
) -> None:
    run_loading(stage, [(point, action, stage.rng.randrange(1, 5))])
