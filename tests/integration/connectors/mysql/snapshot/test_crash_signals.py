"""Rows of MariaDB that a signal asks for, read by a process that is killed, paused and failed at every step of it."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.contract.signal_crashes import ASKED, POINTS, ROWS, AskedStage, run_asked
from tests.contract.snapshot_crashes import PAUSE_S, SMALL
from tests.contract.source_crashes import EXACT, LOOSE

from ..crash_stage import UNLOCKED, MariaDbStage
from ..logged import LoggedServer
from ..source.test_crash_matrix import ACTIONS

pytestmark = [pytest.mark.kafka, pytest.mark.mysql, pytest.mark.sampled(2)]


class Asked(AskedStage, MariaDbStage):
    """Tables of MariaDB; the rows of `signals` ask."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.more = {"signal.data.collection": "shop.signals", **SMALL}
        self.primary.ask(
            "alter table shop.u drop primary key",
            "create table shop.signals(id varchar(42) primary key, type varchar(32), data varchar(2048))",
        )
        self.insert(ROWS)
        first = self.child("source.first_stored=kill")
        first.wait(first.ended, "its death")

    def ask(self) -> None:
        data = json.dumps({"data-collections": ["shop.t", "shop.u"]})
        self.primary.ask(f"insert into shop.signals values ('{ASKED}', 'execute-snapshot', '{data}')")

    def write(self, ended: threading.Event) -> None:
        with self.primary.connect() as connection, connection.cursor() as cursor:
            cursor.execute("use shop")
            cursor.execute(UNLOCKED)
            number = 0
            while not ended.wait(PAUSE_S):
                number = number % ROWS + 7
                for changed in (number, number + 1):
                    cursor.execute(f"update t set v = concat(v, '.') where id = {changed}")
                cursor.execute(f"delete from t where id = {number + 2}")
                cursor.execute(f"insert into u(id, v) values ({-number}, 'beside')")

    def held(self) -> dict[int, str]:
        return dict(self.primary.ask("select id, v from shop.t"))  # type: ignore[arg-type]

    def held_without_key(self) -> list[tuple[int, str]]:
        return list(self.primary.ask("select id, v from shop.u"))  # type: ignore[arg-type]


@pytest.fixture
def stage(
    kafka: Any, watched: tuple[LoggedServer, LoggedServer], tmp_path: Path, rng: random.Random, request: Any
) -> Iterator[Asked]:
    made = Asked(kafka.bootstrap, watched, rng, tmp_path, getattr(request, "param", EXACT))
    yield made
    made.close()


def test_a_death_amid_rows_that_were_asked_for_leaves_both_tables_whole(stage: Asked) -> None:
    run_asked(stage, stage.rng.choice(POINTS), "kill")


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("stage", [EXACT, LOOSE], indirect=True)
@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("point", POINTS)
def test_a_crash_at_every_step_of_what_was_asked_for_leaves_both_tables_whole(
    stage: Asked, point: str, action: str
) -> None:
    run_asked(stage, point, action)
