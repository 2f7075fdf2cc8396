"""How long a sink waits for its target."""

from __future__ import annotations

import pytest
from cdcworker.connectors.sink_engine.target_retry import DELAY_S_MAX, OUTAGE_S_MAX, TargetRetry
from cdcworker.connectors.sink_errors import TARGET_UNREACHABLE, TARGET_VALUE, from_psycopg
from cdcworker.schemas.errors import CdcError


class World:
    def __init__(self):
        self.now, self.batches, self.stopped, self.waits = 0.0, 0, False, []
        self.patience = TargetRetry(lambda: self.stopped, self.wait, lambda: self.batches, lambda: self.now)

    def wait(self, seconds):
        self.waits.append(seconds)
        self.now += seconds


def away():
    raise CdcError(TARGET_UNREACHABLE, "away")


def test_a_target_that_comes_back_is_waited_for():
    world = World()

    def step():
        if len(world.waits) < 4:
            away()

    world.patience.run(step)
    assert len(world.waits) == 4
    assert max(world.waits) <= DELAY_S_MAX


def test_an_outage_that_does_not_end_is_an_error():
    world = World()
    with pytest.raises(CdcError) as caught:
        world.patience.run(away)
    assert caught.value.code == TARGET_UNREACHABLE
    assert OUTAGE_S_MAX <= world.now <= OUTAGE_S_MAX + DELAY_S_MAX


def test_what_is_waited_for_is_told():
    world = World()
    told = []

    def step():
        told.append(world.patience.retrying.numbers().get("retrying"))
        if len(world.waits) < 3:
            away()

    world.patience.run(step)
    assert told[0] is None
    assert [(found["count"], found["code"]) for found in told[1:]] == [(n, TARGET_UNREACHABLE) for n in (1, 2, 3)]
    world.patience.retrying.over()
    assert world.patience.retrying.numbers() == {"retrying": None}


def test_a_batch_that_was_applied_ends_an_outage():
    world = World()

    def step():
        if world.now > 3 * OUTAGE_S_MAX:
            return
        world.batches += 1
        away()

    world.patience.run(step)
    assert world.now > 3 * OUTAGE_S_MAX


def test_other_errors_are_not_repeated_and_a_stop_ends_the_wait():
    world = World()

    def refused():
        raise CdcError(TARGET_VALUE, "refused")

    with pytest.raises(CdcError):
        world.patience.run(refused)
    assert world.waits == []

    def stopped():
        world.stopped = True
        away()

    with pytest.raises(CdcError):
        world.patience.run(stopped)
    assert world.waits == []


def test_what_the_client_itself_refuses_is_not_taken_for_a_lost_connection():
    import psycopg

    assert from_psycopg(psycopg.OperationalError("gone")).code == TARGET_UNREACHABLE
    assert from_psycopg(psycopg.errors.DeadlockDetected("x")).code == TARGET_UNREACHABLE
    assert from_psycopg(psycopg.ProgrammingError("no such placeholder")).code == "spark.target_failed"
    assert from_psycopg(psycopg.DataError("NUL")).code == TARGET_VALUE
