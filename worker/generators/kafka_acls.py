"""The Kafka ACLs that a cluster's user needs, from the names that the code uses."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal
from urllib.parse import quote

from cdcworker.connectors.sink_engine.kafka.written_tables import GROUP
from cdcworker.coordinator.kafka.internal_topics import TopicNames
from cdcworker.coordinator.kafka.leader_writer import leader_transactional_id

Resource = Literal["topic", "group", "transactional-id", "cluster"]
TASKS = "source tasks, and sinks without Spark, which commit their offsets in transactions"
WRITTEN = "which tables sinks into files and lakes have written: without it one that is away looks new; offsets of sinks without Spark"
ALTERED = "offsets of sinks without Spark that somebody alters"
NEVER_JOINED = "cdcworker-"
"""The prefix of group ids under which readers look for a coordinator, which the client library does in any case."""
_OWN = ("Create", "Describe", "DescribeConfigs", "Read", "Write")


@dataclass(frozen=True, slots=True)
class Acl:
    """Operations on a resource by its name, or on all resources whose names begin with it."""

    resource: Resource
    name: str
    operations: tuple[str, ...]
    prefixed: bool = False
    why: str = ""


@dataclass(frozen=True, slots=True)
class ConnectorAcls:
    """The scope of the ACLs. `writes` holds the topic prefixes of sources, `reads` prefixes of the topics that sinks
    read."""

    group_id: str
    topics: TopicNames
    writes: Sequence[str] = ()
    reads: Sequence[str] = ()
    audit: str = ""
    alerts: str = ""
    """The topic of incidents; empty when nobody is told of them."""
    old_brokers: bool = False
    """True for brokers before Kafka 2.8, where an idempotent producer needs a right of its own."""


def acls(scope: ConnectorAcls) -> list[Acl]:
    """Returns the ACLs of one user for all workers of a cluster."""
    return [*_of_the_cluster(scope), *_of_the_data(scope)]


def _of_the_cluster(scope: ConnectorAcls) -> Iterator[Acl]:
    topics = scope.topics
    for name, why in (
        (topics.configs, "connectors, assignments, the keys between workers: whoever writes here owns the cluster"),
        (topics.offsets, "positions"),
        (topics.status, "states and presence"),
        (topics.schemas, "schemas"),
    ):
        yield Acl("topic", name, _OWN, why=why)
    election = ("Create", "Describe", "DescribeConfigs", "Read")
    yield Acl("topic", topics.coordination, election, why="its one partition elects the leader; it stays empty")
    yield Acl("group", scope.group_id, ("Describe", "Read"), why="the workers")
    yield Acl("group", NEVER_JOINED, ("Describe",), prefixed=True, why="readers that join no group")
    leader = leader_transactional_id(scope.group_id)
    yield Acl("transactional-id", leader, ("Describe", "Write"), why="the leader's decisions")
    if scope.audit:
        yield Acl("topic", scope.audit, ("Create", "Describe", "DescribeConfigs", "Write"), why="the audit trail")
    if scope.alerts:
        yield Acl("topic", scope.alerts, _OWN, why="incidents, and who was told of them")
    if scope.old_brokers:
        yield Acl("cluster", "", ("IdempotentWrite",), why="brokers before Kafka 2.8")


def _of_the_data(scope: ConnectorAcls) -> Iterator[Acl]:
    if scope.writes or scope.reads:
        tasks = quote(scope.group_id, safe="") + ":"
        yield Acl("transactional-id", tasks, ("Describe", "Write"), prefixed=True, why=TASKS)
    for prefix in scope.writes:
        operations = ("Create", "Describe", "DescribeConfigs", "Read", "Write")
        # What a broker left open is read before it is ended.
        yield Acl("topic", prefix + ".", operations, prefixed=True, why="changes, watermarks, messages")
    for prefix in scope.reads:
        yield Acl("topic", prefix, ("Describe", "Read"), prefixed=True, why="what sinks read")
    if scope.reads:
        yield Acl("group", GROUP, ("Describe", "Read"), prefixed=True, why=WRITTEN)
        yield Acl("transactional-id", GROUP, ("Describe", "Write"), prefixed=True, why=ALTERED)


def as_commands(acls: Sequence[Acl], principal: str, bootstrap: str) -> str:
    """Returns the ACLs as commands of kafka-acls.sh."""
    lines = []
    head = f"kafka-acls.sh --bootstrap-server {shlex.quote(bootstrap)} --command-config admin.properties --add"
    for acl in acls:
        operations = " ".join(f"--operation {name}" for name in acl.operations)
        place = "--cluster" if acl.resource == "cluster" else f"--{acl.resource} {shlex.quote(acl.name)}"
        kind = " --resource-pattern-type prefixed" if acl.prefixed else ""
        lines += [f"# {acl.why}", f"{head} --allow-principal {shlex.quote(principal)} {operations} {place}{kind}"]
    return "\n".join(lines) + "\n"
