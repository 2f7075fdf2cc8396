"""The end of a Kafka transaction whose answer never comes, or that comes itself too late: what the broker decided is
found out, and nothing is lost, doubled or torn."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.contract.source_crashes import EXACT, LOOSE, Child, run
from tests.integration.connectors.postgres.source.test_crash_matrix import Stage

from .broker_between import ANSWER, CUT, REQUEST, Between

pytestmark = [pytest.mark.kafka, pytest.mark.postgres]

FENCED = {47, 90}
"""INVALID_PRODUCER_EPOCH and PRODUCER_FENCED."""


class Stretched(Stage):
    """Some of whose processes speak to the broker through a place between."""

    via: int | None = None

    def spec(self, number: int = 0):
        spec = super().spec(number)
        return (
            spec
            if self.via is None
            else dataclasses.replace(spec, kafka={"bootstrap.servers": f"127.0.0.1:{self.via}"})
        )

    @contextmanager
    def through(self, between: Between) -> Iterator[Child]:
        self.via = between.port
        try:
            yield self.child()
        finally:
            self.via = None
            between.close()


@pytest.fixture
def stage(kafka, postgres, tmp_path, rng, request):
    made = Stretched(kafka, postgres, rng, tmp_path, getattr(request, "param", EXACT))
    first = made.child()
    first.wait(lambda: "RUNNING" in first.states() and first.reached(1), "its first position")
    first.close()
    made.begin_witness()
    yield made
    made.close()


def caught(stage: Stretched, kafka, what: str, count: int) -> None:
    """One life whose n-th end of a transaction is caught."""
    between = Between(kafka.port, what, count, (b":schema",))
    with stage.through(between) as child:
        stage.work(count)
        child.wait(lambda: between.caught.is_set() or stage.go_on(), f"{what} of an end")
        if what == CUT:
            target = stage.work(0)
            child.wait(lambda: child.reached(target), "it goes on by itself")
        child.close()
        if what == REQUEST:
            stage.via = None
            other, target = stage.child(), stage.work(0)
            other.wait(lambda: other.reached(target), "its successor's end")
            between.release()
            other.wait(lambda: bool(between.answers), "the late end arrives")
            assert set(between.answers) <= FENCED
            target = stage.work(0)
            other.wait(lambda: other.reached(target), "the successor goes on")
            other.close()
    assert between.answers[0] == 0 or what == REQUEST


def test_what_became_of_a_transaction_whose_end_was_not_answered_is_found_out(stage, kafka):
    caught(stage, kafka, ANSWER, 2)
    caught(stage, kafka, REQUEST, 2)
    run(stage, [])


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("stage", [EXACT, LOOSE], indirect=True)
@pytest.mark.parametrize("what", [ANSWER, CUT, REQUEST])
def test_an_end_that_is_lost_held_up_or_cut_off_leaves_exactly_what_the_witness_saw(stage, kafka, what):
    for count in (1, 2, 4):
        caught(stage, kafka, what, count)
    run(stage, [])
