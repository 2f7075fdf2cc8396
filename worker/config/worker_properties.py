"""The worker's properties: Kafka Connect's names, from a .properties or .yaml file, overridden by the environment."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cdcworker.connectors.config import installed_plugins
from cdcworker.connectors.config.definition import (
    ConfigDef,
    ConfigKey,
    between,
    invalid,
    matches,
    nearest,
    non_empty,
    one_of,
)
from cdcworker.coordinator.kafka.internal_topics import TopicNames
from cdcworker.schemas.errors import CdcError, declare
from cdcworker.worker.config.alert_properties import ALERT_KEYS, alerts_topic
from cdcworker.worker.config.file_roots import FILE_ROOT, FILE_ROOTS
from cdcworker.worker.config.gathered_keys import GATHERED_KEYS
from cdcworker.worker.config.inherited_converters import INHERITED_KEY, inherited_of
from cdcworker.worker.security import allowed_targets
from cdcworker.worker.security.kafka_warnings import in_clear as kafka_in_clear
from cdcworker.worker.security.listener import ANY, Listener, check_bind, parse_listener
from cdcworker.worker.security.properties import AUDIT_TOPIC
from cdcworker.worker.security.topic_rules import rules_of
from cdcworker.worker.security.worker_secrets import warnings as worker_warnings

UNREADABLE = declare(
    "worker.config_unreadable",
    "config",
    "The worker's config file cannot be read",
    "Name a readable .properties or .yaml file: cdcworker start --config FILE.",
)

ENV_PREFIXES = ("CONNECT_", "CDC_")
"""The prefixes of environment variables with properties, later ones win. Kafka Connect's images use the first."""
RESERVED_ENV = frozenset({"CDC_CACHE_DIR", "CDC_MAVEN_MIRRORS", "CDC_PG_BIN", "CDC_FAILPOINTS"})
CRASH_DELAY = "scheduled.rebalance.max.delay.ms"
CRASH_DELAY_MS_MAX = 10_000
"""Kafka Connect's default leaves tasks unassigned for five minutes; a file that sets it must not do so here."""
FILES_UMASK = "files.umask"
TASK_ENVIRONMENT = "task.environment"


