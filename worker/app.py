"""One worker: herder, schema tail and REST wired together, started, drained and ended."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import json
import logging
import signal
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

from cdcworker.connectors.config import invalid
from cdcworker.connectors.registry import lookup, plugins
from cdcworker.coordinator.kafka_topics import TopicNames
from cdcworker.coordinator.model import Connector
from cdcworker.schemas.errors import CdcError, declare
from cdcworker.worker import registry_api
from cdcworker.worker.changes import Changes
from cdcworker.worker.config import WorkerConfig
from cdcworker.worker.doctor_main import run_child
from cdcworker.worker.explain import Explainer
from cdcworker.worker.herder import Herder, HerderConfig
from cdcworker.worker.letters import DeadLetters
from cdcworker.worker.offset_keeper import OffsetKeeper, partitions
from cdcworker.worker.planning import TOPICS_PATTERN, matching_topics
from cdcworker.worker.rest.app import create_app
from cdcworker.worker.rest.context import Settings
from cdcworker.worker.rest.server import RestServer
from cdcworker.worker.schema_tail import SchemaTail
from cdcworker.worker.security.audit import Audit, AuditTopic
from cdcworker.worker.security.wiring import gate_of, limits_of, tls_of
from cdcworker.worker.standby import StandbyProcesses, wanted
from cdcworker.worker.support import Support
from cdcworker.worker.validate import run_checks
from cdcworker.worker.verify import Verifier

log = logging.getLogger(__name__)

HERDER_ENDED = declare(
    "worker.herder_ended",
    "internal",
    "The coordination thread ended although nobody asked it to",
    "Start the worker again; report it with the log.",
)

START_TIMEOUT_S = 60.0
CHECK_S = 0.25


def version() -> str:
    return importlib.metadata.version("cdcworker")


def plugins_hash() -> str:
    """Same hash, same connectors: shown in the presence record, so that a mixed cluster can be seen."""
    names = [(plugin.name, plugin.kind, plugin.target) for plugin in plugins()]
    return hashlib.sha256(json.dumps([version(), names]).encode()).hexdigest()[:16]


def plugin_versions() -> dict[str, str]:
    """Every name that `connector.class` may have on this worker, with the version behind it: tasks of others go elsewhere."""
    found = [plugin for plugin in plugins() if plugin.runs_here()]
    return {name: version() for plugin in found for name in (plugin.name, *plugin.aliases)}


def plan(connector: Connector, topics: frozenset[str]) -> Sequence[Mapping[str, str]]:
    """Task configs of a connector, by its own `split`."""
    plugin = lookup(connector.config["connector.class"])
    instance = plugin.load()(connector.config)
    tasks_max = max(1, int(connector.config.get("tasks.max", "1")))
    if plugin.kind == "sink":
        shares: Sequence[Mapping[str, str]] = instance.split(tasks_max, sorted(topics))
    else:
        shares = instance.split(tasks_max)
    return shares


class App:
    """`start()` raises what keeps the worker from running; `run()` blocks until a signal or a failure."""

    def __init__(self, config: WorkerConfig) -> None:
        self.config = config
        self._scratch: tempfile.TemporaryDirectory[str] | None = None
        self._asked = threading.Event()
        self._at_once = threading.Event()
        self._signalled = False
        self._returns = bool(config.values["drain.restart.expected"])
        topic = config.values["audit.topic"]
        self._trail = (
            AuditTopic(config.kafka, topic, f"{config.worker_id}-audit", config.replication_factor) if topic else None
        )
        tls = tls_of(config.values, config.scheme)
        self._tasks = StandbyProcesses(memory_mb=config.values["task.memory.limit.default.mb"])
        herding = replace(self._herder_config(), peer_tls=tls.peers if tls else None)
        self.herder = Herder(herding, plan, self._tasks)
        names = self.herder.config.topics
        self.schemas = SchemaTail(names.schemas, config.kafka, f"{config.worker_id}-schemas")
        settings = Settings(
            topic_tracking=config.values["topic.tracking.enable"],
            topic_tracking_reset=config.values["topic.tracking.allow.reset"],
            offsets=OffsetKeeper(self.herder.config),
            plan=self._preview,
            schemas=self.schemas.current,
            examine=lambda question, timeout_s: run_child({**question, "providers": config.providers}, timeout_s),
            changes=Changes(config.kafka, names.schemas),
            explainer=Explainer(config.kafka, config.providers, {"schemas": names.schemas, "offsets": names.offsets}),
            letters=DeadLetters(config.kafka, config.providers, names.schemas),
            support=Support(config, (names.configs, names.offsets, names.status, names.schemas, names.coordination)),
            verifier=Verifier(config.worker_id, {"providers": config.providers, "kafka": dict(config.kafka)}),
            body_bytes_max=config.values["rest.body.bytes.max"],
            audit=Audit(config.worker_id, self._trail),
            gate=gate_of(config.values, config.scheme, loopback=config.is_loopback),
            tls=tls,
            session_key_ttl_s=config.values["inter.worker.key.ttl.ms"] / 1000,
        )
        app = create_app(
            self.herder,
            registry_routes=registry_api.routes(self.schemas.current),
            settings=settings,
            checks=functools.partial(run_checks, providers=config.providers),
            drain=self.ask_to_drain,
        )
        self.rest = RestServer(app, config.host, config.port, tls=tls, limits=limits_of(config.values))

    def _herder_config(self) -> HerderConfig:
        config = self.config
        digest = config.values["zookeeper.digest"]
        if config.values["coordination.backend"] == "memory":
            # Tasks are processes of their own and read the logs from Kafka: they would find none.
            raise invalid([("coordination.backend", "memory is for tests within one process")])
        return HerderConfig(
            kafka=config.kafka,
            group_id=config.group_id,
            worker_id=config.worker_id,
            url=config.url,
            topics=TopicNames.of_group(config.group_id, config.properties),
            offsets_partitions=config.values["offset.storage.partitions"],
            status_partitions=config.values["status.storage.partitions"],
            session_timeout_s=config.session_timeout_s,
            state_dir=self._state_dir(),
            plugins_hash=plugins_hash(),
            version=version(),
            plugins=plugin_versions(),
            crash_delay_s=config.crash_delay_s,
            restart_delay_s=config.values["restart.rebalance.delay.ms"] / 1000,
            capacity=config.values["worker.capacity"],
            replication_factor=config.replication_factor,
            providers=config.providers,
            backend=config.values["coordination.backend"],
            zookeeper_connect=config.values["zookeeper.connect"] or "",
            zookeeper_digest=digest.reveal() if digest else "",
            accepted_identity=config.values["coordination.accept"] or "",
        )

    def _preview(self, connector: Connector) -> Sequence[Mapping[str, str]]:
        """What the planner would make of it now."""
        if not connector.config.get(TOPICS_PATTERN):
            return plan(connector, frozenset())
        names = self.herder.config.topics
        own = {names.configs, names.offsets, names.status, names.schemas, names.coordination}
        there = partitions(self.herder.config.kafka, names.offsets)[1]
        topics = frozenset(name for name in there if not name.startswith("__") and name not in own)
        return plan(connector, matching_topics(connector, topics))

    def _state_dir(self) -> str:
        given = self.config.values["state.dir"]
        if given:
            Path(given).mkdir(parents=True, exist_ok=True)
            return str(given)
        self._scratch = tempfile.TemporaryDirectory(prefix="cdcworker-")
        return self._scratch.name

    def start(self) -> None:
        """REST answers (503 from /health) before the cluster is joined, as Kafka Connect's does."""
        self.rest.start()
        if self._trail is not None:
            self._trail.start()
        self.herder.start()
        while not self.herder.wait_started(CHECK_S):
            if self._asked.is_set():
                return
        self.schemas.start()
        log.info("worker ready worker=%s url=%s group=%s", self.config.worker_id, self.config.url, self.config.group_id)

    def run(self) -> None:
        """Until asked to end; then hand over all tasks, or stop at once when asked twice."""
        while not self._asked.wait(CHECK_S):
            if not self.herder.is_alive():
                raise self.herder.failure or CdcError(HERDER_ENDED, "the coordination thread has ended")
            if self.config.values["sink.standby"]:
                self._tasks.want(wanted(self.herder.view(), self.herder.config))
        self._tasks.want(None)
        log.info("worker drains worker=%s returns=%s", self.config.worker_id, self._returns)
        drain = functools.partial(self.herder.drain, returns=self._returns)
        drainer = threading.Thread(target=drain, name="drain", daemon=True)
        drainer.start()
        while drainer.is_alive() and not self._at_once.is_set():
            drainer.join(CHECK_S)

    def ask_to_drain(self, returns: bool | None = None) -> None:
        """`returns` None: as the worker's properties say."""
        if returns is not None and not self._asked.is_set():
            self._returns = returns
        self._asked.set()

    def close(self) -> None:
        self.herder.stop()
        self.schemas.stop()
        self.rest.stop()
        if self._trail is not None:
            self._trail.close()
        if self._scratch is not None:
            self._scratch.cleanup()

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        """The first signal drains, the second ends at once. That a drain was asked for before is no signal: behind a pod's
        preStop hook, which asks, SIGTERM follows at once."""
        del number, frame
        if self._signalled:
            self._at_once.set()
        self._signalled = True
        self._asked.set()


def run_worker(config: WorkerConfig) -> None:
    """Start, serve, drain, end."""
    app = App(config)
    handlers: dict[int, Any] = {n: signal.signal(n, app.on_signal) for n in (signal.SIGTERM, signal.SIGINT)}
    try:
        app.start()
        app.run()
    finally:
        app.close()
        for number, handler in handlers.items():
            signal.signal(number, handler)
