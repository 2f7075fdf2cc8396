"""Two workers and a web hook: an incident is told once although its leader is killed, and its end is told by the next one."""

from __future__ import annotations

import json
import uuid

import pytest
from cdcworker.worker.cli.main import cli
from click.testing import CliRunner

from tests import plain_http
from tests.integration import one_worker
from tests.record_sinks import Webhook, is_signed

pytestmark = pytest.mark.kafka
FAILING = {"connector.class": "datagen", "topic.prefix": "gen", "fail.prob": "1", "fail.class": "configuration"}
ALERTS = """
receivers:
  - name: ops
    url: {url}
    secret: a-secret-of-the-receiver
objectives:
  - name: fresh
    freshness: 1h
hold: 3s
resolve: 1s
"""


@pytest.fixture
def hook():
    one = Webhook()
    yield one
    one.close()


@pytest.fixture
def start(kafka, hook, tmp_path):
    """`start(name)`: one more worker of the same cluster."""
    file = tmp_path / "alerts.yaml"
    file.write_text(ALERTS.format(url=hook.url))
    file.chmod(0o600)
    group, running = f"a{uuid.uuid4().hex[:8]}", []

    def begin(name):
        worker = one_worker.Worker(tmp_path, kafka.bootstrap, group, name, alerts_file=str(file))
        running.append(worker)
        worker.wait_ready()
        return worker

    yield begin
    for worker in running:
        worker.kill()


def told(hook):
    return [(event["type"], event["data"]["connector"], event["data"]["kind"]) for event in hook.events]


def incidents(worker, query=""):
    return worker.get(f"/v1/incidents{query}")["incidents"]


def test_an_incident_outlives_its_leader_and_is_told_once(start, hook):
    hook.trouble = lambda number, events: 503 if number == 1 else None
    first = start("w1")
    first.put("bad", FAILING)
    first.wait(lambda: told(hook), "a message")
    second = start("w2")
    second.wait(
        lambda: [one["told"] for one in incidents(second)] == [{"ops": "opened"}], "the incident, known to others"
    )
    first.kill()
    second.wait(lambda: second.get("/v1/cluster")["leader"]["id"] == "w2", "another leader")
    assert plain_http.delete(f"{second.url}/connectors/bad", timeout=60).status_code == 204
    second.wait(lambda: len(told(hook)) > 1, "the end, told")
    second.wait(lambda: incidents(second)[0]["told"] == {"ops": "resolved"}, "the end, stored")
    assert told(hook) == [(f"incident.{stage}", "bad", "failed") for stage in ("opened", "resolved")]
    assert incidents(second, "?open=true") == []
    shown = CliRunner().invoke(cli, ["alerts", "list", "--all", "--url", second.url]).output
    assert ("datagen.fault_config" in shown, "ops: resolved" in shown) == (True, True)
    assert CliRunner().invoke(cli, ["alerts", "objectives", "--url", second.url]).exit_code == 0
    ids = set()
    for _, _, headers, body in hook.requests:
        assert is_signed(b"a-secret-of-the-receiver", headers, body)
        ids.add((headers["webhook-id"], json.loads(body)["type"]))
    # The one that was refused and the one that was taken have the same id.
    assert (len(ids), len(hook.requests)) == (2, 3)
    assert "a-secret" not in second.log.read_text()
    assert second.end() == 0
