"""A REST application over a herder in memory, and connectors that open nothing."""

from __future__ import annotations

import asyncio
import importlib.util
import itertools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, fields, replace
from types import SimpleNamespace
from typing import Any, Literal

import httpx
import pytest
from cdcworker.connectors.api.context import CheckFinding
from cdcworker.connectors.config.common_keys import ACCEPTED, CONNECTION_KEY, CONNECTOR_KEYS
from cdcworker.connectors.config.definition import ConfigDef, ConfigKey
from cdcworker.connectors.registry.names import UNKNOWN_CLASS
from cdcworker.connectors.registry.plugin import Plugin
from cdcworker.connectors.registry.shipped import BY_NAME
from cdcworker.coordinator.api import LogRecord
from cdcworker.coordinator.core.requests import PendingRequest, decide
from cdcworker.coordinator.log.config_fold import fold_all
from cdcworker.coordinator.model import (
    AssignedTask,
    Assignment,
    ClusterState,
    Connection,
    Connector,
    Leader,
    Presence,
    Reply,
    Request,
    TaskId,
    TaskSet,
    TaskState,
    TaskStatus,
    View,
)
from cdcworker.schemas.errors import CdcError
from cdcworker.worker.offsets.model import ConnectorOffset
from cdcworker.worker.rest.settings import ApiSettings, Protection, RequestLimits, Services
from cdcworker.worker.server.application import create_app
from cdcworker.worker.validation.validate import ConnectorCatalog

if importlib.util.find_spec("sniffio") is None:
    # httpx looks for it at each request, which takes as long as the request itself.
    sys.modules["sniffio"] = None  # type: ignore[assignment]

EPOCH = 3
LEADER_URL = "http://leader:8083"
FOLLOWER_URL = "http://follower:8083"
SECRET = "s3cr3t-hunter2"

DEFINITION = ConfigDef(
    [
        *CONNECTOR_KEYS,
        CONNECTION_KEY,
        ConfigKey("host", required=True, importance="HIGH", group="Source", doc="Where the source is.", connects=True),
        ConfigKey("port", "INT", default=5432, group="Source", connects=True),
        ConfigKey("password", "PASSWORD", group="Source", connects=False),
    ],
    ACCEPTED,
)
SOURCE = Plugin(
    "fake", "source", "tests:Fake", ("com.example.FakeConnector",), "A source that opens nothing", ("snapshot",)
)
SINK = Plugin("drain", "sink", "tests:Drain")


class _Plugin:
    config_def = DEFINITION


def lookup(name: str) -> Plugin:
    for plugin in (SOURCE, SINK, BY_NAME["spark"]):
        if name in (plugin.name, *plugin.aliases):
            return plugin
    raise CdcError(UNKNOWN_CLASS, "connector.class is not one of the known connectors (fake, drain)")


class FakeCatalog(ConnectorCatalog):
    def __init__(self) -> None:
        super().__init__(lookup, lambda: (SOURCE, SINK))

    def definition(self, plugin: Plugin) -> ConfigDef:
        return DEFINITION


