"""The keys of the sink into Redis. Names are those of Redis' own sink and of Jeremy Custenborder's where these have one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from cdcworker.connectors.config.allowed_hosts import host_list
from cdcworker.connectors.config.definition import ConfigDef, ConfigKey, between, one_of
from cdcworker.connectors.network.tls import tls_checks, tls_keys
from cdcworker.connectors.record_sink.config import config_def
from cdcworker.connectors.targets import templates

OWN: Final = ("com.redis.kafka.connect.RedisSinkConnector",)
CUSTENBORDER: Final = ("com.github.jcustenborder.kafka.connect.redis.RedisSinkConnector",)
TYPES: Final = ("STREAM", "HASH", "JSON", "STRING", "SET")
COLLECTIONS: Final = ("STREAM", "SET")
"""Types of which one key holds many records."""
PORT: Final = 6379
_URI: Final = re.compile(r"rediss?://(\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9._-]{1,253})(:[0-9]{1,5})?(/[0-9]{0,5})?")
_PLACE: Final = re.compile(r"(\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9._-]{1,253})(?::([0-9]{1,5}))?")
_TAGGED: Final = re.compile(r"[^{}]*(\{[^{}]+\}[^{}]*)?")


class RedisAddress(NamedTuple):
    host: str
    port: int


def places_of(config: Mapping[str, Any]) -> list[RedisAddress]:
    """Returns the servers that a parsed config names."""
    if config["redis.uri"]:
        url = urlsplit(config["redis.uri"])
        return [RedisAddress(url.hostname or "", url.port or PORT)]
    if config["redis.hosts"]:
        found = (_PLACE.fullmatch(text) for text in config["redis.hosts"])
        return [RedisAddress(one[1].strip("[]"), int(one[2] or PORT)) for one in found if one]
    return [RedisAddress(config["redis.host"].strip("[]"), config["redis.port"])]


def is_secure(config: Mapping[str, Any]) -> bool:
    """Returns whether connections have TLS."""
    return bool(config["redis.ssl.enabled"]) or config["redis.uri"].startswith("rediss:")


def is_cluster(config: Mapping[str, Any]) -> bool:
    return bool(config["redis.cluster"]) or config["redis.client.mode"] == "Cluster"


def database_of(config: Mapping[str, Any]) -> int:
    path = urlsplit(config["redis.uri"]).path.strip("/")
    return int(path) if path else int(config["redis.database"])


def type_of(config: Mapping[str, Any], connector_class: str) -> str:
    """Returns what kind of values the sink writes."""
    return str(config["redis.type"] or ("STRING" if connector_class in CUSTENBORDER else "STREAM"))


def key_template(config: Mapping[str, Any], connector_class: str) -> str:
    """Returns the template of the keys in Redis."""
    if config["redis.key.template"]:
        return str(config["redis.key.template"])
    is_collection = type_of(config, connector_class) in COLLECTIONS
    space = config["redis.keyspace"]
    if space is None:
        space = "" if connector_class in CUSTENBORDER else "${topic}"
    if is_collection:
        return str(space)
    return f"{space}{config['redis.separator']}${{key}}" if space else "${key}"


def _place_problem(value: str) -> str | None:
    found = _PLACE.fullmatch(value)
    if not found:
        return "expects HOST or HOST:PORT, separated by commas"
    if found[2] is not None and not 0 < int(found[2]) < 65_536:
        return "expects a port from 1 to 65535"
    return host_list(found[1].strip("[]"))


def _places(value: list[str]) -> str | None:
    return next(filter(None, map(_place_problem, value)), None)


def _uri(value: str) -> str | None:
    if not value:
        return None
    if not _URI.fullmatch(value):
        return "expects redis://HOST:PORT/DATABASE or rediss://HOST:PORT/DATABASE, without a login"
    place = value.partition("://")[2].partition("/")[0]
    return _place_problem(place)


def _template(value: str) -> str | None:
    return templates.problem(value, whole=False)


def _key_template(value: str) -> str | None:
    if problem := _template(value):
        return problem
    is_fine = _TAGGED.fullmatch(templates.filled_with(value, "x"))
    return None if is_fine else "may have braces around one part only, the one that names the slot of a cluster"


def _place_keys() -> Iterable[ConfigKey]:
    group = "Server"
    yield ConfigKey(
        "redis.hosts", "LIST", [], importance="HIGH", group=group, validator=_places, connects=True,
        doc="Where Redis is, as HOST:PORT. Of a cluster several nodes; of a single server one.",
    )  # fmt: skip
    yield ConfigKey(
        "redis.uri", default="", group=group, validator=_uri, connects=True,
        doc="The same as an address: redis://HOST:PORT/DATABASE, with TLS rediss://.",
    )  # fmt: skip
    yield ConfigKey(
        "redis.host", default="", group=group, importance="LOW", connects=True,
        validator=lambda value: host_list(value.strip("[]")) if value else None, doc="The same, with redis.port.",
    )  # fmt: skip
    yield ConfigKey(
        "redis.port", "INT", PORT, group=group, importance="LOW", validator=between(1, 65_535), connects=True,
        doc="The port of redis.host.",
    )  # fmt: skip
    yield ConfigKey(
        "redis.client.mode", default="Standalone", group=group, validator=one_of("Standalone", "Cluster"), connects=False,
        of_server=True, recommended=("Standalone", "Cluster"), doc="Whether the server is one, or a cluster.",
    )  # fmt: skip
    yield ConfigKey(
        "redis.cluster", "BOOLEAN", False, group=group, importance="LOW", connects=False, of_server=True,
        doc="The same as Redis' own sink names it.",
    )  # fmt: skip
    yield ConfigKey(
        "redis.database", "INT", 0, group=group, validator=between(0, 65_535), connects=False, doc="The number of the database.",
    )  # fmt: skip
    user = "The user; empty: the default user."
    yield ConfigKey("redis.username", default="", group=group, connects=False, of_server=True, doc=user)
    yield ConfigKey(
        "redis.password", "PASSWORD", group=group, connects=False, doc="The password; best a reference such as ${file:/path}.",
    )  # fmt: skip
    yield ConfigKey(
        "redis.socket.connect.timeout.ms", "INT", 10_000, group=group, validator=between(1, 600_000), connects=False,
        doc="Longest wait for a connection.",
    )  # fmt: skip
    yield ConfigKey(
        "redis.operation.timeout.ms", "INT", 30_000, group=group, validator=between(1, 3_600_000), connects=False,
        doc="Longest wait for each piece of an answer; the whole batch has target.timeout.ms.",
    )  # fmt: skip
    yield ConfigKey(
        "redis.timeout", "INT", group=group, validator=between(1, 3_600), importance="LOW", connects=False,
        doc="The same in seconds, as Redis' own sink names it.",
    )  # fmt: skip
    yield ConfigKey(
        "redis.ssl.enabled", "BOOLEAN", False, group="TLS", former="redis.tls", connects=True,
        doc="Whether connections have TLS; the server's certificate is always verified.",
    )  # fmt: skip


def _value_keys() -> Iterable[ConfigKey]:
    group = "Values"
    yield ConfigKey(
        "redis.type", group=group, validator=one_of(*TYPES), recommended=TYPES, importance="HIGH",
        doc="STREAM: each change is an entry. HASH, JSON, STRING: the current row under a key of its own. SET: the keys of rows that there"
        " are. Default: STREAM; STRING for configs of Jeremy Custenborder's sink.",
    )  # fmt: skip
    yield ConfigKey(
        "redis.key.template", group=group, validator=_key_template, importance="HIGH",
        doc="The key in Redis, with places such as ${topic}, ${key} and ${key.id}. Default: ${topic} for STREAM and SET, otherwise"
        " ${topic}:${key}.",
    )  # fmt: skip
    yield ConfigKey(
        "redis.keyspace", group=group, validator=_key_template, importance="LOW",
        doc="What keys begin with where redis.key.template is not set. Default: ${topic}.",
    )  # fmt: skip
    yield ConfigKey(
        "redis.separator", default=":", group=group, importance="LOW", doc="What stands behind redis.keyspace in the key of a row.",
    )  # fmt: skip
    yield ConfigKey(
        "redis.member.template", default="${key}", group=group, validator=_template, doc="What a SET holds of each row.",
    )  # fmt: skip


def _keeping_keys() -> Iterable[ConfigKey]:
    group = "Values"
    yield ConfigKey(
        "redis.stream.fields", group=group, validator=one_of("event", "row"), recommended=("event", "row"),
        doc="What an entry of a STREAM has. event: id, topic, partition, offset, timestamp, key and value, the last two as JSON. row: id and"
        " the fields of the value. Default: event; row for configs of Redis' own sink.",
    )  # fmt: skip
    yield ConfigKey(
        "redis.stream.maxlen", "LONG", 0, group=group, validator=between(0),
        doc="About how many entries a STREAM keeps; 0: all of them.",
    )  # fmt: skip
    yield ConfigKey(
        "redis.stream.once", "BOOLEAN", True, group=group,
        doc="Whether Redis remembers the offsets beside a STREAM, so that what comes again is not added again.",
    )  # fmt: skip
    yield ConfigKey(
        "redis.key.ttl", "LONG", -1, group=group, validator=between(-1),
        doc="Seconds after which a row that was not written again expires, of HASH, JSON and STRING. -1 and 0: never.",
    )  # fmt: skip
    yield ConfigKey(
        "redis.version.ttl", "LONG", 604_800, group=group, validator=between(0),
        doc="Seconds for which the version of a deleted row is remembered: so long a late write of an older one changes nothing. 0: for"
        " ever.",
    )  # fmt: skip
    yield ConfigKey(
        "redis.wait.replicas", "INT", 0, group=group, validator=between(0, 100),
        doc="So many replicas have to have a batch before it counts as written.",
    )  # fmt: skip
    yield ConfigKey(
        "redis.wait.timeout", "LONG", 1_000, group=group, validator=between(1, 600_000),
        doc="How long replicas are waited for, in ms; then the batch is written again.",
    )  # fmt: skip
    yield ConfigKey(
        "unavailable.value.placeholder", default="__debezium_unavailable_value", group=group, importance="LOW",
        doc="What the source writes for a large value that did not change. A HASH or a JSON keeps what it has in that field.",
    )  # fmt: skip


def _checks(config: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    given = [name for name in ("redis.hosts", "redis.uri", "redis.host") if config[name]]
    if len(given) != 1:
        yield "redis.hosts", "set one of redis.hosts, redis.uri and redis.host"
        return
    cluster = is_cluster(config)
    if not cluster and len(config["redis.hosts"]) > 1:
        yield "redis.hosts", "expects one server, or redis.client.mode=Cluster"
    if cluster and database_of(config):
        yield "redis.database", "a cluster has database 0 only"
    if cluster and config["redis.wait.replicas"]:
        yield "redis.wait.replicas", "is not available with a cluster"
    if config["redis.username"] and not config["redis.password"]:
        yield "redis.password", "is needed with redis.username"
    yield from tls_checks(config, "redis.ssl.", "" if is_secure(config) else "redis.ssl.enabled=false")


_STEP: Final = "Each record is written by a script, which is one step."
CONFIG_DEF: Final[ConfigDef] = config_def(
    [*_place_keys(), *tls_keys("redis.ssl."), *_value_keys(), *_keeping_keys()],
    {
        "redis.multiexec": _STEP,
        "redis.charset": "Texts are UTF-8.",
        "redis.pool": "Each lane has a connection.",
        "redis.auto.reconnect.enabled": "Connections are always made again.",
        "redis.request.queue.size": "",
        "redis.socket.tcp.no.delay.enabled": "",
        "redis.socket.keep.alive.enabled": "",
        "redis.connection.attempts": "retry.backoff.ms and max.retries say how often a batch is tried.",
        "redis.connection.retry.delay.ms": "retry.backoff.ms and max.retries say how often a batch is tried.",
    },
    _checks,
)
