"""What Connect does not have: labels, events, schema history."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest
from cdcworker.coordinator.model import JournalEntry, Leader, TaskMove
from cdcworker.schemas.log import RegistrationMeta, SchemaLog
from cdcworker.worker.rest import event_feed as feeds


class TestLabels:
    def test_are_written_read_and_found(self, client, cluster, herder):
        cluster.add("a")
        cluster.add("b", labels={"team": "shop"})
        answer = client.put("/v1/connectors/a/labels", json={"team": "shop", "env": "prod", "gone": None})
        assert (answer.status_code, answer.json()) == (200, {"team": "shop", "env": "prod"})
        assert client.get("/v1/connectors/a/labels").json() == {"team": "shop", "env": "prod"}
        found = {}
        for query in ("", "?label=team", "?label=team=shop&label=env=prod", "?label=env=dev", "?label=no"):
            found[query] = [item["name"] for item in client.get(f"/v1/connectors{query}").json()["connectors"]]
        assert list(found.values()) == [["a", "b"], ["a", "b"], ["a"], [], []]

    def test_restart_nothing(self, client, cluster):
        cluster.add("a", config_version=1)
        client.put("/v1/connectors/a/labels", json={"team": "shop"})
        stored = cluster.state.connectors["a"]
        assert (stored.version, stored.config_version) == (2, 1)

    def test_obey_if_match_and_dry_run(self, client, cluster):
        cluster.add("a", version=3)
        tag = client.get("/v1/connectors/a/labels").headers["etag"]
        stale = client.put("/v1/connectors/a/labels", json={"a": "b"}, headers={"if-match": '"2"'})
        assert stale.status_code == 412
        found = client.put("/v1/connectors/a/labels?dry_run=true", json={"a": "b"}, headers={"if-match": tag}).json()
        assert found["labels"] == {"from": {}, "to": {"a": "b"}}
        assert client.put("/v1/connectors/a/labels", json={"a": "b"}, headers={"if-match": tag}).status_code == 200

    def test_come_with_a_creation(self, client, cluster, config):
        sent = {"name": "c", "config": config, "labels": {"team": "shop"}}
        assert client.post("/connectors", json=sent).status_code == 201
        assert cluster.state.connectors["c"].labels == {"team": "shop"}
        sent = {"name": "d", "config": config, "labels": {"-": "x"}}
        answer = client.post("/connectors", json=sent)
        assert (answer.status_code, answer.json()["configPath"]) == (400, "/labels/-")

    @pytest.mark.parametrize(
        ("labels", "path"),
        [
            ({"a b": "c"}, "/a b"),
            ({"": "c"}, "/"),
            ({"a": "x" * 64}, "/a"),
            ({"a": "\n"}, "/a"),
            ({f"k{n}": "" for n in range(65)}, ""),
            ({"a": {}}, "/a"),
            ([], ""),
        ],
    )
    def test_of_another_form_are_400(self, client, cluster, labels, path):
        cluster.add("a")
        answer = client.put("/v1/connectors/a/labels", json=labels)
        assert (answer.status_code, answer.json()["configPath"]) == (400, path)

    def test_of_an_unknown_connector_are_404(self, client):
        assert client.get("/v1/connectors/x/labels").status_code == 404
        assert client.put("/v1/connectors/x/labels", json={}).status_code == 404

    def test_stand_in_a_list_with_the_state(self, client, cluster):
        cluster.add("a", labels={"team": "shop"})
        cluster.plan("a", "RUNNING", "FAILED")
        (found,) = client.get("/v1/connectors").json()["connectors"]
        assert (found["class"], found["state"], found["health"]) == ("fake", "RUNNING", "degraded")
        assert found["tasks"] == {"RUNNING": 1, "FAILED": 1}

    def test_stand_in_a_list_with_what_bounds_the_topics(self, client, cluster):
        cluster.add("a")
        cluster.add("b", topic_prefixes=("shop-", "shop."))
        found = {item["name"]: item["topic_prefixes"] for item in client.get("/v1/connectors").json()["connectors"]}
        assert found == {"a": [], "b": ["shop-", "shop."]}
        for path in ("/connectors/b", "/connectors/b/status", "/connectors?expand=info&expand=status"):
            assert "topic_prefixes" not in client.get(path).text


def test_a_misspelt_key_comes_with_what_a_machine_can_apply(client, config):
    for path, sent in (
        ("/connectors", {"name": "c", "config": {**config, "hots": "x"}}),
        ("/connectors?dry_run=true", {"name": "c", "config": {**config, "hots": "x"}}),
    ):
        answer = client.post(path, json=sent).json()
        fix = {"op": "rename", "path": "/config/hots", "value": "host"}
        assert (answer["error_code"], answer["fix"], answer["errors"][0]["fix"]) == (400, fix, fix)
        assert answer["configPath"] == "/config/hots"
        assert answer["suggestion"]
    path = "/connector-plugins/fake/config/validate?details=true"
    found = client.put(path, json={**config, "hots": "x"}).json()["findings"]
    assert [item["fix"]["value"] for item in found if "fix" in item] == ["host"]


def parsed(text):
    """The events of a stream as (type, id, data)."""
    out = []
    for block in text.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
        if "event" in fields:
            out.append((fields["event"], fields.get("id"), json.loads(fields["data"])))
    return out


class TestEvents:
    @pytest.fixture(autouse=True)
    def _quick(self, monkeypatch):
        monkeypatch.setattr(feeds, "COMPARE_EVERY_S", 0.001)

    @pytest.fixture
    def follow(self, connect, herder, runner):
        """A stream with things that happen while it is followed."""
        client = connect(herder, events_s_max=5.0)

        def make(happens, query="", headers=None):
            async def both():
                async def then():
                    feed = client.app.state.api.event_feed
                    while not feed._listeners or feed._task is None:
                        await asyncio.sleep(0)
                    happens()

                task = asyncio.create_task(then())
                answer = await client._http.get(f"/v1/events{query}", headers=headers or {})
                await task
                return answer

            return runner.run(both())

        return make

    def test_tell_what_changes_with_causes_first(self, follow, cluster):
        cluster.add("c")
        cluster.plan("c", "RUNNING")

        def happens():
            cluster.state = replace(
                cluster.state,
                leader=Leader(4, "follower:8083", "boot-f", "http://follower:8083"),
                journal={"1": JournalEntry(1, 5, "crash", (TaskMove("c", 0, "a", "b", "lost"),))},
            )
            cluster.report("c", 0, "FAILED")
            cluster.add("d")
            cluster.workers.pop("follower:8083")

        answer = follow(happens, "?limit=5")
        assert answer.headers["content-type"].startswith("text/event-stream")
        events = parsed(answer.text)
        assert [kind for kind, _, _ in events] == [
            "hello",
            "leader.changed",
            "worker.left",
            "connector.created",
            "tasks.moved",
            "task.changed",
        ]
        assert events[0][1] == "boot-l-0"
        assert events[1][2]["to"] == {"worker": "follower:8083", "epoch": 4}
        assert events[4][2]["moves"][0]["why"] == "lost"
        assert events[5][2]["to"]["state"] == "UNASSIGNED"

    def test_of_one_connector_leave_out_the_others(self, follow, cluster):
        def happens():
            cluster.add("other")
            cluster.add("c")

        events = parsed(follow(happens, "?connector=c&limit=1").text)
        assert [(kind, data.get("connector")) for kind, _, data in events[1:]] == [("connector.created", "c")]

    def test_config_and_state_are_told_apart(self, follow, cluster):
        cluster.add("c", version=1, config_version=1)
        cluster.add("d", version=1, config_version=1)

        def happens():
            cluster.add("c", version=2, config_version=1, target_state="PAUSED")
            cluster.add("d", version=2, config_version=2)

        events = parsed(follow(happens, "?limit=2").text)
        assert [(data["connector"], data["what"]) for _, _, data in events[1:]] == [("c", "state"), ("d", "config")]

    def test_are_taken_up_where_they_were_cut_off(self, follow, cluster):
        first = parsed(follow(lambda: cluster.add("c"), "?limit=1").text)
        cluster.add("d")
        second = parsed(follow(lambda: None, "?limit=1", {"last-event-id": first[-1][1]}).text)
        assert [kind for kind, _, _ in second] == ["hello", "connector.created"]
        assert second[1][2]["connector"] == "d"

    @pytest.mark.parametrize("last", ["ffff-3", "nonsense", "boot-l-99"])
    def test_that_nobody_has_any_more_are_a_reset(self, follow, cluster, last):
        events = parsed(follow(lambda: cluster.add("c"), "?limit=1", {"last-event-id": last}).text)
        assert events[0][0] == "reset"

    def test_end_with_the_worker_and_after_their_longest_time(self, connect, herder):
        client = connect(herder, events_s_max=60.0)
        client.app.state.api.ending.set()
        assert [kind for kind, _, _ in parsed(client.get("/v1/events").text)] == ["hello"]
        assert [kind for kind, _, _ in parsed(connect(herder).get("/v1/events").text)] == ["hello"]

    def test_have_a_limit_of_listeners_and_of_nonsense(self, client, monkeypatch):
        assert client.get("/v1/events?limit=0").status_code == 400
        assert client.get("/v1/events?limit=x").status_code == 400
        assert client.get("/v1/events", headers={"accept": "application/json"}).status_code == 406
        monkeypatch.setattr(feeds, "LISTENERS_MAX", 0)
        answer = client.get("/v1/events")
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")

    def test_drop_a_listener_that_is_too_slow(self, runner, cluster, herder, monkeypatch):
        monkeypatch.setattr(feeds, "QUEUE_MAX", 2)

        async def run():
            feed = feeds.EventFeed(herder.view, lambda: 0.0)
            async with feed.listening(None) as (listener, _):
                for number in range(4):
                    cluster.add(f"c{number}")
                feed.compare()
                assert listener.is_overrun
            await feed.close()

        runner.run(run())


ROW = {"type": "record", "name": "Value", "fields": [{"name": "id", "type": "long"}]}


def wider(*more):
    return {**ROW, "fields": [*ROW["fields"], *more]}


class TestSchemaHistory:
    @pytest.fixture
    def client(self, connect, herder):
        log = SchemaLog()
        schemas = (
            ROW,
            wider({"name": "note", "type": ["null", "string"], "default": None}),
            wider({"name": "note", "type": ["null", {"type": "int", "logicalType": "date"}], "default": None}),
        )
        for number, schema in enumerate(schemas):
            meta = RegistrationMeta(7, ("public", "orders"), None, f"ddl {number}")
            for record in log.plan_registration("p.orders-value", schema, meta).records:
                log.apply(*record)
        return connect(herder, schemas=lambda: log)

    def test_shows_what_came_went_and_changed(self, client):
        found = client.get("/v1/schemas/p.orders-value/history").json()
        first, second, third = found["versions"]
        assert (first["columns"], first["added"]) == ({"id": "long"}, [])
        assert (second["added"], second["columns"]["note"]) == (["note"], "string?")
        assert (third["retyped"], third["columns"]["note"]) == (["note"], "date?")
        assert third["table"] == {"id": 7, "path": ["public", "orders"]}
        assert third["ddl"] == "ddl 2"

    def test_lists_subjects(self, client):
        (found,) = client.get("/v1/schemas").json()["subjects"]
        assert (found["subject"], found["versions"], found["table"]) == ("p.orders-value", 3, "public.orders")

    def test_of_an_unknown_subject_is_404(self, client):
        assert client.get("/v1/schemas/x/history").status_code == 404

    def test_without_a_log_says_so(self, connect, herder):
        assert connect(herder).get("/v1/schemas").status_code == 501
