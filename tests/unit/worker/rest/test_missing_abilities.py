"""No request is an internal error because of the class of its connector: every operation, of a connector of each class."""

from __future__ import annotations

import asyncio
import json
import sys

import pytest
from cdcworker.connectors.api.sink import KeepsDeadLetters, KeepsOffsets
from cdcworker.connectors.registry import names as registry
from cdcworker.schemas.errors import CODES, CdcError
from cdcworker.worker.dead_letters.child import answer as letters_answer
from cdcworker.worker.dead_letters.service import DeadLetters
from cdcworker.worker.diagnostics.explain import Explainer
from cdcworker.worker.diagnostics.tail import TailChildren
from cdcworker.worker.diagnostics.verify import Verifier
from cdcworker.worker.http.errors import from_cdc
from cdcworker.worker.offsets.child import answer as offsets_answer
from cdcworker.worker.offsets.sink import SinkOffsetsClient
from cdcworker.worker.server.application import ENDPOINTS, create_app

from tests.app_in_memory import Operation, ask, path_of
from tests.unit.worker.conftest import FakeHerder, KeptOffsets, api_settings

ENDS = (sys.executable, "-c", "pass")
TELLS = (sys.executable, "-c", "print('{}')")
MYSQL = {"topic.prefix": "p", "database.hostname": "db", "database.user": "u", "database.server.id": "1"}
CONFIGS = {
    "mysql": MYSQL,
    "mariadb": MYSQL,
    "postgres": {"topic.prefix": "p", "database.hostname": "db", "database.user": "u", "database.dbname": "d"},
    "datagen": {"topic.prefix": "p", "tables": "1"},
    "file": {"file": "/tmp/cdcworker/in", "topic": "p"},
    "file-sink": {"file": "/tmp/cdcworker/out", "topics": "p.public.t"},
    "http": {"topic.prefix": "p", "http.url": "http://127.0.0.1:1/", "http.table": "t", "http.key": "id"},
    "http-sink": {"topics": "p.public.t", "http.url": "http://127.0.0.1:1/"},
    "jdbc-sink": {
        "topics": "p.public.t",
        "connection.url": "jdbc:postgresql://127.0.0.1:1/d",
        "connection.username": "u",
    },
    "kafka": {"topics": "p.public.t", "target.bootstrap.servers": "127.0.0.1:1"},
    "nats": {"topics": "p.public.t", "nats.servers": "127.0.0.1:1", "nats.stream": "s"},
    "opensearch": {"topics": "p.public.t", "connection.url": "http://127.0.0.1:1"},
    "query": {
        "topic.prefix": "p",
        "connection.url": "jdbc:sqlite:/tmp/cdcworker/in.db",
        "query": "select 1 as id",
        "query.table": "t",
        "mode": "diff",
        "query.key": "id",
    },
    "rabbitmq": {"topics": "p.public.t", "rabbitmq.addresses": "127.0.0.1:1"},
    "redis": {"topics": "p.public.t", "redis.hosts": "127.0.0.1:1"},
    "s3": {"topics": "p.public.t", "warehouse.path": "/tmp/cdcworker/files"},
    "stdout": {"topics": "p.public.t", "file": "/tmp/cdcworker/lines"},
    "spark": {"topics": "p.public.t", "warehouse.hostname": "db", "warehouse.user": "u", "warehouse.dbname": "d"},
}
WHOLE_SETS = {
    **CONFIGS["spark"], "warehouse": "iceberg", "warehouse.path": "/tmp/cdcworker/lake", "consistency": "source",
}  # fmt: skip
BODIES = {"CreateSnapshot": {"tables": ["public.t"]}, "Offsets": {"offsets": []}}
OF_CONNECTORS = [Operation(each.method, each.path, each.body) for each in ENDPOINTS if "{connector}" in each.path]


def asked_where_it_is_offered(ability, answer, found):
    """The answer of a child, which is asked in this process: no target is opened of a class that has the ability."""

    def asked(question):
        plugin = registry.lookup(question["config"]["connector.class"])
        return found if issubclass(plugin.load(), ability) else answer(question)

    return asked


class SinksOffsets(KeptOffsets):
    """Offsets as a worker's service has them; those of sources are in memory."""

    def __init__(self):
        super().__init__()
        ask = asked_where_it_is_offered(KeepsOffsets, offsets_answer, {"offsets": []})
        self._sinks = SinkOffsetsClient({}, dict, ask=ask)

    def read(self, connector):
        return self._sinks.read(connector) if connector.kind == "sink" else super().read(connector)


