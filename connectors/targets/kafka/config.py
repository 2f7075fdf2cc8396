"""The keys of the sink into another Kafka."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from cdcworker.connectors.config.allowed_hosts import host_list
from cdcworker.connectors.config.definition import ConfigDef, ConfigKey, between, matches, one_of, regex_list
from cdcworker.connectors.network.tls import tls_checks, tls_keys
from cdcworker.connectors.record_sink.config import config_def
from cdcworker.connectors.targets.kafka.naming import DEFAULT, IDENTITY, PLACE, POLICIES, names_of

BATCH_DEFAULT: Final = 10_000
BATCH_BYTES_DEFAULT: Final = 8_388_608
SERVERS: Final = "target.bootstrap.servers"
PROTOCOL: Final = "target.security.protocol"
_SERVER: Final = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9._-]{1,253}):(?P<port>[0-9]{1,5})")
_NAME: Final = r"[A-Za-z0-9._\-]"
_MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")


def hosts_of(config: Mapping[str, Any]) -> list[str]:
    """Returns the hosts that a parsed config names."""
    return [found["host"].strip("[]") for found in map(_SERVER.fullmatch, config[SERVERS]) if found]


def is_secure(config: Mapping[str, Any]) -> bool:
    """Returns whether connections have TLS."""
    return str(config[PROTOCOL]).endswith("SSL")


def _servers(value: list[str]) -> str | None:
    for text in value:
        found = _SERVER.fullmatch(text)
        if not found or not 0 < int(found["port"]) < 65_536:
            return "expects HOST:PORT, separated by commas"
        if problem := host_list(found["host"].strip("[]")):
            return problem
    return None if value else "expects a server"


def _policy(value: str) -> str | None:
    return None if value in POLICIES else f"names a policy that is not available; expects {DEFAULT} or {IDENTITY}"


def _template(value: str) -> str | None:
    if not value:
        return None
    whole = value.count(PLACE) == 1 and re.fullmatch(rf"{_NAME}{{0,200}}", value.replace(PLACE, ""))
    return None if whole else "expects a name with ${topic} in it once"


def _place_keys() -> Iterable[ConfigKey]:
    group = "Target cluster"
    yield ConfigKey(
        SERVERS, "LIST", required=True, importance="HIGH", group=group, validator=_servers, connects=True,
        former="target.cluster.bootstrap.servers", doc="Brokers of the other cluster, as HOST:PORT.",
    )  # fmt: skip
    yield ConfigKey(
        PROTOCOL, default="PLAINTEXT", group=group, validator=one_of(*_PROTOCOLS), recommended=_PROTOCOLS, connects=True,
        former="target.cluster.security.protocol", doc="How connections are made. With TLS the brokers' certificates are always verified.",
    )  # fmt: skip
    yield ConfigKey(
        "target.sasl.mechanism", default="PLAIN", group=group, validator=one_of(*_MECHANISMS), recommended=_MECHANISMS,
        connects=True, former="target.cluster.sasl.mechanism", doc="How the sink logs in, where the protocol begins with SASL.",
    )  # fmt: skip
    yield ConfigKey(
        "target.sasl.username", default="", group=group, connects=False, of_server=True, doc="The user of the login."
    )
    yield ConfigKey(
        "target.sasl.password", "PASSWORD", group=group, connects=False,
        doc="The password; best a reference such as ${file:/path:key}.",
    )  # fmt: skip
    yield from tls_keys("target.ssl.")


def _producer_keys() -> Iterable[ConfigKey]:
    group = "Producer"
    yield ConfigKey(
        "target.compression.type", default="none", group=group, validator=one_of(*_CODECS), recommended=_CODECS, connects=False,
        doc="How records are compressed on their way. What readers see does not depend on it.",
    )  # fmt: skip
    yield ConfigKey(
        "target.batch.size", "INT", 1_000_000, group=group, validator=between(1, 100_000_000), connects=False, importance="LOW",
        doc="Most bytes of records of a partition in one request. A topic with a lower max.message.bytes needs a lower one.",
    )  # fmt: skip
    yield ConfigKey(
        "target.max.request.size", "INT", 100_000_000, group=group, validator=between(1_000, 1_000_000_000), connects=False,
        importance="LOW", doc="Most bytes of one record. The brokers have limits of their own.",
    )  # fmt: skip
    yield ConfigKey(
        "target.transaction.timeout.ms", "INT", 60_000, group=group, validator=between(1_000, 900_000), connects=False,
        importance="LOW",
        doc="After so long brokers abort a transaction whose writer is gone; readers of its partitions wait until then, or until the"
        " task is started again.",
    )  # fmt: skip


def _topic_keys() -> Iterable[ConfigKey]:
    group = "Copied topics"
    alias = matches(rf"{_NAME}{{1,100}}", "letters, digits, dot, hyphen and underscore")
    yield ConfigKey(
        "source.cluster.alias", default="source", importance="HIGH", group=group, validator=alias,
        doc="What the cluster that is read is called: names of copies begin with it.",
    )  # fmt: skip
    yield ConfigKey(
        "target.cluster.alias", default="target", group=group, validator=alias, connects=False,
        doc="What the other cluster is called. A topic that has this among the clusters in its name came from there, and is not copied back.",
    )  # fmt: skip
    yield ConfigKey(
        "replication.policy.class", "CLASS", DEFAULT, connects=False, group=group, validator=_policy, recommended=(DEFAULT, IDENTITY),
        doc="Names of copies, as MirrorMaker's classes make them: ALIAS.TOPIC, or with IdentityReplicationPolicy TOPIC.",
    )  # fmt: skip
    yield ConfigKey(
        "replication.policy.separator", default=".", group=group, validator=matches(r"[._\-]{1,5}", "dots, hyphens or underscores"),
        doc="What stands between the alias and the topic.",
    )  # fmt: skip
    yield ConfigKey(
        "topic.name.format", default="", group=group, validator=_template, topics="",
        doc="A template of names instead of the policy, such as dr-${topic}.",
    )  # fmt: skip
    yield ConfigKey(
        "topics.exclude", "LIST", [r".*[\-\.]internal", r".*\.replica", "__.*"], group=group, validator=regex_list,
        doc="Regular expressions; topics of which one matches the whole name are left out where topics.regex matches them.",
    )  # fmt: skip
    yield ConfigKey(
        "replication.factor", "SHORT", -1, group=group, validator=between(-1, 1_000),
        doc="Of topics that are made; -1: the brokers' default.",
    )  # fmt: skip
    yield ConfigKey(
        "sync.topic.configs.enabled", "BOOLEAN", True, group=group,
        doc="Whether settings of a topic are copied: when it is made, and at each start of the task.",
    )  # fmt: skip
    yield ConfigKey(
        "config.properties.exclude", "LIST",
        [
            "follower.replication.throttled.replicas", "leader.replication.throttled.replicas",
            "message.timestamp.difference.max.ms", "message.timestamp.type", "unclean.leader.election.enable",
            "min.insync.replicas",
        ],
        connects=False, group=group, validator=regex_list, doc="Regular expressions; settings of which one matches the whole name are not copied.",
    )  # fmt: skip


def _group_keys() -> Iterable[ConfigKey]:
    group = "Consumer groups"
    yield ConfigKey(
        "groups", "LIST", [], group=group, validator=regex_list,
        doc="Regular expressions; what groups of which one matches the whole name have committed is translated. Default: none.",
    )  # fmt: skip
    yield ConfigKey(
        "groups.exclude", "LIST", ["console-consumer-.*", "connect-.*", "__.*", "cdcworker-.*"], group=group,
        validator=regex_list, doc="Regular expressions; groups that one of them matches are left out.",
    )  # fmt: skip
    yield ConfigKey(
        "emit.checkpoints.enabled", "BOOLEAN", True, group=group,
        doc="Whether translated offsets are written to the topic ALIAS.checkpoints.internal, in MirrorMaker's form.",
    )  # fmt: skip
    yield ConfigKey(
        "emit.checkpoints.interval.seconds", "INT", 60, group=group, validator=between(1, 86_400),
        doc="How often groups are looked at.",
    )  # fmt: skip
    yield ConfigKey(
        "sync.group.offsets.enabled", "BOOLEAN", False, group=group,
        doc="Whether translated offsets are committed on the target for the same groups, where they have no members there. They only go"
        " forward.",
    )  # fmt: skip


def _checks(config: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    yield from tls_checks(config, "target.ssl.", "" if is_secure(config) else f"{PROTOCOL}={config[PROTOCOL]}")
    has_login = str(config[PROTOCOL]).startswith("SASL")
    for name in ("target.sasl.username", "target.sasl.password"):
        if has_login != bool(config[name]):
            yield name, "is needed" if has_login else f"has no meaning with {PROTOCOL}={config[PROTOCOL]}"
    if config["transforms"]:
        yield "transforms", "is not available: records are copied as they are"
    names = names_of(config)
    if any(names.on_target(topic) in (names.ledger, names.checkpoints) for topic in config["topics"]):
        yield "topics", "names a topic whose copy would be the mirror's own ledger, or its checkpoints"
    if any(names.came_from_target(topic) for topic in config["topics"]):
        yield (
            "topics",
            "names a topic that came from the target cluster by its name (target.cluster.alias): it would be copied back",
        )


CONFIG_DEF: Final[ConfigDef] = config_def(
    [*_place_keys(), *_producer_keys(), *_topic_keys(), *_group_keys()],
    {
        "source.cluster.*": "Not needed: the worker's own Kafka is read.",
        "offset-syncs.topic.*": "Not written: the ledger has what it would hold.",
        "sync.group.offsets.interval.seconds": "Offsets are committed as often as checkpoints are written.",
        "emit.heartbeats.*": "Heartbeats are not written.",
    },
    _checks,
)
