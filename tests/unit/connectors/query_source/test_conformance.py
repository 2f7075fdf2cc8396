"""The source of a query passes the checks of the conformance kit that need no Kafka."""

from __future__ import annotations

from cdcworker.connectors.query_source.connector import QuerySource
from cdcworker.worker.conformance.findings import findings
from cdcworker.worker.conformance.source_checks import Limits, SourceChecks

from tests.unit.connectors.query_source.query_file import QueryFile


def test_the_source_passes_the_checks(tmp_path):
    file = QueryFile(tmp_path)
    config = {"connector.class": "query", "topic.prefix": "p", "poll.interval.ms": "0", **file.config}
    checks = SourceChecks(QuerySource, file, config, file_roots=(str(tmp_path),), limits=Limits(10.0, 10.0, 0.2))
    assert [each for each in findings(checks.all()) if each.problem] == []