@pytest.fixture
def app(cluster):
    made = []

    def make(plugin, config):
        name = plugin.name
        cluster.add("c", {"connector.class": name, **config}, kind=plugin.kind, target_state="STOPPED")
        if plugin.kind == "sink":
            cluster.add("s", {"connector.class": "postgres", **CONFIGS["postgres"]})
        found = {"total": 0, "letters": [], "redriven": 0, "next": None}
        letters = asked_where_it_is_offered(KeepsDeadLetters, letters_answer, found)
        settings = api_settings(
            {
                "leader_wait_s": 0.0,
                "catch_up_s": 0.0,
                "reply_timeout_s": 0.1,
                "offsets": SinksOffsets(),
                "dead_letters": DeadLetters({"bootstrap.servers": "k:1"}, {}, "g.schemas", letters),
                "verifier": Verifier("leader:8083", {}, ENDS),
                "explainer": Explainer({}, {}, {}, TELLS),
                "tail": TailChildren({}, "g.schemas", ENDS),
                "examine": lambda question, timeout_s: [],
                "plan": lambda connector: [{}],
            }
        )
        herder = FakeHerder(cluster)
        made.append(create_app(herder, settings=settings, checks=lambda config, timeout_s: []))
        return made[-1]

    yield make
    for one in made:
        one.state.api.close()
        one.state.api.services.verifier.stop()


def answers(app):
    """(operation, status, text) of each operation of a connector; deleted it is at the end."""

    async def all_answers():
        for one in sorted(OF_CONNECTORS, key=lambda one: one.method == "DELETE"):
            body = json.dumps(BODIES.get(one.body, {})).encode() if one.body else b""
            path = path_of(one.path, snapshot="x")
            query = "?of=public.t&key=id=1&follow=false" if path.endswith(("/explain", "/changes")) else ""
            found = await ask(app, one.method, path + query, body)
            yield one, found.status, found.body.decode()

    async def listed():
        return [item async for item in all_answers()]

    return asyncio.run(listed())


@pytest.mark.parametrize("plugin", registry.plugins(), ids=lambda plugin: plugin.name)
def test_no_operation_is_an_internal_error_for_a_class(app, plugin):
    found = answers(app(plugin, CONFIGS[plugin.name]))
    assert len(found) == len(OF_CONNECTORS)
    assert [(str(one), status, text) for one, status, text in found if status == 500] == []
    refused = [
        (one, json.loads(text)) for one, status, text in found if 400 <= status < 500 and one.path.startswith("/v1/")
    ]
    assert all(body["code"] in CODES for _, body in refused), refused


CANNOT = {
    ("GET", "dead-letters", "file-sink"): "letters.not_offered",
    ("POST", "dead-letters/redrive", "file-sink"): "letters.not_offered",
    ("GET", "dead-letters", "postgres"): "letters.not_kept",
    ("POST", "verify", "file-sink"): "verify.unfit",
    ("POST", "verify", "file"): "verify.unfit",
    ("POST", "snapshots", "spark"): "rest.no_snapshots",
    ("POST", "snapshots", "file"): "rest.no_snapshots",
    ("GET", "maintenance", "file-sink"): "rest.no_maintenance",
    ("POST", "maintenance", "postgres"): "rest.no_maintenance",
}


@pytest.mark.parametrize(("method", "path", "name"), CANNOT)
def test_what_a_class_cannot_do_is_told_with_a_code(app, method, path, name):
    made = app(registry.lookup(name), CONFIGS[name])
    body = json.dumps(BODIES["CreateSnapshot"]).encode() if path == "snapshots" else b""
    found = asyncio.run(ask(made, method, f"/v1/connectors/c/{path}", body))
    assert (found.status in (400, 409), json.loads(found.body)["code"]) == (True, CANNOT[method, path, name])


def test_letters_of_whole_transactions_are_not_sent_again_and_that_is_no_internal_error(app, monkeypatch):
    monkeypatch.setattr(
        "tests.unit.worker.rest.test_missing_abilities.asked_where_it_is_offered", lambda _, answer, __: answer
    )
    found = asyncio.run(ask(app(registry.lookup("spark"), WHOLE_SETS), "POST", "/v1/connectors/c/dead-letters/redrive"))
    assert (found.status, json.loads(found.body)["code"]) == (400, "spark.letters_elsewhere")


def test_a_sink_without_offsets_of_its_own_is_no_internal_error(cluster):
    sink = cluster.add("w", {"connector.class": "file-sink"}, kind="sink")
    error = {"code": "offsets.not_offered", "kind": "environment", "message": "no", "hint": "h"}
    with pytest.raises(CdcError) as caught:
        SinkOffsetsClient({}, dict, ask=lambda question: {"error": error}).read(sink)
    assert (caught.value.code, from_cdc(caught.value).status) == ("offsets.not_offered", 400)
