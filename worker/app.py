"""One worker: herder, schema log and REST server, started, drained and stopped together."""

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

from cdcworker.connectors.config.common_keys import tasks_max_of
from cdcworker.connectors.config.definition import invalid
from cdcworker.connectors.config.installed_plugins import InstalledPlugin
from cdcworker.connectors.converters import config as converters
from cdcworker.connectors.registry.names import lookup, plugins, refused
from cdcworker.connectors.transform_chain.config import PLUGINS
from cdcworker.coordinator.core.placement import CONVERTER, INSTALLED, TRANSFORM
from cdcworker.coordinator.kafka.existing_topics import existing
from cdcworker.coordinator.kafka.internal_topics import TopicNames
from cdcworker.coordinator.model import Connector
from cdcworker.schemas.errors import CdcError, declare
from cdcworker.schemas.threads import start_thread
from cdcworker.worker.alerts import settings as alert_settings
from cdcworker.worker.alerts.alert_topic import AlertTopic
from cdcworker.worker.alerts.watcher import AlertWatcher, Surroundings
from cdcworker.worker.children.warm import WarmChildren
from cdcworker.worker.config.alert_properties import ALERTS_FILE, alerts_topic
from cdcworker.worker.config.file_roots import FILE_ROOTS, checked_roots
from cdcworker.worker.config.worker_properties import ERROR_DETAILS, WorkerConfig
from cdcworker.worker.dead_letters.service import DeadLetters
from cdcworker.worker.diagnostics.doctor_child import run_child
from cdcworker.worker.diagnostics.explain import Explainer
from cdcworker.worker.diagnostics.support import SupportReport
from cdcworker.worker.diagnostics.tail import TailChildren
from cdcworker.worker.diagnostics.verify import Verifier
from cdcworker.worker.herder.config import HerderConfig
from cdcworker.worker.herder.herder import Herder
from cdcworker.worker.herder.planner import TOPICS_PATTERN, matching_topics
from cdcworker.worker.lag_probe.prober import LagProber
from cdcworker.worker.linux.operator_file import OperatorFile
from cdcworker.worker.offsets.service import OffsetsService, partitions
from cdcworker.worker.processes.warm_standby import StandbyProcesses, standby_spec
from cdcworker.worker.rest.settings import ApiSettings, Protection, RequestLimits, Services
from cdcworker.worker.schema_registry import api as registry_api
from cdcworker.worker.schema_registry.tail import SchemaTail
from cdcworker.worker.security.audit import Audit, AuditTopic
from cdcworker.worker.security.tls import TlsContexts
from cdcworker.worker.security.topic_rules import access_of
from cdcworker.worker.server.application import create_app
from cdcworker.worker.server.server import RestServer
from cdcworker.worker.server.wiring import (
    check_unreadable,
    gate_of,
    identity_of,
    limits_of,
    quotas_of,
    secrets_of,
    tls_of,
)
from cdcworker.worker.validation.validate import CHECK_TIMEOUT_S, CHILD, run_checks

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
    """Returns a hash that is equal for equal connectors. It is in the presence record, so that a mixed cluster can be
    seen."""
    names = [(plugin.name, plugin.kind, plugin.target) for plugin in plugins()]
    return hashlib.sha256(json.dumps([version(), names]).encode()).hexdigest()[:16]


def plugin_versions() -> dict[str, str]:
    """Returns the version of each plugin by every name that `connector.class` may have on this worker: tasks of others
    run elsewhere."""
    runnable = [plugin for plugin in plugins() if plugin.runs_here()]
    found = {name: _version_of(plugin.origin) for plugin in runnable for name in (plugin.name, *plugin.aliases)}
    parts = ((TRANSFORM, PLUGINS.sources), (CONVERTER, converters.PLUGINS.sources))
    return found | {f"{kind}{name}": _version_of(origin) for kind, sources in parts for name, origin in sources.items()}


def _version_of(origin: InstalledPlugin | None) -> str:
    return version() if origin is None else f"{origin.distribution}{INSTALLED}{origin.version}"


def warn_of_refused_plugins() -> None:
    """Logs each plugin that the operator allows and that cannot be used."""
    for plugin in (*refused(), *PLUGINS.refused, *converters.PLUGINS.refused):
        log.error(
            "plugin refused distribution=%s version=%s group=%s plugin=%s error=%s",
            *(plugin.distribution, plugin.version or "-", plugin.group or "-", plugin.name or "-", plugin.error),
        )


