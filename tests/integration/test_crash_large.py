"""One large transaction whose reader is killed again and again in the middle of it: whole where it fits into one Kafka
transaction, in parts where it does not, and each change once."""

from __future__ import annotations

import psycopg
import pytest

from .test_crash_matrix import EXACT, Stage, check

pytestmark = [pytest.mark.kafka, pytest.mark.postgres]

ROWS, WIDTH = 40_000, 500
SPLIT = {"transaction.split.bytes": "1000000"}
"""A dozen parts of it."""
STEPS = {"postgres.chunk_kept": 60, "postgres.part_read": 4, "source.half_produced": 4}
"""How often the transaction meets each, at the least."""


@pytest.fixture
def stage(kafka, postgres, tmp_path, rng, request):
    made = Stage(kafka, postgres, rng, tmp_path, EXACT)
    made.more = dict(request.param)
    made.begin()
    yield made
    made.close()


def large(stage: Stage, postgres) -> None:
    """With rows that it takes back, and others' small ones beside it."""
    with psycopg.connect(postgres.dsn(stage.database)) as writer:
        stage._insert(writer, ROWS // 2, WIDTH)
        writer.execute("savepoint s")
        stage._insert(writer, 3000, WIDTH)
        writer.execute("rollback to savepoint s")
        stage._insert(stage.db, 10)
        stage._insert(writer, ROWS // 2, WIDTH)
        writer.execute("update t set v = v || '.' where id % 7 = 0")


def killed_in_the_middle(stage: Stage, postgres) -> None:
    """At three places of it that the seed chooses; what was committed of it by then stays."""
    large(stage, postgres)
    target, parts, points = stage.end(), [], stage.rng.sample(sorted(STEPS), 3)
    stage._insert(stage.db, 1)
    while points:
        point = points.pop()
        child = stage.child(f"{point}=kill@{stage.rng.randrange(1, STEPS[point] // 2 + 1)}")
        child.wait(lambda: child.met(point, "kill"), f"its death at {point}")  # noqa: B023 - called at once
        child.close()
        position = stage.cluster.position()
        assert position["safe_lsn"] < target, "it was in the middle"
        parts.append(tuple(position.get("part") or (0, 0)))
    last = stage.child()
    target = stage.end()
    last.wait(lambda: last.reached(target), "the end")
    assert last.stop() == 0
    assert parts == sorted(parts), "no part is given back"
    assert any(part[1] for part in parts) <= bool(stage.more)
    check(stage, whole=not stage.more)


@pytest.mark.parametrize("stage", [SPLIT], indirect=True, ids=["in parts"])
def test_a_large_transaction_in_parts_is_whole_after_three_deaths_in_it(stage, postgres):
    killed_in_the_middle(stage, postgres)


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("turn", range(4))
@pytest.mark.parametrize("stage", [{}, SPLIT], indirect=True, ids=["in one piece", "in parts"])
def test_a_large_transaction_is_exact_after_three_deaths_anywhere_in_it(stage, postgres, turn):
    stage.rng.seed(f"{stage.rng.random()}{turn}")
    killed_in_the_middle(stage, postgres)
