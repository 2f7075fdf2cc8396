"""Plugins of other distributions on workers: tasks run only where they are, and a broken one is told and stops nothing."""

from __future__ import annotations

import uuid

import pytest

from tests.contract import plugin_distributions as made
from tests.contract.plugin_distributions import CONNECTORS, TRANSFORMS
from tests.integration.one_worker import Worker

pytestmark = pytest.mark.kafka


def test_tasks_run_where_the_plugin_is_and_its_transform_is_applied(kafka, tmp_path):
    made.installed(tmp_path, "acme-numbers", made.SOURCE, {CONNECTORS: {"numbers": "plugin"}})
    made.installed(tmp_path, "acme-suffix", made.TRANSFORM, {TRANSFORMS: {"suffix": "plugin"}})
    made.installed(tmp_path, "acme-broken", "import nowhere_at_all", {CONNECTORS: {"broken": "plugin"}})
    group = f"t{uuid.uuid4().hex[:8]}"
    variables = {"PYTHONPATH": str(tmp_path)}
    having = Worker(
        tmp_path, kafka.bootstrap, group, "w1", variables=variables,
        plugins_allowed="acme-numbers,acme-suffix,acme-broken,acme-missing",
    )  # fmt: skip
    without = None
    try:
        having.wait_ready()
        # The first worker leads: whoever plans a connector needs its plugin.
        having.wait(lambda: having.get("/v1/cluster")["leader"]["id"] == "w1", "a leader")
        without = Worker(tmp_path, kafka.bootstrap, group, "w0", variables=variables)
        without.wait_ready()
        assert {"numbers", "broken"}.isdisjoint(each["class"] for each in without.get("/connector-plugins"))
        listed = having.get("/connector-plugins?details=true&connectorsOnly=false")
        by_name = {each["class"]: each for each in listed}
        assert by_name["numbers"] == {
            "class": "numbers", "type": "source", "version": "1.2", "distribution": "acme-numbers",
        }  # fmt: skip
        assert (by_name["suffix"]["type"], by_name["suffix"]["distribution"]) == ("transformation", "acme-suffix")
        assert by_name["datagen"]["distribution"] == "cdcworker"
        assert by_name["broken"]["error"]["code"] == "plugin.refused"
        assert by_name[None]["error"]["message"] == "acme-missing is not installed"
        assert "plugin=broken" in having.log.read_text()
        plain = having.get("/connector-plugins")
        assert {"class": "numbers", "type": "source", "version": "1.2"} in plain
        assert "broken" not in {each["class"] for each in plain}
        config = {
            "connector.class": "numbers", "topic.prefix": group, "poll.interval.ms": "20",
            "transforms": "s", "transforms.s.type": "suffix", "transforms.s.suffix": "-done",
        }  # fmt: skip
        having.put("n", config)
        assert having.wait_state("n", "RUNNING")["worker"] == "w1"

        having.wait(lambda: len(having.read(f"{group}.numbers.numbers-done")) == 60, "all rows")
    finally:
        for worker in (having, without):
            if worker is not None:
                worker.kill()