def plan(connector: Connector, topics: frozenset[str]) -> Sequence[Mapping[str, str]]:
    """Returns the configs of a connector's tasks, by its own `split`."""
    plugin = lookup(connector.config["connector.class"])
    instance = plugin.load()(connector.config)
    tasks_max = tasks_max_of(connector.config)
    if plugin.kind == "sink":
        shares: Sequence[Mapping[str, str]] = instance.split(tasks_max, sorted(topics))
    else:
        shares = instance.split(tasks_max)
    return shares


class App:
    """One worker. `start()` raises the error that keeps it from running; `run()` blocks until a signal or a failure."""

    def __init__(self, config: WorkerConfig) -> None:
        found = checked_roots(config.values[FILE_ROOTS])
        for warning in found:
            log.warning("%s", warning)
        self.config = config
        self._scratch: tempfile.TemporaryDirectory[str] | None = None
        self._end_requested = threading.Event()
        self._stop_requested = threading.Event()
        self._signalled = False
        self._comes_back = bool(config.values["drain.restart.expected"])
        topic = config.values["audit.topic"]
        self._audit_topic = (
            AuditTopic(config.kafka, topic, f"{config.worker_id}-audit", config.replication_factor) if topic else None
        )
        tls = tls_of(config.values, config.scheme)
        self._checkers = WarmChildren(CHILD)
        self._tasks = StandbyProcesses(
            memory_mb=config.values["task.memory.limit.default.mb"], questions=self._checkers
        )
        herding = replace(self._herder_config(), peer_tls=tls.peers if tls else None)
        self.herder = Herder(herding, plan, self._tasks)
        names = self.herder.config.topics
        around = {"providers": config.providers, "kafka": dict(config.kafka)}
        self.lag = LagProber(around, self.herder.view, self.herder.measured, self._preview)
        self.schemas = SchemaTail(names.schemas, config.kafka, f"{config.worker_id}-schemas")
        self.alerts = self._alert_watcher()
        app = create_app(
            self.herder,
            registry_routes=registry_api.routes(self.schemas.current),
            settings=self._api_settings(names, tls, found),
            checks=functools.partial(run_checks, providers=config.providers, call=self._checkers.call),
            drain=self.ask_to_drain,
        )
        self.rest = RestServer(app, config.host, config.port, tls=tls, limits=limits_of(config.values))

    def _api_settings(self, names: TopicNames, tls: TlsContexts | None, found: Sequence[str]) -> ApiSettings:
        """Returns what the REST API is built from. `found` holds warnings about the folders that connectors may read."""
        config = self.config
        worker_secrets = secrets_of(config.values, config.providers)
        identity = identity_of(config.values, config.providers, worker_secrets)
        return ApiSettings(
            limits=RequestLimits(body_bytes_max=config.values["rest.body.bytes.max"]),
            protection=Protection(
                audit=Audit(config.worker_id, self._audit_topic),
                gate=gate_of(config.values, config.scheme, loopback=config.is_loopback, identity=identity),
                tls=tls,
                session_key_ttl_s=config.values["inter.worker.key.ttl.ms"] / 1000,
                worker_secrets=worker_secrets,
                login=identity.login,
            ),
            services=self._services(names),
            topics=access_of(config.providers),
            warnings=(*config.warnings, *found),
            takes_unknown_keys=config.values["config.unknown.keys"] == "warn",
            console=config.values["ui.enabled"],
            error_details=config.values[ERROR_DETAILS],
            configs_as_written=config.values["rest.configs.as.written"] == "admin",
            topic_tracking=config.values["topic.tracking.enable"],
            topic_tracking_reset=config.values["topic.tracking.allow.reset"],
        )

    def _services(self, names: TopicNames) -> Services:
        config = self.config
        own_topics = (names.configs, names.offsets, names.status, names.schemas, names.coordination)
        return Services(
            offsets=OffsetsService(self.herder.config),
            schemas=self.schemas.current,
            examine=lambda question, timeout_s: run_child({**question, "providers": config.providers}, timeout_s),
            verifier=Verifier(config.worker_id, {"providers": config.providers, "kafka": dict(config.kafka)}),
            tail=TailChildren(config.kafka, names.schemas, rules=config.providers),
            explainer=Explainer(config.kafka, config.providers, {"schemas": names.schemas, "offsets": names.offsets}),
            dead_letters=DeadLetters(config.kafka, config.providers, names.schemas),
            support=SupportReport(config, own_topics),
            plan=self._preview,
            existing=functools.partial(existing, config.kafka, timeout_s=CHECK_TIMEOUT_S / 2),
            unassigned_lag=self.lag.unassigned,
            alerts=self.alerts,
            quotas=quotas_of(config.values, config.providers),
        )

    def _alert_watcher(self) -> AlertWatcher | None:
        """Returns what watches for incidents; CdcError `alerts.file_invalid` for a file that cannot be used."""
        config = self.config
        topic = alerts_topic(config.values, config.group_id)
        if not topic:
            return None
        check_unreadable(ALERTS_FILE, config.values[ALERTS_FILE], config.providers)
        settings = OperatorFile(Path(config.values[ALERTS_FILE]), alert_settings.read, "alerts")
        client_id = f"{config.worker_id}-alerts"
        open_topic = functools.partial(AlertTopic, config.kafka, topic, client_id, config.replication_factor)
        around = Surroundings(config.group_id, self.herder.view, self.lag.unassigned, settings.content, open_topic)
        return AlertWatcher(around)

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
        """Returns the task configs that the planner would make now."""
        if not connector.config.get(TOPICS_PATTERN):
            return plan(connector, frozenset())
        topics = partitions(self.herder.config.kafka, self.herder.config.topics.offsets)[1]
        readable = access_of(self.config.providers).readable(topics)
        return plan(connector, matching_topics(connector, readable))

    def _state_dir(self) -> str:
        given = self.config.values["state.dir"]
        if given:
            Path(given).mkdir(0o700, parents=True, exist_ok=True)
            return str(given)
        self._scratch = tempfile.TemporaryDirectory(prefix="cdcworker-")
        return self._scratch.name

    def start(self) -> None:
        """Starts everything. The REST API answers (503 from /health) before the cluster is joined, as in Kafka Connect."""
        warn_of_refused_plugins()
        self.rest.start()
        if self._audit_topic is not None:
            self._audit_topic.start()
        self.herder.start()
        while not self.herder.wait_started(CHECK_S):
            if self._end_requested.is_set():
                return
        self.schemas.start()
        self.lag.start()
        if self.alerts is not None:
            self.alerts.start()
        log.info("worker ready worker=%s url=%s group=%s", self.config.worker_id, self.config.url, self.config.group_id)

    def run(self) -> None:
        """Runs until the worker is asked to end, then hands over all tasks, or stops at once when it is asked twice."""
        while not self._end_requested.wait(CHECK_S):
            if not self.herder.is_alive():
                raise self.herder.failure or CdcError(HERDER_ENDED, "the coordination thread has ended")
            if self.config.values["sink.standby"]:
                self._tasks.keep_ready(standby_spec(self.herder.view(), self.herder.task_template()))
        self._tasks.keep_ready(None)
        log.info("worker draining worker=%s returns=%s", self.config.worker_id, self._comes_back)
        drain = functools.partial(self.herder.drain, returns=self._comes_back)
        drainer = start_thread(drain, name="drain")
        while drainer.is_alive() and not self._stop_requested.is_set():
            drainer.join(CHECK_S)

    def ask_to_drain(self, returns: bool | None = None) -> None:
        """Ends the worker. `returns` says whether it will be back; None: as the worker's properties say."""
        if returns is not None and not self._end_requested.is_set():
            self._comes_back = returns
        self._end_requested.set()

    def close(self) -> None:
        self.lag.stop()
        if self.alerts is not None:
            self.alerts.stop()
        self.herder.stop()
        self.schemas.stop()
        self.rest.stop()
        self._checkers.close()
        if self._audit_topic is not None:
            self._audit_topic.close()
        if self._scratch is not None:
            self._scratch.cleanup()

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        """Drains the worker at the first signal and stops it at the second.

        A drain that was requested before does not count as a signal: after a pod's preStop hook, which requests one,
        SIGTERM follows at once.
        """
        del number, frame
        if self._signalled:
            self._stop_requested.set()
        self._signalled = True
        self._end_requested.set()


def run_worker(config: WorkerConfig) -> None:
    """Runs a worker until it ends."""
    app = App(config)
    handlers: dict[int, Any] = {n: signal.signal(n, app.on_signal) for n in (signal.SIGTERM, signal.SIGINT)}
    try:
        app.start()
        app.run()
    finally:
        app.close()
        for number, handler in handlers.items():
            signal.signal(number, handler)
