"""The source of a JSON API passes the checks of the conformance kit that need no Kafka."""

from __future__ import annotations

from cdcworker.connectors.http_source.connector import HttpSource
from cdcworker.worker.conformance.findings import findings
from cdcworker.worker.conformance.source_checks import Limits, SourceChecks

from tests.contract.json_api import ApiHarness


def test_the_source_passes_the_checks():
    api = ApiHarness("link")
    try:
        config = {"connector.class": "http", "topic.prefix": "p", "poll.interval.ms": "0", **api.config}
        checks = SourceChecks(HttpSource, api, config, limits=Limits(away_s=0.2))
        assert [each for each in findings(checks.all()) if each.problem] == []
    finally:
        api.close()