@dataclass
class Cluster:
    """The folded log that all fake workers share, with the leader's own decisions on top."""

    state: ClusterState = field(
        default_factory=lambda: ClusterState(
            leader=Leader(EPOCH, "leader:8083", "boot-l", LEADER_URL), epoch=EPOCH, version=10
        )
    )
    workers: dict[str, Presence] = field(
        default_factory=lambda: {
            "leader:8083": Presence("leader:8083", "boot-l", LEADER_URL, "0.1.0", "h"),
            "follower:8083": Presence("follower:8083", "boot-f", FOLLOWER_URL, "0.1.0", "h"),
        }
    )
    statuses: dict[TaskId, TaskStatus] = field(default_factory=dict)
    topics: dict[str, frozenset[str]] = field(default_factory=dict)
    ids: Iterator[int] = field(default_factory=itertools.count)

    def decide(self, request: Request) -> Reply:
        decision = decide(self.state, PendingRequest(f"r{next(self.ids)}", request, 1000))
        records = [
            LogRecord(item.key, item.value, {**item.headers, "e": str(EPOCH)}, self.state.version + number)
            for number, item in enumerate(decision.records)
        ]
        self.state = fold_all(self.state, records)
        return decision.reply

    def add(self, name: str, config: Mapping[str, str] | None = None, **changes: Any) -> Connector:
        full = {"name": name, "connector.class": "fake", "host": "db", "password": SECRET, **(config or {})}
        connector = Connector(name, "inc-1", 1, full, changes.pop("target_state", "RUNNING"), "source")
        connector = replace(connector, **changes)
        self.state = replace(self.state, connectors={**self.state.connectors, name: connector})
        return connector

    def connect(self, name: str, config: Mapping[str, str] | None = None) -> Connection:
        full = {"connector.class": "fake", "host": "db", "password": SECRET, **(config or {})}
        connection = Connection(name, "inc-1", 1, full)
        self.state = replace(self.state, connections={**self.state.connections, name: connection})
        return connection

    def plan(self, name: str, *states: TaskState | None, worker: str = "follower:8083", **changes: Any) -> None:
        """A task set with one task per state, all held by one worker; None is assigned but not reported."""
        shares = tuple({"connector.class": "fake", "table": f"t{n}", "password": SECRET} for n in range(len(states)))
        tasks = TaskSet(changes.pop("incarnation", "inc-1"), 1, shares, **changes)
        held = tuple(AssignedTask(name, "inc-1", number, 100 + number) for number in range(len(states)))
        self.state = replace(
            self.state,
            task_sets={**self.state.task_sets, name: tasks},
            assignments={**self.state.assignments, worker: Assignment(self.workers[worker].boot_id, held)},
        )
        for number, state in enumerate(states):
            if state is not None:
                self.report(name, number, state, worker)

    def report(self, name: str, task: int, state: TaskState, worker: str = "follower:8083", **changes: Any) -> None:
        status = TaskStatus(name, task, state, worker, 100 + task)
        if state == "FAILED":
            error = {"code": "postgres.slot_lost", "kind": "environment", "message": "gone", "hint": "make one"}
            status = replace(status, error=error)
        self.statuses[TaskId(name, task)] = replace(status, **changes)


@dataclass
class FakeHerder:
    """One worker's herder. `script` gives replies in turn before the cluster decides itself."""

    cluster: Cluster
    leads: bool = True
    script: list[Reply | BaseException | None] = field(default_factory=list)
    submitted: list[Request] = field(default_factory=list)
    changes: dict[str, Any] = field(default_factory=dict)

    def view(self) -> View:
        name = "leader:8083" if self.leads else "follower:8083"
        cluster = self.cluster
        view = View(
            worker_id=name,
            boot_id=cluster.workers[name].boot_id if name in cluster.workers else "gone",
            url=LEADER_URL if self.leads else FOLLOWER_URL,
            kafka_cluster_id="kafka-1",
            ready=True,
            is_leader=self.leads,
            state=cluster.state,
            workers=dict(cluster.workers),
            statuses=dict(cluster.statuses),
            topics=dict(cluster.topics),
        )
        return replace(view, **self.changes)

    def submit(self, request: Request) -> Future[Reply]:
        self.submitted.append(request)
        future: Future[Reply] = Future()
        scripted = self.script.pop(0) if self.script else self._reply(request)
        if isinstance(scripted, BaseException):
            future.set_exception(scripted)
        elif scripted is not None:
            future.set_result(scripted)
        return future

    def forget_topics(self, connector: str) -> None:
        self.cluster.topics.pop(connector, None)

    def _reply(self, request: Request) -> Reply:
        leader = self.cluster.state.leader
        if leader is None:
            return Reply("no_leader")
        return self.cluster.decide(request) if self.leads else Reply("not_leader", leader_url=leader.url)


class Checks:
    """Live checks that answer from a list, and remember what they were given."""

    def __init__(self) -> None:
        self.findings: list[CheckFinding] = []
        self.asked: list[dict[str, str]] = []

    def __call__(self, config: Mapping[str, str], timeout_s: float) -> Sequence[CheckFinding]:
        self.asked.append(dict(config))
        return list(self.findings)


@dataclass
class KeptOffsets:
    """Offsets in memory, which remember what was asked of them."""

    found: list[ConnectorOffset] = field(default_factory=list)
    managed: bool = True
    error: Exception | None = None
    asked: list[tuple[str, int, Sequence[ConnectorOffset] | None]] = field(default_factory=list)

    def read(self, connector: Connector) -> Sequence[ConnectorOffset]:
        if self.error:
            raise self.error
        return self.found

    def alter(
        self, connector: Connector, barrier: int, changes: Sequence[ConnectorOffset] | None, *, dry_run: bool = False
    ) -> bool:
        if self.error:
            raise self.error
        if not dry_run:
            self.asked.append((connector.name, barrier, changes))
        return self.managed


