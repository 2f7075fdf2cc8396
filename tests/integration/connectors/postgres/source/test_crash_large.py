"""One large transaction whose reader is killed again and again in the middle of it: whole where it fits into one Kafka
transaction, in parts where it does not, and each change once; what it asks for by a signal too."""

from __future__ import annotations

import psycopg
import pytest

from tests.contract.source_crashes import EXACT, check

from .test_crash_matrix import Stage

pytestmark = [pytest.mark.kafka, pytest.mark.postgres, pytest.mark.sampled(2)]

ROWS, WIDTH = 40_000, 500
SPLIT = {"transaction.split.bytes": "1000000"}
"""A dozen parts of it."""
STEPS = {"postgres.chunk_kept": 60, "postgres.part_read": 4, "source.half_produced": 4}
"""How often the transaction meets each, at the least."""
ASKED = "7"
"""A snapshot's name that the witness takes for a row's number."""


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


@pytest.mark.long
@pytest.mark.parametrize("decoder", [pytest.param("true", id="native"), pytest.param("false", id="python")])
@pytest.mark.parametrize(
    "stage", [SPLIT | {"signal.data.collection": "public.signals"}], indirect=True, ids=["in parts"]
)
def test_a_signal_is_followed_once_where_its_transaction_is_killed_between_two_parts(stage, postgres, decoder):
    stage.more["decoder.native"] = decoder
    signalled(stage, postgres)
    target = stage.end()
    stage._insert(stage.db, 1)
    first = stage.child("postgres.part_read=kill@3")
    first.wait(lambda: first.met("postgres.part_read", "kill"), "its death between two parts")
    first.close()
    position = stage.cluster.position()
    assert position["part"], "the part with the signal is in Kafka"
    assert not loads(position)
    last = stage.child()
    last.wait(lambda: last.reached(target) and ASKED in loads(stage.cluster.position()), "the end of what was asked")
    assert last.stop() == 0
    assert loads(stage.cluster.position()) == {ASKED: "COMPLETED"}
    assert sorted(record["after"]["id"] for _, record in stage.delivered("wanted")) == list(range(10))
    check(stage, whole=False)


def signalled(stage: Stage, postgres) -> None:
    """A transaction that first asks for rows of a table that nobody changes, and then goes on for many parts."""
    role = psycopg.conninfo.conninfo_to_dict(stage.login)["user"]
    stage.db.execute("create table signals(id varchar(42) primary key, type varchar(32), data varchar(2048))")
    stage.db.execute("create table wanted(id int primary key); insert into wanted select generate_series(0, 9)")
    stage.db.execute(f"grant select on signals, wanted to {role}")
    stage.db.execute("alter publication dbz_publication add table signals, wanted")
    with psycopg.connect(postgres.dsn(stage.database)) as writer:
        row = (ASKED, "execute-snapshot", '{"data-collections": ["public.wanted"]}')
        writer.execute("insert into signals values (%s, %s, %s)", row)
        stage._insert(writer, ROWS, WIDTH)


def loads(position: dict) -> dict[str, str]:
    """How those have ended that are over."""
    return {done["id"]: done["state"] for done in position["snapshot"].get("done", ())}
