"""The targets that ship pass the checks of the conformance kit, as plugins have to."""

from __future__ import annotations

import json

import pytest
from cdcworker.connectors.targets.http.connector import HttpSink
from cdcworker.connectors.targets.stdout.connector import StdoutSink
from cdcworker.worker.conformance.findings import findings
from cdcworker.worker.conformance.sink_checks import SinkChecks

from tests.record_sinks import Webhook


class Service:
    """A web service as a harness."""

    def __init__(self, folder):
        self.hook = Webhook()
        self.config = {"connector.class": "http-sink", "http.url": self.hook.url, "http.request.timeout.ms": "1000"}
        self.unfit = {"http.url": "nowhere"}
        self.stop, self.start = self.hook.stop, self.hook.start

    def received(self):
        return [event["id"] for event in self.hook.events]

    def close(self):
        self.hook.close()


class Lines:
    """A file as a harness. It cannot be away."""

    def __init__(self, folder):
        self.path = folder / "lines"
        self.config = {"connector.class": "stdout", "file": str(self.path)}
        self.unfit = {"file": "lines"}

    def received(self):
        return [json.loads(line)["id"] for line in self.path.read_text().split("\n")[:-1]]

    def close(self):
        pass


@pytest.mark.parametrize(("made", "harness"), [(HttpSink, Service), (StdoutSink, Lines)])
def test_a_target_that_ships_passes(made, harness, tmp_path):
    outside = harness(tmp_path)
    try:
        checks = SinkChecks(made, outside, {"topics": "t", "name": "s", **outside.config}, (str(tmp_path),))
        assert [each for each in findings(checks.all()) if each.problem] == []
    finally:
        outside.close()