class Client:
    """Requests to one application, in the test's own thread."""

    def __init__(self, runner: asyncio.Runner, app: Any, url: str) -> None:
        self.app = app
        self._runner = runner
        transport = httpx.ASGITransport(app=app)
        self._http = httpx.AsyncClient(transport=transport, base_url=url)
        runner.run(app.state.api.forwarder.start())

    def __call__(self, method: str, path: str, **options: Any) -> httpx.Response:
        return self._runner.run(self._http.request(method, path, **options))

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self("GET", path, **options)

    def put(self, path: str, **options: Any) -> httpx.Response:
        return self("PUT", path, **options)

    def post(self, path: str, **options: Any) -> httpx.Response:
        return self("POST", path, **options)

    def patch(self, path: str, **options: Any) -> httpx.Response:
        return self("PATCH", path, **options)

    def delete(self, path: str, **options: Any) -> httpx.Response:
        return self("DELETE", path, **options)

    def close(self) -> None:
        self._runner.run(self._http.aclose())
        self._runner.run(self.app.state.api.forwarder.stop())
        self.app.state.api.close()


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


@pytest.fixture
def make_herder(cluster: Cluster) -> Callable[..., FakeHerder]:
    return lambda **options: FakeHerder(cluster, **options)


@pytest.fixture
def herder(make_herder: Callable[..., FakeHerder]) -> FakeHerder:
    return make_herder()


@pytest.fixture
def checks() -> Checks:
    return Checks()


Connect = Callable[..., Client]


@pytest.fixture
def connect(runner: asyncio.Runner, checks: Checks) -> Iterator[Connect]:
    """Makes clients: `connect(herder)`, optionally with settings or the transport to other workers. Errors have all their
    members unless `error_details` is false, as it is by default in a worker."""
    clients: list[Client] = []
    quick = {"leader_wait_s": 0.0, "catch_up_s": 0.0, "events_s_max": 0.0, "error_details": True}

    def make(herder: FakeHerder, transport: httpx.AsyncBaseTransport | None = None, **settings: Any) -> Client:
        chosen = api_settings({**quick, **settings})
        transport = transport or httpx.MockTransport(_nowhere)
        app = create_app(herder, settings=chosen, catalog=FakeCatalog(), checks=checks, transport=transport)
        clients.append(Client(runner, app, herder.view().url))
        return clients[-1]

    yield make
    for client in clients:
        client.close()


def api_settings(values: Mapping[str, Any]) -> ApiSettings:
    """Settings by the names of their fields, whichever group they belong to."""
    groups: dict[str, Any] = {"limits": RequestLimits, "protection": Protection, "services": Services}
    made = {
        group: kind(**{each.name: values[each.name] for each in fields(kind) if each.name in values})
        for group, kind in groups.items()
    }
    known = {each.name for kind in groups.values() for each in fields(kind)}
    return ApiSettings(**made, **{name: value for name, value in values.items() if name not in known})


def _nowhere(request: httpx.Request) -> httpx.Response:
    raise httpx.ConnectError("refused", request=request)


@pytest.fixture
def kept() -> KeptOffsets:
    return KeptOffsets()


@pytest.fixture
def client(connect: Connect, herder: FakeHerder, kept: KeptOffsets) -> Client:
    return connect(herder, offsets=kept, plan=lambda connector: [{"table": "t0"}, {"table": "t1"}])


BARRIER = 77


@pytest.fixture
def stopped(cluster: Cluster) -> Callable[..., None]:
    """A connector whose tasks have been stopped: the set that the leader has made for it is of epoch 77."""

    def make(kind: Literal["source", "sink"] = "source", name: str = "c") -> None:
        cluster.add(name, target_state="STOPPED", kind=kind)
        sets = {**cluster.state.task_sets, name: TaskSet("inc-1", 0, (), task_epoch=BARRIER)}
        cluster.state = replace(cluster.state, task_sets=sets)

    return make


@dataclass
class Pair:
    leader: Client
    follower: Client
    leading: FakeHerder
    following: FakeHerder


@pytest.fixture
def pair(connect: Connect, cluster: Cluster) -> Pair:
    """Two workers of one cluster; the follower's forwards reach the leader's application."""
    leading, following = FakeHerder(cluster), FakeHerder(cluster, leads=False)
    leader = connect(leading)
    follower = connect(following, transport=httpx.ASGITransport(app=leader.app))
    return Pair(leader, follower, leading, following)


@pytest.fixture
def config() -> dict[str, str]:
    return {"connector.class": "fake", "host": "db", "password": SECRET}


@pytest.fixture
def words() -> SimpleNamespace:
    return SimpleNamespace(secret=SECRET, leader_url=LEADER_URL, epoch=EPOCH)
