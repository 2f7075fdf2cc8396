"""Kafka Connect's REST API as its reference states it: each endpoint with each documented status, on leader and follower.

Two real herders share a cluster in memory; tasks and databases are not needed for what is asked here.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from cdcworker.coordinator import memory
from cdcworker.coordinator.kafka.internal_topics import TopicNames
from cdcworker.coordinator.log.offset_records import OffsetRecord, offset_key, offset_value, offsets_partition
from cdcworker.coordinator.model import PutConnector, Reply
from cdcworker.schemas.errors import CdcError
from cdcworker.worker.app import plan
from cdcworker.worker.herder.config import HerderConfig
from cdcworker.worker.herder.herder import Herder
from cdcworker.worker.offsets import child as offsets_main
from cdcworker.worker.offsets import model as offsets
from cdcworker.worker.offsets.sink import SinkOffsetsClient
from cdcworker.worker.offsets.source import OffsetsTopic, SourceOffsets
from cdcworker.worker.protocol.task_spec import ClusterTopics
from cdcworker.worker.rest.settings import ApiSettings, RequestLimits, Services
from cdcworker.worker.server.application import ENDPOINTS, create_app

from tests import herders
from tests.herders import eventually

GEN = {"connector.class": "datagen", "topic.prefix": "p", "tasks.max": "2"}
C = "/connectors/{connector}"


# -- the cluster --------------------------------------------------------------------------------------------------------


class Keeper:
    """Offsets as a worker keeps them, with the log in memory instead of in Kafka."""

    def __init__(self, group: str, folder: Path, topic: str = "t") -> None:
        self._group = group
        self.stored: list[memory.LogRecord] = []
        self._source = SourceOffsets(
            OffsetsTopic({}, group, ClusterTopics("configs", "offsets", "status", "schemas"), "w", 3),
            self._read,
            lambda _: self,
        )
        providers = {"file.connector.paths": str(folder)}
        self._sink = SinkOffsetsClient(providers, lambda: {topic: 1}, ask=offsets_main.answer)

    def _read(self, topic: str) -> list[memory.LogRecord]:
        return self.stored if topic == "offsets" else list(memory.cluster(self._group, 6.0).configs.records)

    def begin(self) -> None: ...

    def commit(self) -> None: ...

    def close(self) -> None: ...

    def produce(self, topic: str, key: bytes, value: bytes | None, partition: int) -> None:
        self.stored.append(memory.LogRecord(key.decode(), json.loads(value) if value else None, {}, 0, partition))

    def store(self, name: str, task: int, position: dict[str, Any]) -> None:
        key = offset_key(name, {"server": "p", "task": task})
        value = offset_value(OffsetRecord("i", 1, position))
        self.stored.append(memory.LogRecord(key, value, {}, 0, offsets_partition(name, task, 3)))

    def read(self, connector: Any) -> Any:
        return (self._sink if connector.kind == "sink" else self._source).read(connector)

    def alter(self, connector: Any, barrier: int, changes: Any, *, dry_run: bool = False) -> bool:
        if connector.name == "moving":
            raise CdcError(offsets.INTERRUPTED, "the connector does not stand still")
        kind = self._sink if connector.kind == "sink" else self._source
        return kind.alter(connector, barrier, changes, dry_run=dry_run)


class Variant:
    """The same herder with another picture: how a worker is while it starts, hangs, or has no leader."""

    def __init__(self, herder: Herder, **changes: Any) -> None:
        self._herder, self._changes = herder, changes

    def view(self) -> Any:
        view = self._herder.view()
        changes = dict(self._changes)
        if changes.pop("leaderless", False):
            changes |= {"state": replace(view.state, leader=None), "is_leader": False}
        return replace(view, **changes)

    def submit(self, request: Any) -> Future[Reply]:
        future: Future[Reply] = Future()
        future.set_result(Reply("no_leader"))
        return future

    def forget_topics(self, connector: str) -> None: ...


@dataclass
class Worker:
    herder: Herder
    clients: dict[str, httpx.AsyncClient]


@dataclass
class Two:
    runner: asyncio.Runner
    workers: dict[str, Worker]
    keeper: Keeper
    folder: Path

    def ask(self, worker: str, method: str, path: str, app: str = "main", **options: Any) -> httpx.Response:
        return self.runner.run(self.workers[worker].clients[app].request(method, path, **options))

    def make(self, name: str, state: str = "RUNNING", config: dict[str, str] | None = None) -> None:
        """Through the leader, until both know it and its tasks are as they are to be."""
        if state == "PAUSED":
            self.make(name, "RUNNING", config)
        config = {"name": name, **(config or GEN)}
        kind = "sink" if config["connector.class"] == "file-sink" else "source"
        command = PutConnector(name, config, kind=kind, target_state=state)
        assert self.workers["leader"].herder.submit(command).result(60).outcome == "ok"
        wanted = 0 if state == "STOPPED" else int(config.get("tasks.max", "1"))
        eventually(lambda: all(self._settled(worker.herder, name, state, wanted) for worker in self.workers.values()))

    @staticmethod
    def _settled(herder: Herder, name: str, state: str, wanted: int) -> bool:
        view = herder.view()
        planned = view.state.task_sets.get(name)
        running = [status for task, status in view.statuses.items() if task.connector == name]
        done = all(status.state == state for status in running) and len(running) == wanted
        return planned is not None and (done or state == "STOPPED") and len(planned.tasks) == wanted


def herder_of(group: str, name: str) -> Herder:
    config = HerderConfig(
        kafka={},
        group_id=group,
        worker_id=f"{name}:8083",
        url=f"http://{name}:8083",
        topics=TopicNames.of_group(group),
        offsets_partitions=3,
        session_timeout_s=herders.SESSION_S,
        version="1",
        backend="memory",
    )
    return Herder(config, plan, herders.StubLauncher())


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    with cluster_of_two(tmp_path_factory.mktemp("sinks")) as made:
        yield made


@contextlib.contextmanager
def cluster_of_two(folder: Path) -> Iterator[Two]:
    group = f"c-{uuid.uuid4().hex[:8]}"
    started = [herder_of(group, name) for name in ("one", "other")]
    with asyncio.Runner() as runner:
        try:
            for herder in started:
                herder.start()
                assert herder.wait_started(30)
            eventually(lambda: all(len(herder.view().workers) == 2 for herder in started))
            leader = eventually(lambda: next((herder for herder in started if herder.view().is_leader), None))
            follower = next(herder for herder in started if herder is not leader)
            eventually(lambda: follower.view().state.leader is not None)
            yield _two(runner, leader, follower, Keeper(group, folder), folder)
        finally:
            for herder in started:
                herder.stop()


def _two(runner: asyncio.Runner, leader: Herder, follower: Herder, keeper: Keeper, folder: Path) -> Two:
    limits = RequestLimits(leader_wait_s=0.0, events_s_max=0.0)
    settings = ApiSettings(limits=limits, services=Services(offsets=keeper), live_checks=False)
    target: list[httpx.ASGITransport] = []

    def client(herder: Any, **changes: Any) -> httpx.AsyncClient:
        transport = httpx.MockTransport(lambda request: target[0].handle_async_request(request))
        app = create_app(herder, settings=replace(settings, **changes), transport=transport)
        runner.run(app.state.api.forwarder.start())
        target.append(httpx.ASGITransport(app=app))
        return httpx.AsyncClient(transport=target[-1], base_url="http://w", timeout=30)

    workers = {}
    for role, herder in (("leader", leader), ("follower", follower)):
        workers[role] = Worker(
            herder,
            {
                "main": client(herder),
                "untracked": client(herder, topic_tracking=False),
                "no reset": client(herder, topic_tracking_reset=False),
                "leaderless": client(Variant(herder, leaderless=True)),
                "starting": client(Variant(herder, ready=False)),
                "hanging": client(Variant(herder, last_tick_age_s=11.0)),
            },
        )
    two = Two(runner, workers, keeper, folder)
    for name, state in (("run", "RUNNING"), ("paused", "PAUSED"), ("stopped", "STOPPED"), ("moving", "STOPPED")):
        two.make(name, state)
    two.make("sink", "STOPPED", {"connector.class": "file-sink", "file": str(folder / "out"), "topics": "t"})
    return two


# -- the reference ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """One request. `{new}` in it is a connector that nobody else uses, made before in the state `made`."""

    endpoint: str
    status: int
    path: str
    message: str | None = None
    body: Any = None
    keys: frozenset[str] | None = None
    exact: Any = None
    made: str = ""
    app: str = "main"
    headers: dict[str, str] = field(default_factory=dict)
    why: str = ""

    def __str__(self) -> str:
        return f"{self.endpoint} {self.status} {self.why or self.path}"


def case(endpoint: str, status: int, path: str = "", message: str | None = None, **more: Any) -> Case:
    keys = more.pop("keys", None)
    path = path or endpoint.split(" ")[1]
    return Case(endpoint, status, path, message, keys=frozenset(keys.split()) if keys is not None else None, **more)


INFO = "name config tasks type"
STATE = "name connector tasks type"
NO_LEADER = "Cannot complete request momentarily due to no known leader URL, likely because a rebalance was underway."
CONFLICT = "Cannot complete request because of a conflicting operation (e.g. worker rebalance)"
NOT_STOPPED = (
    "Connectors must be in the STOPPED state before their offsets can be modified. This can be done for the specified "
    "connector by issuing a 'PUT' request to the '/connectors/run/stop' endpoint"
)
INVALID = (
    "Connector configuration is invalid and contains the following 1 error(s):\n"
    'Missing required configuration "topic.prefix" which has no default value.\n'
    "You can also find the above list of errors at the endpoint `/connector-plugins/{connectorType}/config/validate`"
)
HEALTHY = "Worker has completed startup and is ready to handle requests."
RETRY = {"retry-after": "1", "x-cdc-reason": "rebalance"}
EMPTY = ""
ONE = {"offsets": [{"partition": {"server": "p", "task": 0}, "offset": {"v": 1, "next": 5}}]}
SINK_ONE = {"offsets": [{"partition": {"kafka_topic": "t", "kafka_partition": 0}, "offset": {"kafka_offset": "7"}}]}
BAD_SINK = {"offsets": [{"partition": {"kafka_topic": "t"}, "offset": None}]}
NO_PREFIX = {"connector.class": "datagen"}
CREATE = {"name": "{new}", "config": GEN}


def leaderless(endpoint: str, path: str, body: Any = None) -> Case:
    return case(endpoint, 409, path, NO_LEADER, body=body, app="leaderless", headers=RETRY, why="no leader")


CASES = (
    case("GET /", 200, keys="version commit kafka_cluster_id"),
    case("GET /health", 200, exact={"status": "healthy", "message": HEALTHY}),
    case("GET /health", 503, app="starting", exact={"status": "starting", "message": "Worker is still starting up."}),
    case("GET /health", 500, app="hanging", keys="status message"),
    case("GET /connectors", 200, "/connectors/", why="with a slash at the end"),
    case("GET /connectors", 200, "/connectors?expand=status&expand=info", why="expanded"),
    case("GET /connectors", 200, "/connectors?expand=nonsense", why="expanded by an unknown value"),
    case("POST /connectors", 201, body=CREATE, keys=INFO, headers={"location": "/connectors/{new}"}),
    case("POST /connectors", 201, body={**CREATE, "initial_state": "paused"}, keys=INFO, why="paused"),
    case("POST /connectors", 400, body={"name": "{new}", "config": NO_PREFIX}, message=INVALID),
    case(
        "POST /connectors",
        400,
        body={"name": "{new}", "config": {**GEN, "name": "other"}},
        message="Connector name configuration (other) doesn't match connector name in the URL ({new})",
        why="two names",
    ),
    case("POST /connectors", 400, body={**CREATE, "initial_state": "odd"}, why="initial_state"),
    case("POST /connectors", 400, body={**CREATE, "more": 1}, why="an unknown member"),
    case(
        "POST /connectors",
        409,
        body={"name": "run", "config": GEN},
        message="Connector run already exists",
        headers={"x-cdc-reason": "exists"},
        why="exists",
    ),
    leaderless("POST /connectors", "/connectors", CREATE),
    case(f"GET {C}", 200, "/connectors/run", keys=INFO),
    case(f"GET {C}", 404, "/connectors/nope", "Connector nope not found"),
    case(f"DELETE {C}", 204, "/connectors/{new}", EMPTY, made="RUNNING"),
    case(f"DELETE {C}", 404, "/connectors/nope", "Connector nope not found"),
    leaderless(f"DELETE {C}", "/connectors/run"),
    case(f"GET {C}/config", 200, "/connectors/run/config", exact={"name": "run", **GEN}),
    case(f"GET {C}/config", 404, "/connectors/nope/config", "Connector nope not found"),
    case(
        f"PUT {C}/config",
        201,
        "/connectors/{new}/config",
        body=GEN,
        keys=INFO,
        headers={"location": "/connectors/{new}"},
    ),
    case(f"PUT {C}/config", 200, "/connectors/{new}/config", body={**GEN, "seed": 7}, keys=INFO, made="STOPPED"),
    case(f"PUT {C}/config", 400, "/connectors/{new}/config", body=NO_PREFIX, message=INVALID),
    leaderless(f"PUT {C}/config", "/connectors/run/config", GEN),
    case(
        f"PATCH {C}/config",
        200,
        "/connectors/{new}/config",
        body={"seed": "1", "tasks.max": None},
        keys=INFO,
        made="STOPPED",
    ),
    case(f"PATCH {C}/config", 400, "/connectors/run/config", body={"topic.prefix": None}, message=INVALID),
    case(f"PATCH {C}/config", 400, "/connectors/run/config", body={"name": "zzz"}, why="another name"),
    case(f"PATCH {C}/config", 404, "/connectors/nope/config", body={"seed": "1"}, message="Connector nope not found"),
    leaderless(f"PATCH {C}/config", "/connectors/run/config", {"seed": "8"}),
    case(f"GET {C}/status", 200, "/connectors/run/status", keys=STATE),
    case(f"GET {C}/status", 404, "/connectors/nope/status", "No status found for connector nope"),
    case(f"POST {C}/restart", 204, "/connectors/run/restart", EMPTY),
    case(
        f"POST {C}/restart",
        202,
        "/connectors/{new}/restart?includeTasks=True&onlyFailed=False",
        keys=STATE,
        made="RUNNING",
    ),
    case(f"POST {C}/restart", 202, "/connectors/stopped/restart?includeTasks=true", keys=STATE, why="stopped"),
    case(f"POST {C}/restart", 404, "/connectors/nope/restart", "Unknown connector: nope"),
    case(f"POST {C}/restart", 404, "/connectors/nope/restart?onlyFailed=true", "Unknown connector: nope", why="failed"),
    leaderless(f"POST {C}/restart", "/connectors/run/restart"),
    case(f"PUT {C}/pause", 202, "/connectors/paused/pause", EMPTY),
    case(f"PUT {C}/pause", 404, "/connectors/nope/pause", "Unknown connector nope"),
    case(f"PUT {C}/resume", 202, "/connectors/run/resume", EMPTY),
    case(f"PUT {C}/resume", 404, "/connectors/nope/resume", "Unknown connector nope"),
    case(f"PUT {C}/stop", 204, "/connectors/{new}/stop", EMPTY, made="RUNNING"),
    case(f"PUT {C}/stop", 204, "/connectors/stopped/stop", EMPTY, why="again"),
    case(f"PUT {C}/stop", 404, "/connectors/nope/stop", "Unknown connector nope"),
    leaderless(f"PUT {C}/stop", "/connectors/run/stop"),
    case(f"GET {C}/tasks", 200, "/connectors/run/tasks"),
    case(f"GET {C}/tasks", 404, "/connectors/nope/tasks", "Connector nope not found"),
    case(f"GET {C}/tasks-config", 200, "/connectors/run/tasks-config", keys="run-0 run-1"),
    case(f"GET {C}/tasks-config", 404, "/connectors/nope/tasks-config", "Connector nope not found"),
    case(f"GET {C}/tasks/{{task:int}}/status", 200, "/connectors/run/tasks/1/status", keys="id state worker_id"),
    case(f"GET {C}/tasks/{{task:int}}/status", 404, "/connectors/run/tasks/9/status", "No status found for task run-9"),
    case(f"POST {C}/tasks/{{task:int}}/restart", 204, "/connectors/{new}/tasks/0/restart", EMPTY, made="RUNNING"),
    case(f"POST {C}/tasks/{{task:int}}/restart", 404, "/connectors/nope/tasks/0/restart", "Unknown connector: nope"),
    case(
        f"POST {C}/tasks/{{task:int}}/restart",
        404,
        "/connectors/run/tasks/9/restart",
        "Unknown task: run-9",
        why="task",
    ),
    case(f"POST {C}/tasks/{{task:int}}/restart", 409, "/connectors/stopped/tasks/0/restart", why="stopped"),
    leaderless(f"POST {C}/tasks/{{task:int}}/restart", "/connectors/run/tasks/0/restart"),
    case(f"GET {C}/topics", 200, "/connectors/nope/topics", exact={"nope": {"topics": []}}),
    case(f"GET {C}/topics", 403, "/connectors/run/topics", "Topic tracking is disabled.", app="untracked"),
    case(f"PUT {C}/topics/reset", 202, "/connectors/run/topics/reset", EMPTY),
    case(f"PUT {C}/topics/reset", 403, "/connectors/run/topics/reset", "Topic tracking is disabled.", app="untracked"),
    case(
        f"PUT {C}/topics/reset",
        403,
        "/connectors/run/topics/reset",
        "Topic tracking reset is disabled.",
        app="no reset",
    ),
    case(f"GET {C}/offsets", 200, "/connectors/run/offsets", keys="offsets"),
    case(f"GET {C}/offsets", 404, "/connectors/nope/offsets", "Connector nope not found"),
    case(
        f"PATCH {C}/offsets",
        200,
        "/connectors/{new}/offsets",
        body=ONE,
        exact={"message": "The offsets for this connector have been altered successfully"},
        made="STOPPED",
    ),
    case(
        f"PATCH {C}/offsets",
        200,
        "/connectors/sink/offsets",
        body=SINK_ONE,
        exact={"message": "The offsets for this connector have been altered successfully"},
        why="of a sink",
    ),
    case(
        f"PATCH {C}/offsets",
        400,
        "/connectors/stopped/offsets",
        body={},
        message="Partitions / offsets need to be provided for an alter offsets request",
        why="empty",
    ),
    case(
        f"PATCH {C}/offsets",
        400,
        "/connectors/sink/offsets",
        body=BAD_SINK,
        message="The partition for a sink connector offset must contain the keys 'kafka_topic' and 'kafka_partition'",
        why="a sink's shape",
    ),
    case(f"PATCH {C}/offsets", 400, "/connectors/run/offsets", NOT_STOPPED, body=ONE, why="not stopped"),
    case(f"PATCH {C}/offsets", 404, "/connectors/nope/offsets", "Connector nope not found", body=ONE),
    case(
        f"PATCH {C}/offsets",
        409,
        "/connectors/moving/offsets",
        f"{CONFLICT}: the connector does not stand still",
        body=ONE,
        headers={"retry-after": "1", "x-cdc-reason": "epoch"},
    ),
    leaderless(f"PATCH {C}/offsets", "/connectors/stopped/offsets", ONE),
    case(
        f"DELETE {C}/offsets",
        200,
        "/connectors/stopped/offsets",
        exact={"message": "The offsets for this connector have been reset successfully"},
    ),
    case(f"DELETE {C}/offsets", 400, "/connectors/run/offsets", NOT_STOPPED),
    case(f"DELETE {C}/offsets", 404, "/connectors/nope/offsets", "Connector nope not found"),
    leaderless(f"DELETE {C}/offsets", "/connectors/stopped/offsets"),
    case("GET /connector-plugins", 200),
    case("GET /connector-plugins", 200, "/connector-plugins?connectorsOnly=false", why="all"),
    case("GET /connector-plugins/{plugin}/config", 200, "/connector-plugins/datagen/config"),
    case(
        "GET /connector-plugins/{plugin}/config", 200, "/connector-plugins/datagen/config?version=latest", why="latest"
    ),
    case("GET /connector-plugins/{plugin}/config", 400, "/connector-plugins/datagen/config?version=9.9", why="version"),
    case("GET /connector-plugins/{plugin}/config", 404, "/connector-plugins/x.Y/config", "Unknown plugin x.Y."),
    case(
        "PUT /connector-plugins/{plugin}/config/validate",
        200,
        "/connector-plugins/datagen/config/validate",
        body={**GEN, "name": "v"},
        keys="name error_count groups configs",
    ),
    case(
        "PUT /connector-plugins/{plugin}/config/validate",
        400,
        "/connector-plugins/file/config/validate",
        "Included connector type datagen does not match request type file",
        body=GEN,
        why="another class",
    ),
    case(
        "PUT /connector-plugins/{plugin}/config/validate",
        400,
        "/connector-plugins/datagen/config/validate",
        "Connector config contains no connector type",
        body={"name": "v"},
        why="no class",
    ),
    case("GET /admin/loggers", 200, keys="root"),
    case("GET /admin/loggers/{logger}", 200, "/admin/loggers/root", keys="level last_modified"),
    case("GET /admin/loggers/{logger}", 404, "/admin/loggers/no.such", "Logger no.such not found."),
    case(
        "PUT /admin/loggers/{logger}", 200, "/admin/loggers/conf.{new}", body={"level": "debug"}, exact=["conf.{new}"]
    ),
    case("PUT /admin/loggers/{logger}", 204, "/admin/loggers/conf.b?scope=cluster", EMPTY, body={"level": "INFO"}),
    case("PUT /admin/loggers/{logger}", 400, "/admin/loggers/conf.a", body={}),
    case(
        "PUT /admin/loggers/{logger}", 404, "/admin/loggers/conf.a", "invalid log level 'loud'.", body={"level": "loud"}
    ),
    case(f"POST {C}/tasks", 400, "/connectors/run/tasks", "Internal request missing required signature", body=[]),
    case(f"PUT {C}/fence", 400, "/connectors/run/fence", "Internal request missing required signature"),
)

DOCUMENTED = {
    "GET /": "200",
    "GET /health": "200 500 503",
    "GET /connectors": "200",
    "POST /connectors": "201 400 409",
    f"GET {C}": "200 404",
    f"DELETE {C}": "204 404 409",
    f"GET {C}/config": "200 404",
    f"PUT {C}/config": "200 201 400 409",
    f"PATCH {C}/config": "200 400 404 409",
    f"GET {C}/status": "200 404",
    f"POST {C}/restart": "202 204 404 409",
    f"PUT {C}/pause": "202 404",
    f"PUT {C}/resume": "202 404",
    f"PUT {C}/stop": "204 404 409",
    f"GET {C}/tasks": "200 404",
    f"GET {C}/tasks-config": "200 404",
    f"GET {C}/tasks/{{task:int}}/status": "200 404",
    f"POST {C}/tasks/{{task:int}}/restart": "204 404 409",
    f"GET {C}/topics": "200 403",
    f"PUT {C}/topics/reset": "202 403",
    f"GET {C}/offsets": "200 404",
    f"PATCH {C}/offsets": "200 400 404 409",
    f"DELETE {C}/offsets": "200 400 404",
    "GET /connector-plugins": "200",
    "GET /connector-plugins/{plugin}/config": "200 400 404",
    "PUT /connector-plugins/{plugin}/config/validate": "200 400",
    "GET /admin/loggers": "200",
    "GET /admin/loggers/{logger}": "200 404",
    "PUT /admin/loggers/{logger}": "200 204 400 404",
    f"POST {C}/tasks": "400",
    f"PUT {C}/fence": "400",
}


def test_every_documented_status_of_every_endpoint_is_asked_for():
    found: dict[str, set[str]] = {}
    for one in CASES:
        found.setdefault(one.endpoint, set()).add(str(one.status))
    missing = {name: sorted(set(wanted.split()) - found.get(name, set())) for name, wanted in DOCUMENTED.items()}
    assert {name: statuses for name, statuses in missing.items() if statuses} == {}
    own = ("/v1", "/ui")
    offered = {f"{endpoint.method} {endpoint.path}" for endpoint in ENDPOINTS if not endpoint.path.startswith(own)}
    ours = {"GET /healthz", "GET /readyz", "GET /metrics", "GET /metrics/connect"}
    assert offered - ours == set(DOCUMENTED)


def filled(value: Any, name: str) -> Any:
    if isinstance(value, str):
        return value.replace("{new}", name)
    if isinstance(value, dict):
        return {key: filled(item, name) for key, item in value.items()}
    if isinstance(value, list):
        return [filled(item, name) for item in value]
    return value


@pytest.mark.parametrize("role", ["leader", "follower"])
@pytest.mark.parametrize("one", CASES, ids=str)
def test_the_reference_holds(two, one, role):
    name = f"n{uuid.uuid4().hex[:8]}"
    if one.made:
        two.make(name, one.made)
    method = one.endpoint.split(" ")[0]
    options = {} if one.body is None else {"json": filled(one.body, name)}
    answer = two.ask(role, method, filled(one.path, name), one.app, **options)
    assert answer.status_code == one.status, answer.text
    for header, value in one.headers.items():
        assert answer.headers[header] == filled(value, name)
    if one.message == EMPTY:
        assert answer.content == b""
        return
    body = answer.json()
    if one.status >= 400 and one.endpoint != "GET /health":
        assert body["error_code"] == one.status
        has_more = one.path.startswith("/v1/")
        assert {"code", "suggestion"} <= set(body) if has_more else set(body) == {"error_code", "message"}
    if one.message is not None:
        assert body["message"] == filled(one.message, name)
    if one.keys is not None:
        assert one.keys <= set(body)
    if one.exact is not None:
        assert body == filled(one.exact, name)


# -- bodies that depend on what runs -------------------------------------------------------------------------------------


@pytest.fixture(params=["leader", "follower"])
def role(request):
    return request.param


def test_a_connector_is_shown_with_its_tasks(two, role):
    info = two.ask(role, "GET", "/connectors/run").json()
    tasks = [{"connector": "run", "task": 0}, {"connector": "run", "task": 1}]
    assert info == {"name": "run", "config": {"name": "run", **GEN}, "tasks": tasks, "type": "source"}
    shown = two.ask(role, "GET", "/connectors/run/tasks").json()
    assert [item["id"] for item in shown] == tasks
    assert shown[0]["config"]["connector.class"] == "datagen"


def test_states_tell_who_runs_what(two, role):
    def running():
        state = two.ask(role, "GET", "/connectors/run/status").json()
        return state if [task["state"] for task in state["tasks"]] == ["RUNNING", "RUNNING"] else None

    state = eventually(running)
    assert {key: state["connector"][key] for key in ("state",)} == {"state": "RUNNING"}
    assert {task["worker_id"] for task in state["tasks"]} == {"one:8083", "other:8083"}
    assert [set(task) for task in state["tasks"]] == [{"id", "state", "worker_id", "version"}] * 2
    assert state["type"] == "source"
    stopped = two.ask(role, "GET", "/connectors/stopped/status").json()
    assert (stopped["connector"]["state"], stopped["tasks"]) == ("STOPPED", [])
    paused = two.ask(role, "GET", "/connectors/paused/status").json()
    assert {task["state"] for task in paused["tasks"]} == {"PAUSED"}
    for value in ("nonsense", "status,info"):
        empty = two.ask(role, "GET", f"/connectors?expand={value}").json()
        assert {"run", "stopped"} <= set(empty)
        assert not any(empty.values())
    expanded = two.ask(role, "GET", "/connectors?expand=status&expand=info").json()
    assert expanded["stopped"]["status"] == stopped
    assert expanded["run"]["info"]["type"] == "source"


def test_what_restarts_is_shown_as_restarting(two, role):
    two.make(name := f"n{uuid.uuid4().hex[:8]}")
    plan = two.ask(role, "POST", f"/connectors/{name}/restart?includeTasks=true").json()
    assert plan["connector"]["state"] == "RESTARTING"
    assert [task["state"] for task in plan["tasks"]] == ["RESTARTING", "RESTARTING"]
    idle = two.ask(role, "POST", f"/connectors/{name}/restart?includeTasks=true&onlyFailed=true").json()
    assert idle["connector"]["state"] == "RUNNING"


def test_offsets_are_altered_and_forgotten_one_by_one(two, role):
    two.make(name := f"n{uuid.uuid4().hex[:8]}", "STOPPED")
    for task in (0, 1):
        two.keeper.store(name, task, {"v": 1, "next": task})
    path = f"/connectors/{name}/offsets"
    change = {
        "offsets": [
            {"partition": {"server": "p", "task": 0}, "offset": {"v": 1, "next": 50}},
            {"partition": {"server": "p", "task": 1}, "offset": None},
        ]
    }
    assert two.ask(role, "PATCH", path, json=change).status_code == 200
    assert two.ask(role, "GET", path).json() == {"offsets": change["offsets"][:1]}
    assert two.ask(role, "DELETE", path).status_code == 200
    assert two.ask(role, "GET", path).json() == {"offsets": []}


def test_a_definition_of_a_key_and_its_value_have_connects_members(two, role):
    keys = "name type required default_value importance documentation group width display_name dependents"
    keys += " order_in_group"
    found = two.ask(role, "GET", "/connector-plugins/datagen/config").json()
    assert {frozenset(item) for item in found} == {frozenset(keys.split())}
    detailed = two.ask(role, "GET", "/connector-plugins/datagen/config?details=true").json()
    assert {frozenset(item) for item in detailed} == {frozenset([*keys.split(), "order"])}
    sent = {"connector.class": "datagen", "name": "v"}
    infos = two.ask(role, "PUT", "/connector-plugins/datagen/config/validate", json=sent).json()
    assert infos["error_count"] == 1
    wrong = next(item for item in infos["configs"] if item["value"]["errors"])
    assert set(wrong["value"]) == {"name", "value", "recommended_values", "errors", "visible"}
    assert wrong["value"]["name"] == "topic.prefix"


@pytest.mark.parametrize(
    ("method", "path", "options", "status", "message"),
    [
        ("GET", "/nope", {}, 404, "HTTP 404 Not Found"),
        ("PUT", "/connectors", {}, 405, "HTTP 405 Method Not Allowed"),
        ("GET", "/connectors", {"headers": {"accept": "text/html"}}, 406, "HTTP 406 Not Acceptable"),
        (
            "PUT",
            "/connectors/run/resume",
            {"content": "x", "headers": {"content-type": "text/plain"}},
            415,
            "HTTP 415 Unsupported Media Type",
        ),
    ],
)
def test_the_web_frameworks_refusals_are_connects(two, role, method, path, options, status, message):
    answer = two.ask(role, method, path, **options)
    assert (answer.status_code, answer.json()) == (status, {"error_code": status, "message": message})


@pytest.mark.parametrize("name", ["a/b", "50%", "back\\slash", "semi;colon", "ü ?&#", "..", "a b"])
def test_any_name_works_everywhere(two, role, name):
    name = f"{name}-{role}" if name != ".." else name
    made = two.ask(role, "POST", "/connectors", json={"name": name, "config": GEN})
    assert made.status_code == 201, made.text
    place = made.headers["location"]
    assert place == "/connectors/" + (
        quote(name, safe="").replace(".", "%2E") if name == ".." else quote(name, safe="")
    )
    assert two.ask(role, "GET", place).json()["name"] == name
    assert two.ask(role, "PUT", f"{place}/pause").status_code == 202
    assert two.ask(role, "DELETE", place).status_code == 204
    assert two.ask(role, "GET", place).status_code == 404


def test_the_second_hop_is_the_last(two):
    answer = two.ask("follower", "PUT", "/connectors/run/stop?forward=false")
    assert (answer.status_code, answer.json()["message"]) == (409, CONFLICT)
    assert answer.headers["retry-after"] == "1"


def test_reads_are_answered_while_there_is_no_leader(two, role):
    for endpoint in DOCUMENTED:
        method, path = endpoint.split(" ")
        if method != "GET" or "{plugin}" in path or "{logger}" in path:
            continue
        path = path.replace("{connector}", "run").replace("{task:int}", "0")
        assert two.ask(role, "GET", path, "leaderless").status_code == 200, path


def test_while_the_lead_changes_hands_changes_are_done_or_told_to_come_back_and_reads_go_on(tmp_path):
    with cluster_of_two(tmp_path) as two:
        leader, follower = two.workers["leader"].herder, two.workers["follower"].herder
        ending = threading.Thread(target=leader.stop)
        answers: list[httpx.Response] = []

        def changed() -> bool:
            if len(answers) == 5:
                ending.start()
            verb = ("pause", "resume")[len(answers) % 2]
            answers.append(two.ask("follower", "PUT", f"/connectors/run/{verb}"))
            assert two.ask("follower", "GET", "/connectors/run/status").status_code == 200
            assert two.ask("follower", "GET", "/connectors").json() == sorted(
                ["moving", "paused", "run", "sink", "stopped"]
            )
            return follower.view().is_leader and answers[-1].status_code == 202

        eventually(changed, 30)
        ending.join()
        # 503: the leader took the request and ended without knowing what became of it.
        assert {answer.status_code for answer in answers} <= {202, 409, 503}
        for answer in (one for one in answers if one.status_code >= 400):
            assert int(answer.headers["retry-after"]) >= 1
            if answer.status_code == 409:
                assert answer.headers["x-cdc-reason"] in ("rebalance", "stale-epoch")
        made = two.ask("follower", "POST", "/connectors", json={"name": "after", "config": GEN})
        assert made.status_code == 201


def test_a_connector_that_is_created_paused_has_no_tasks_until_it_is_resumed(two, role):
    name = f"n{uuid.uuid4().hex[:8]}"
    made = two.ask(role, "POST", "/connectors", json={"name": name, "config": GEN, "initial_state": "PAUSED"})
    assert made.status_code == 201
    status = two.ask(role, "GET", f"/connectors/{name}/status").json()
    assert (status["connector"]["state"], status["tasks"]) == ("PAUSED", [])
    assert two.ask(role, "GET", f"/connectors/{name}/tasks").json() == []
    assert two.ask(role, "PUT", f"/connectors/{name}/resume").status_code == 202
    eventually(lambda: len(two.ask(role, "GET", f"/connectors/{name}/tasks").json()) == 2)
