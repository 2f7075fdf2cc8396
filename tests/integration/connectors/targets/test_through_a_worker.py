"""Sinks of records through a real worker: created, paused, reset and explained by REST; topics that they may not write."""

from __future__ import annotations

import json
import uuid

import pytest

from tests import plain_http
from tests.integration import one_worker
from tests.record_sinks import Webhook, wait

pytestmark = pytest.mark.kafka


@pytest.fixture(scope="module")
def worker(kafka, tmp_path_factory):
    folder = tmp_path_factory.mktemp("worker")
    made = one_worker.Worker(
        folder, kafka.bootstrap, f"t{uuid.uuid4().hex[:8]}", **{"file.connector.paths": str(folder)}
    )
    made.wait_ready()
    yield made
    made.kill()


@pytest.fixture
def hook():
    made = Webhook()
    yield made
    made.close()


def rows(hook):
    return {event["value"]["after"]["n"] for event in hook.events if event["value"]}


def test_a_web_service_gets_rows_once_is_left_alone_while_paused_and_gets_them_again_after_a_reset(
    worker, hook, tmp_path
):
    prefix, lines = f"p{worker.group}", worker.log.parent / "lines.json"
    worker.put(
        "gen", {"connector.class": "datagen", "topic.prefix": prefix, "max.rows": "300", "rows.per.second": "-1"}
    )
    topic = f"{prefix}.task0.rows"
    worker.put("hook", {"connector.class": "http-sink", "topics": topic, "http.url": hook.url})
    worker.put("lines", {"connector.class": "stdout", "topics.regex": rf"{prefix}\..*rows", "file": str(lines)})
    worker.wait(lambda: len(rows(hook)) == 300, "all rows")
    worker.wait(lambda: lines.exists() and len(lines.read_text().splitlines()) == 300, "all lines")
    assert len(hook.events) == 300
    first = json.loads(lines.read_text().splitlines()[0])
    assert {event["id"] for event in hook.events} == {json.loads(line)["id"] for line in lines.read_text().splitlines()}
    assert first["value"]["after"]["n"] == 0
    task = worker.wait(lambda: (found := worker.task("hook"))["metrics"].get("lag_records") == 0 and found, "no lag")
    assert task["metrics"]["changes"] == 300
    explained = worker.get("/v1/connectors/gen/explain?of=task0.rows&key=7")
    assert [(stage["sink"], stage["next_offset"] > 0) for stage in explained["stages"] if stage["stage"] == "sink"] == [
        ("hook", True), ("lines", True),
    ]  # fmt: skip

    worker.ask("PUT", "/connectors/hook/pause")
    worker.wait_state("hook", "PAUSED")
    worker.put(
        "gen", {"connector.class": "datagen", "topic.prefix": prefix, "max.rows": "400", "rows.per.second": "-1"}
    )
    worker.wait(lambda: len(lines.read_text().splitlines()) == 400, "the other sink goes on")
    assert len(hook.events) == 300
    worker.ask("PUT", "/connectors/hook/resume")
    worker.wait(lambda: len(rows(hook)) == 400, "the rest")
    assert len(hook.events) == 400

    worker.ask("PUT", "/connectors/hook/stop")
    worker.wait(lambda: worker.get("/connectors/hook/status")["connector"]["state"] == "STOPPED", "a stop")
    stored = worker.get("/connectors/hook/offsets")["offsets"]
    (one,) = [each for each in stored if each["partition"]["kafka_topic"] == topic]
    assert one["offset"]["kafka_offset"] >= 400
    asked = {"offsets": [{"partition": one["partition"], "offset": {"kafka_offset": 0}}]}
    answer = plain_http.patch(f"{worker.url}/connectors/hook/offsets", json=asked, timeout=60.0)
    assert answer.status_code == 200, answer.text
    assert worker.get("/connectors/hook/offsets")["offsets"][0]["offset"] == {"kafka_offset": 0}
    worker.ask("PUT", "/connectors/hook/resume")
    wait(lambda: len(hook.events) == 800, "all of it again")
    assert hook.ledger.twice == 400, "with the same ids"


def test_dead_letters_are_listed_and_sent_again_by_requests(worker, hook):
    prefix = f"l{worker.group}"
    hook.trouble = lambda _, events: 422 if any(each["value"]["after"]["n"] in (7, 77) for each in events) else None
    worker.put(
        "many", {"connector.class": "datagen", "topic.prefix": prefix, "max.rows": "100", "rows.per.second": "-1"}
    )
    letters = {"errors.tolerance": "all", "errors.deadletterqueue.topic.name": f"{prefix}.dead"}
    headers = {"errors.deadletterqueue.context.headers.enable": "true"}
    config = {"connector.class": "http-sink", "topics": f"{prefix}.task0.rows", "http.url": hook.url}
    worker.put("letters", config | letters | headers)
    worker.wait(lambda: len(rows(hook)) == 98, "the others")
    path = "/v1/connectors/letters/dead-letters"
    worker.wait(lambda: worker.get(path)["total"] == 2, "the letters")
    found = worker.get(f"{path}?limit=1")
    assert [each["code"] for each in found["dead_letters"]] == ["sink.record_refused"]
    assert len(worker.get(f"{path}?after={found['next']}")["dead_letters"]) == 1

    def redriven(query=""):
        answer = plain_http.post(f"{worker.url}{path}/redrive{query}", timeout=90.0)
        assert answer.status_code == 200, answer.text
        return answer.json()

    assert redriven()["failed"] == 2
    hook.trouble = None
    assert redriven("?dry_run=true")["redriven"] == 2
    assert len(rows(hook)) == 98
    done = redriven()
    assert (done["redriven"], done["rows"], done["left"], done["complete"]) == (2, 2, 0, True)
    assert len(rows(hook)) == 100
    assert redriven()["redriven"] == 0
    refused = plain_http.post(f"{worker.url}{path}/redrive?topic={prefix}.task0.rows", timeout=90.0)
    assert (refused.status_code, refused.json()["code"]) == (400, "sink.letters_elsewhere")


def test_what_a_config_may_not_say_is_refused(worker):
    base = {"connector.class": "http-sink", "topics": "t", "http.url": "http://169.254.169.254/latest"}
    url = f"{worker.url}/connectors/x/config?details=true"
    closed = plain_http.put(url, json=base, timeout=30.0)
    assert closed.status_code == 400
    assert [each["configPath"] for each in closed.json()["errors"]] == ["/config/http.url"]
    letters = {"errors.tolerance": "all", "errors.deadletterqueue.topic.name": f"{worker.group}.configs"}
    own = plain_http.put(url, json={**base, "http.url": "http://127.0.0.1:1/", **letters}, timeout=30.0)
    assert own.status_code == 400
    assert "topic.internal" in {each["code"] for each in own.json()["errors"]}
    login = {
        **base,
        "http.url": "http://u:p@127.0.0.1/",
        "http.method": "GET",
        "transforms": "x",
        "transforms.x.type": "Nope",
    }
    wrong = plain_http.put(url, json=login, timeout=30.0).json()["errors"]
    assert {each["configPath"] for each in wrong} == {
        "/config/http.url",
        "/config/http.method",
        "/config/transforms.x.type",
    }
