"""What a cluster's Kafka user has to be allowed, made from the names that the code uses."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import quote

from cdcworker.connectors.spark.witness import GROUP
from cdcworker.coordinator.kafka_topics import TopicNames
from cdcworker.coordinator.kafka_writer import leader_transactional_id

Resource = Literal["topic", "group", "transactional-id", "cluster"]
WRITTEN = "which tables sinks into files and lakes have written: without it one that is away looks new"
NEVER_JOINED = "cdcworker-"
"""Names under which readers look for a coordinator, which the client library does whether they need one or not."""
_OWN = ("Create", "Describe", "DescribeConfigs", "Read", "Write")


@dataclass(frozen=True, slots=True)
class Acl:
    """Operations on a resource by its name, or on all whose names begin so."""

    resource: Resource
    name: str
    operations: tuple[str, ...]
    prefixed: bool = False
    why: str = ""


@dataclass(frozen=True, slots=True)
class Wanted:
    """`writes`: the topic prefixes of sources. `reads`: beginnings of the topics' names that sinks read."""

    group_id: str
    topics: TopicNames
    writes: Sequence[str] = ()
    reads: Sequence[str] = ()
    audit: str = ""
    old_brokers: bool = field(default=False)
    """Before Kafka 2.8 an idempotent producer needs a right of its own."""


def acls(wanted: Wanted) -> list[Acl]:
    """Of one user for all workers of a cluster."""
    return [*_of_the_cluster(wanted), *_of_the_data(wanted)]


def _of_the_cluster(wanted: Wanted) -> Iterator[Acl]:
    topics = wanted.topics
    for name, why in (
        (topics.configs, "connectors, assignments, the keys between workers: whoever writes here owns the cluster"),
        (topics.offsets, "positions"),
        (topics.status, "states and presence"),
        (topics.schemas, "schemas"),
    ):
        yield Acl("topic", name, _OWN, why=why)
    election = ("Create", "Describe", "DescribeConfigs", "Read")
    yield Acl("topic", topics.coordination, election, why="its one partition elects the leader; it stays empty")
    yield Acl("group", wanted.group_id, ("Describe", "Read"), why="the workers")
    yield Acl("group", NEVER_JOINED, ("Describe",), prefixed=True, why="readers that join no group")
    leader = leader_transactional_id(wanted.group_id)
    yield Acl("transactional-id", leader, ("Describe", "Write"), why="the leader's decisions")
    if wanted.audit:
        yield Acl("topic", wanted.audit, ("Create", "Describe", "DescribeConfigs", "Write"), why="the audit trail")
    if wanted.old_brokers:
        yield Acl("cluster", "", ("IdempotentWrite",), why="brokers before Kafka 2.8")


def _of_the_data(wanted: Wanted) -> Iterator[Acl]:
    if wanted.writes:
        tasks = quote(wanted.group_id, safe="") + ":"
        yield Acl("transactional-id", tasks, ("Describe", "Write"), prefixed=True, why="source tasks")
    for prefix in wanted.writes:
        operations = ("Create", "Describe", "DescribeConfigs", "Read", "Write")
        # What a broker left open is read before it is ended.
        yield Acl("topic", prefix + ".", operations, prefixed=True, why="changes, watermarks, messages")
    for prefix in wanted.reads:
        yield Acl("topic", prefix, ("Describe", "Read"), prefixed=True, why="what sinks read")
    if wanted.reads:
        yield Acl("group", GROUP, ("Describe", "Read"), prefixed=True, why=WRITTEN)


def as_commands(found: Sequence[Acl], principal: str, bootstrap: str) -> str:
    """For Kafka's own tool."""
    lines = []
    head = f"kafka-acls.sh --bootstrap-server {shlex.quote(bootstrap)} --command-config admin.properties --add"
    for acl in found:
        operations = " ".join(f"--operation {name}" for name in acl.operations)
        place = "--cluster" if acl.resource == "cluster" else f"--{acl.resource} {shlex.quote(acl.name)}"
        kind = " --resource-pattern-type prefixed" if acl.prefixed else ""
        lines += [f"# {acl.why}", f"{head} --allow-principal {shlex.quote(principal)} {operations} {place}{kind}"]
    return "\n".join(lines) + "\n"