def _variables(value: list[str]) -> str | None:
    fine = all(re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*\*?", name) for name in value)
    return None if fine else "expects names of variables, or the beginnings of names before a *"


CLIENT_PREFIXES = ("security.", "sasl.", "ssl.", "client.", "socket.", "reconnect.", "broker.", "metadata.")
CLIENT_OVERRIDES = re.compile(
    r"(producer|consumer|admin)\.((security|sasl|ssl)\..+|compression\.type|linger\.ms|batch\.size|message\.max\.bytes"
    r"|queue\.buffering\.max\.\w+|fetch\..+)"
)
"""Properties that may be set for one kind of client. librdkafka refuses Java's other names."""
ERROR_DETAILS = "rest.error.details"
REPLICATION_KEYS = tuple(f"{kind}.storage.replication.factor" for kind in ("config", "offset", "status", "schema"))

KEYS = (
    ConfigKey(
        "bootstrap.servers",
        required=True,
        importance="HIGH",
        doc="Kafka's addresses, host:port separated by commas.",
        validator=non_empty,
    ),
    ConfigKey(
        "group.id", required=True, importance="HIGH", doc="The cluster's name: workers that share it work together."
    ),
    ConfigKey(
        "worker.id",
        importance="HIGH",
        doc="This worker's stable name: a process of the same name takes its tasks up again. Default: the pod's name in "
        "a StatefulSet (POD_NAME, else HOSTNAME), elsewhere the advertised host:port.",
    ),
    ConfigKey("listeners", default="http://127.0.0.1:8083", importance="HIGH", doc="Where the REST API listens."),
    ConfigKey("rest.advertised.host.name", doc="The host name by which other workers reach this one."),
    ConfigKey("rest.advertised.port", "INT", doc="The port by which other workers reach this one."),
    *GATHERED_KEYS,
    ConfigKey("config.storage.topic", doc="Topic of the config log (default: <group.id>.configs)."),
    ConfigKey("offset.storage.topic", doc="Topic of the positions (default: <group.id>.offsets)."),
    ConfigKey("status.storage.topic", doc="Topic of states and presence (default: <group.id>.status)."),
    ConfigKey("schema.storage.topic", doc="Topic of the schema log (default: <group.id>.schemas)."),
    ConfigKey(
        "coordination.topic", doc="The empty topic whose one partition elects (default: <group.id>.coordination)."
    ),
    ConfigKey(
        "coordination.backend",
        default="kafka",
        doc="What elects the leader: kafka (a consumer group), zookeeper (a lock; the logs stay on Kafka), or memory "
        "(tests within one process).",
        validator=one_of("kafka", "zookeeper", "memory"),
    ),
    ConfigKey(
        "zookeeper.connect", doc="ZooKeeper's servers, host:port separated by commas, and a path if wanted: /cdc."
    ),
    ConfigKey(
        "zookeeper.digest",
        "PASSWORD",
        doc="user:password for ZooKeeper; the cluster's nodes are then closed to others.",
    ),
    ConfigKey(
        "coordination.accept",
        doc="The identity that a refused start named: the config log goes over to it (a moved cluster, a rebuilt "
        "ensemble). All workers of the old identity must have ended.",
    ),
    *(
        ConfigKey(
            name, "INT", default=-1, doc="Replicas of the topic, when a worker creates it; -1: the broker's default."
        )
        for name in REPLICATION_KEYS
    ),
    ConfigKey(
        "offset.storage.partitions",
        "INT",
        default=25,
        doc="Partitions of the topic of positions, when a worker creates it.",
        validator=between(1, 1000),
    ),
    ConfigKey(
        "status.storage.partitions",
        "INT",
        default=5,
        doc="Partitions of the status topic, when a worker creates it.",
        validator=between(1, 1000),
    ),
    ConfigKey(
        "session.timeout.ms",
        "INT",
        default=10_000,
        importance="HIGH",
        doc="After this long without a sign of life a worker counts as dead (ms). The broker's minimum is usually 6000.",
        validator=between(1_000, 1_800_000),
    ),
    ConfigKey(
        CRASH_DELAY,
        "INT",
        default=0,
        doc="How long the tasks of a worker that vanished wait for it to come back (ms, at most 10000). 0: they move.",
        validator=between(0, 86_400_000),
    ),
    ConfigKey(
        "restart.rebalance.delay.ms",
        "INT",
        default=60_000,
        doc="How long the tasks of a worker that announced its restart wait for it to come back (ms).",
        validator=between(0, 3_600_000),
    ),
    ConfigKey(
        "drain.restart.expected",
        "BOOLEAN",
        default=False,
        doc="Every drain announces a restart: the tasks wait for this worker.id to come back. For StatefulSets whose "
        "pods are replaced in place; leave it off where workers are scaled down.",
    ),
    ConfigKey(
        "state.dir",
        doc="Scratch space: checkpoints and spools, nothing that must survive (default: a temporary folder).",
    ),
    ConfigKey(
        "log.level",
        default="INFO",
        doc="Level of the root logger.",
        validator=one_of("DEBUG", "INFO", "WARNING", "ERROR"),
    ),
    ConfigKey(
        "log.format",
        default="auto",
        doc="text, json, or auto: text on a terminal, JSON lines elsewhere.",
        validator=one_of("auto", "text", "json"),
    ),
    ConfigKey(
        FILE_ROOTS,
        "LIST",
        default=[FILE_ROOT],
        doc="Folders in which the file connectors may read and write; empty: nowhere.",
    ),
    ConfigKey(
        "config.unknown.keys",
        default="refuse",
        importance="LOW",
        validator=one_of("refuse", "warn"),
        recommended=("refuse", "warn"),
        doc="A connector's keys that nobody knows. refuse: the config is refused, so that a slip is found. warn: it is taken,"
        " and validation names them, as for configs that come from Kafka Connect. The same on all workers, and only once all"
        " of them know it: an earlier worker's tasks fail at such keys.",
    ),
    ConfigKey(
        ERROR_DETAILS,
        "BOOLEAN",
        default=False,
        importance="LOW",
        doc="Errors of Kafka Connect's routes also have code, suggestion, configPath and the like for clients that do not ask "
        "with details=true, as in earlier versions. Some clients take no other members than error_code and message.",
    ),
    ConfigKey(
        "ui.enabled",
        "BOOLEAN",
        default=True,
        importance="LOW",
        doc="Serve the console, a page for a browser, at /ui. Its files hold nothing of the cluster: what it shows it asks of the "
        "REST API, with the roles of whoever uses it.",
    ),
    ConfigKey(
        installed_plugins.ALLOWED,
        "LIST",
        default=[],
        doc="Distributions installed beside the worker whose connectors and transforms it loads: names as pip lists them. Their code "
        "runs with all rights of the worker. Empty: only what ships with it.",
        validator=installed_plugins.problem_of_names,
    ),
    *ALERT_KEYS,
    ConfigKey("topic.tracking.enable", "BOOLEAN", default=True, doc="Remember which topics a connector used."),
    ConfigKey("topic.tracking.allow.reset", "BOOLEAN", default=True, doc="Allow PUT /connectors/{c}/topics/reset."),
    ConfigKey(
        "worker.capacity",
        "INT",
        default=1,
        doc="This worker's share of the work relative to others.",
        validator=between(1, 1000),
    ),
    ConfigKey(
        "task.memory.limit.default.mb",
        "INT",
        default=2_048,
        doc="Memory that a task may use whose connector has no task.memory.limit.mb; a sink may use its "
        "spark.driver.memory besides. 0: no limit.",
        validator=between(0, 1_048_576),
    ),
    ConfigKey(
        "sink.standby",
        "INT",
        default=1,
        doc="Processes with a Spark session that wait for a sink task (about 0.5 GB each), kept while the cluster has "
        "a sink: a task that moves here goes on within a second or two, not five. 0: none.",
        validator=between(0, 1),
    ),
    ConfigKey(
        FILES_UMASK,
        default="077",
        doc="What others may not do with files and folders that the worker and its connectors make, as umask takes it: 077 "
        "keeps them to the worker's user, 027 lets its group read, 022 everybody. Scratch files are the user's alone "
        "in any case.",
        validator=matches("0?0[0-7]{2}", "three octal digits that begin with 0, such as 077"),
    ),
    ConfigKey(
        TASK_ENVIRONMENT,
        "LIST",
        default=[],
        doc="Further variables of the worker's environment that its tasks inherit, those that run Java included: names, and "
        "NAME* for all that begin so. Without them tasks get what says where things are on a machine, libpq's PG… and what "
        "references may read; Java gets the first of these alone.",
        validator=_variables,
    ),
    INHERITED_KEY,
)
_UNUSED = "accepted for Kafka Connect's sake; nothing here needs it"
ACCEPTED = dict.fromkeys(("key.converter", "key.converter.", "value.converter", "value.converter.", "header.converter", "internal.key.converter", "internal.value.converter", "plugin.path", "plugin.discovery", "offset.flush.interval.ms", "offset.flush.timeout.ms", "heartbeat.interval.ms", "rebalance.timeout.ms", "worker.sync.timeout.ms", "worker.unsync.backoff.ms", "connect.protocol", "exactly.once.source.support", "task.shutdown.graceful.timeout.ms", "topic.creation.enable", "connector.client.config.override.policy", "access.control.", "admin.listeners", "rest.extension.classes", "response.http.headers.config", "rest.advertised.listener", "inter.worker.", "producer.", "consumer.", "admin.", "metric.", "metrics.", "config.providers", "config.providers.", "internal.", "request.timeout.ms", "retry.backoff.ms", "connections.max.idle.ms"), _UNUSED)  # fmt: skip
IGNORED_WITH_WARNING = {
    "rest.extension.classes": "loads nothing: callers are known by rest.auth.file or their certificates",
    "admin.listeners": "opens no listener: /admin is on the one of listeners, for the role admin",
    "access.control.allow.origin": "is not sent: pages of other sites cannot read answers",
    "access.control.allow.methods": "is not sent: pages of other sites cannot ask",
    "response.http.headers.config": "adds no headers",
    "rest.advertised.listener": "chooses nothing: there is one listener",
}
"""Accepted properties without an effect whose users could expect one."""
WORKER_DEF = ConfigDef(KEYS, {**ACCEPTED, **dict.fromkeys(CLIENT_PREFIXES, "passed on to the Kafka clients")})


@dataclass(frozen=True)
class WorkerConfig:
    """The properties of one worker. `properties` holds every property that was set; `kafka` those of the Kafka clients,
    secrets included."""

    bootstrap_servers: str
    group_id: str
    worker_id: str
    host: str
    port: int
    url: str
    scheme: str
    session_timeout_s: float
    values: Mapping[str, Any] = field(repr=False)
    kafka: Mapping[str, str] = field(repr=False)
    properties: Mapping[str, str] = field(repr=False)
    warnings: tuple[str, ...] = ()
    """What the operator should know of these properties."""

    @property
    def is_loopback(self) -> bool:
        return Listener(self.scheme, self.host, self.port).is_loopback

    @property
    def crash_delay_s(self) -> float:
        return min(float(self.values[CRASH_DELAY]), CRASH_DELAY_MS_MAX) / 1000

    @property
    def own_topics(self) -> tuple[str, ...]:
        """The topics of the cluster itself, which no connector reads or writes."""
        names = TopicNames.of_group(self.group_id, self.properties)
        own = (names.configs, names.offsets, names.status, names.schemas, names.coordination)
        return (*own, *filter(None, (self.values[AUDIT_TOPIC], alerts_topic(self.values, self.group_id))))

    @property
    def providers(self) -> dict[str, str]:
        """The properties that say what references, file connectors and connectors' topics may be, for the processes
        that act for connectors."""
        providers = {name: value for name, value in self.properties.items() if name.startswith("config.providers")}
        loopback = self.values[allowed_targets.LOOPBACK]
        if loopback is None:
            loopback = self.is_loopback
        lists = {name: ",".join(self.values[name]) for name in (FILE_ROOTS, *allowed_targets.LISTED)}
        return {
            **providers,
            **inherited_of(self.properties, self.values),
            **lists,
            **rules_of(self.own_topics, self.values),
            allowed_targets.LOOPBACK: str(bool(loopback)).lower(),
            allowed_targets.TLS: self.values[allowed_targets.TLS],
            allowed_targets.WEAKEST_AUTH: self.values[allowed_targets.WEAKEST_AUTH],
            allowed_targets.LIBPQ_DEFAULTS: str(bool(self.values[allowed_targets.LIBPQ_DEFAULTS])).lower(),
        }

    @property
    def replication_factor(self) -> int:
        """The replication factor of all topics of the cluster: the highest of the properties."""
        return max(int(self.values[name]) for name in REPLICATION_KEYS)


def load(path: Path | None, env: Mapping[str, str] | None = None) -> tuple[WorkerConfig, list[str]]:
    """Returns the config and warnings. CdcError `config.invalid` lists every problem with its key."""
    variables = os.environ if env is None else env
    properties = {**_stable_name(variables), **(read_file(path) if path else {}), **from_environment(variables)}
    try:
        return parse(properties)
    except CdcError as error:
        if path is None:
            raise
        raise CdcError(error.code, error.message, where={"file": str(path), **error.where}, hint=error.hint) from None


def _stable_name(env: Mapping[str, str]) -> dict[str, str]:
    """Returns the worker id of a StatefulSet's pod, which keeps its name when it is replaced; other pods get a new name
    each time."""
    name = env.get("POD_NAME", "")
    if not name and "KUBERNETES_SERVICE_HOST" in env and re.search(r"[a-z0-9]-[0-9]{1,5}$", env.get("HOSTNAME", "")):
        name = env["HOSTNAME"]
    return {"worker.id": name} if name else {}


def parse(properties: Mapping[str, str]) -> tuple[WorkerConfig, list[str]]:
    """Returns the config of these properties and warnings."""
    known, warnings = _without_unknown(properties)
    values = WORKER_DEF.parse(known)
    if values[CRASH_DELAY] > CRASH_DELAY_MS_MAX:
        warnings.append(f"{CRASH_DELAY} {values[CRASH_DELAY]} counts as {CRASH_DELAY_MS_MAX}")
    listener = parse_listener(str(values["listeners"]))
    warnings += [*check_bind(listener, values), *worker_warnings(listener, values), *kafka_in_clear(known)]
    warnings += [f"{name} {what}" for name, what in IGNORED_WITH_WARNING.items() if name in known]
    if "," in values["listeners"].strip(", "):
        warnings.append(f"only the first of listeners is opened: {listener.scheme}://{listener.host}:{listener.port}")
    if values["coordination.backend"] == "zookeeper" and not values["zookeeper.connect"]:
        raise invalid([("zookeeper.connect", "is required with coordination.backend=zookeeper")])
    advertised = values["rest.advertised.host.name"] or (
        listener.host if listener.host not in ANY else socket.getfqdn()
    )
    advertised_port = values["rest.advertised.port"] or listener.port
    config = WorkerConfig(
        bootstrap_servers=values["bootstrap.servers"],
        group_id=values["group.id"],
        worker_id=values["worker.id"] or f"{advertised}:{advertised_port}",
        host=listener.host,
        port=listener.port,
        url=f"{listener.scheme}://{advertised}:{advertised_port}",
        scheme=listener.scheme,
        session_timeout_s=values["session.timeout.ms"] / 1000,
        values=values,
        kafka={
            name: value
            for name, value in known.items()
            if name == "bootstrap.servers" or name.startswith(CLIENT_PREFIXES) or CLIENT_OVERRIDES.fullmatch(name)
        },
        properties=dict(known),
        warnings=tuple(warnings),
    )
    return config, warnings


def _without_unknown(properties: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """Drops unknown properties with a warning, as Kafka Connect does: properties files are shared between versions."""
    known, warnings = {}, []
    for value in WORKER_DEF.validate(properties):
        if value.name in WORKER_DEF.keys or not value.errors:
            if value.name in properties:
                known[value.name] = properties[value.name]
            continue
        near = nearest(value.name, WORKER_DEF.keys)
        warnings.append(f"unknown property {value.name} is ignored" + (f"; did you mean {near}?" if near else ""))
    return known, warnings


def from_environment(env: Mapping[str, str]) -> dict[str, str]:
    """Returns the properties in the environment: CDC_BOOTSTRAP_SERVERS is bootstrap.servers; a double underscore is an
    underscore."""
    properties = {}
    for prefix in ENV_PREFIXES:
        for name, value in env.items():
            if name.startswith(prefix) and name not in RESERVED_ENV and not name.startswith("CDC_SECRET_"):
                key = name.removeprefix(prefix).lower().replace("__", "\0").replace("_", ".").replace("\0", "_")
                properties[key] = value
    return {key: value for key, value in properties.items() if _is_known(key)}


def _is_known(key: str) -> bool:
    """Returns whether a key is a property of the worker; the environment holds many other names."""
    return all(
        not value.errors
        for value in WORKER_DEF.validate({key: "1"})
        if value.name == key and key not in WORKER_DEF.keys
    )


def read_file(path: Path) -> dict[str, str]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else "not UTF-8"
        raise CdcError(UNREADABLE, f"cannot read {path}: {reason}", where={"file": str(path)}) from None
    if path.suffix in (".yaml", ".yml"):
        return read_yaml(text, path)
    return read_properties(text)


def read_yaml(text: str, path: Path) -> dict[str, str]:
    import yaml

    try:
        content = yaml.safe_load(text) or {}
    except yaml.MarkedYAMLError as exc:
        line = exc.problem_mark.line + 1 if exc.problem_mark else 0
        raise CdcError(UNREADABLE, f"not YAML: {exc.problem}", where={"file": str(path), "line": line}) from None
    if not isinstance(content, dict):
        raise CdcError(UNREADABLE, "expects a mapping of keys to values", where={"file": str(path)})
    return dict(_flat("", content))


def _flat(prefix: str, content: Mapping[Any, Any]) -> list[tuple[str, str]]:
    """Returns nested mappings as dotted names: `session: {timeout.ms: 6000}`."""
    pairs: list[tuple[str, str]] = []
    for name, value in content.items():
        key = f"{prefix}{name}"
        if isinstance(value, dict):
            pairs += _flat(key + ".", value)
        elif isinstance(value, list):
            pairs.append((key, ",".join(map(str, value))))
        elif isinstance(value, bool):
            pairs.append((key, str(value).lower()))
        elif value is not None:
            pairs.append((key, str(value)))
    return pairs


def read_properties(text: str) -> dict[str, str]:
    """Parses Java's format: `=`, `:` or a blank after the key, `#` and `!` comments, a backslash at the end of a line
    continues it."""
    properties = {}
    joined = re.sub(r"(?<!\\)((?:\\\\)*)\\\r?\n[ \t]*", r"\1", text)
    for line in joined.splitlines():
        stripped = line.strip()
        if stripped and stripped[0] not in "#!":
            match = re.match(r"((?:\\.|[^\\=:\s])+)\s*[=:]?\s*(.*)", stripped)
            if match:
                properties[_unescape(match[1])] = _unescape(match[2])
    return properties


_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def _unescape(text: str) -> str:
    def one(match: re.Match[str]) -> str:
        code = match[1]
        return chr(int(code[1:], 16)) if len(code) == 5 else _ESCAPES.get(code, code)

    return re.sub(r"\\(u[0-9a-fA-F]{4}|.)", one, text)
