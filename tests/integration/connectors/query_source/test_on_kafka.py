"""The source of a query with real task processes on a real Kafka: killed at each step, paused, stopped while the database is away."""

from __future__ import annotations

import pytest
from cdcworker.worker.config.file_roots import FILE_ROOTS
from cdcworker.worker.conformance.findings import findings
from cdcworker.worker.conformance.kafka_checks import Place, SourceOnKafka

from tests.integration.connectors.query_source.servers import MariaDbOutside, PostgresOutside
from tests.unit.connectors.query_source.query_file import QueryFile

pytestmark = pytest.mark.kafka
SERVERS = [
    pytest.param(("postgres", PostgresOutside), marks=pytest.mark.postgres, id="postgres"),
    pytest.param(("mysql", MariaDbOutside), marks=pytest.mark.mysql, id="mariadb"),
]


@pytest.fixture
def checks(kafka, tmp_path):
    file = QueryFile(tmp_path)
    return SourceOnKafka(Place(kafka.bootstrap, "query", file.config, {}, {FILE_ROOTS: str(tmp_path)}), file)


@pytest.fixture(params=SERVERS)
def server_checks(kafka, request):
    name, outside_class = request.param
    outside = outside_class(request.getfixturevalue(name))
    yield SourceOnKafka(Place(kafka.bootstrap, "query", outside.config), outside)
    outside.close()


def test_killed_at_each_step_nothing_is_lost_and_nothing_comes_twice(checks):
    assert [each.problem for each in findings(checks.all()[:1])] == [""]


@pytest.mark.long
def test_the_same_with_a_server(server_checks):
    assert [each.problem for each in findings(server_checks.all()[:1])] == [""]


@pytest.mark.long
def test_a_pause_and_a_file_that_is_away(checks):
    assert [each.problem for each in findings(checks.all()[1:])] == ["", ""]


@pytest.mark.long
def test_a_pause_and_a_server_that_is_away(server_checks):
    assert [each.problem for each in findings(server_checks.all()[1:])] == ["", ""]
