"""The source of a JSON API with real task processes on a real Kafka: killed at each step, paused, stopped while the API is away."""

from __future__ import annotations

import pytest
from cdcworker.worker.conformance.findings import findings
from cdcworker.worker.conformance.kafka_checks import Place, SourceOnKafka

from tests.contract.json_api import ApiHarness

pytestmark = pytest.mark.kafka


@pytest.fixture
def checks(kafka):
    api = ApiHarness("link", page=4)
    yield SourceOnKafka(Place(kafka.bootstrap, "http", api.config), api)
    api.close()


def test_killed_at_each_step_nothing_is_lost_and_nothing_comes_twice(checks):
    assert [each.problem for each in findings(checks.all()[:1])] == [""]


@pytest.mark.long
def test_a_pause_and_an_api_that_is_away(checks):
    assert [each.problem for each in findings(checks.all()[1:])] == ["", ""]
