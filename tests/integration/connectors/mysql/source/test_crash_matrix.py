"""MariaDB's source as a process, killed, paused and failed at every step, against what a replica of the server has applied."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.contract.source_crashes import EXACT, LOOSE, SOURCE_POINTS, actions_of, run

from ..crash_stage import PARTED, MariaDbStage
from ..logged import LoggedServer

pytestmark = [pytest.mark.kafka, pytest.mark.mysql]
POINTS = ("mysql.streaming", "mysql.part_read", "mysql.read", *SOURCE_POINTS)
ONCE = frozenset(("mysql.streaming", "source.schema_written", *PARTED))
"""Met once in a turn; the others again with each transaction that is committed while they are waited for."""
ACTIONS = actions_of("mysql")


@pytest.fixture
def stage(
    kafka: Any, watched: tuple[LoggedServer, LoggedServer], tmp_path: Path, rng: random.Random, request: Any
) -> Iterator[MariaDbStage]:
    made = MariaDbStage(kafka.bootstrap, watched, rng, tmp_path, getattr(request, "param", EXACT))
    # The first start dies behind its first position.
    first = made.child("source.first_stored=kill")
    first.wait(first.ended, "its death")
    yield made
    made.close()


def test_a_sample_of_crashes_leaves_exactly_what_the_witness_saw(stage: MariaDbStage) -> None:
    rng = stage.rng
    points = rng.sample(POINTS, 3)
    counts = [1 if point in ONCE else rng.randrange(1, 3) for point in points]
    actions = ("kill", "stop", rng.choice([action for action in ACTIONS if action not in ("kill", "stop")]))
    run(stage, list(zip(points, actions, counts, strict=True)))
    assert {told[1] for _, told in stage.witnessed_all()} == set("cudt"), "what the comparison is worth"


@pytest.mark.parametrize("stage", [LOOSE], indirect=True)
def test_a_crash_with_at_least_once_delivery_loses_nothing_and_keeps_the_order(stage: MariaDbStage) -> None:
    run(stage, [("source.before_ack", "kill", 2), ("source.before_commit", "stop", 2)])


@pytest.mark.long
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("stage", [EXACT, LOOSE], indirect=True)
@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("side", ["mysql", "source"])
def test_a_crash_at_every_step_leaves_exactly_what_the_witness_saw(stage: MariaDbStage, side: str, action: str) -> None:
    points = [point for point in POINTS if point.startswith(side)]
    run(stage, [(point, action, count) for count in (1, 3) for point in points if count == 1 or point not in ONCE])
