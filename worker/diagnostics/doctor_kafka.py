"""Kafka under examination: does it answer, is it new enough, and are the cluster's own topics as they must be?"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from cdcworker.connectors.checks import CheckResult, CheckSkipped, DoctorCheck, ok
from cdcworker.schemas.errors import CdcError

if TYPE_CHECKING:
    from cdcworker.coordinator.kafka.internal_topics import TopicSpec
    from cdcworker.worker.diagnostics.examined_machine import DoctorMachine

CLIENT = "cdcworker-doctor"
REQUEST_S = 8.0
INIT_PRODUCER_ID, FENCING = 22, 3
"""The request, and its version, by which a broker fences a producer that was replaced: since Kafka 2.5."""
NEWER: tuple[tuple[int, int, str], ...] = (
    (1, 18, "4.1"), (80, 0, "4.0"), (1, 17, "3.9"), (75, 0, "3.8"), (68, 0, "3.7"), (1, 15, "3.5"),
    (1, 13, "3.1"), (1, 12, "2.7"), (INIT_PRODUCER_ID, 3, "2.5"),
)  # fmt: skip
"""(request, version of it, first release that has it), newest first: brokers do not say their own release."""


def _reachable(machine: DoctorMachine) -> Iterator[CheckResult]:
    from cdcworker.coordinator.kafka.clients import cluster_id

    where = machine.kafka["bootstrap.servers"]
    try:
        found = cluster_id(machine.kafka, client_id=CLIENT, timeout_s=REQUEST_S)
    except CdcError as exc:
        yield CheckResult("error", where, exc.message, exc.code, "bootstrap.servers", exc.hint)
        return
    yield ok(f"cluster {found} at {where}, {len(_metadata(machine).brokers)} brokers")


def _metadata(machine: DoctorMachine) -> Any:
    from cdcworker.coordinator.kafka.clients import make_admin
    from confluent_kafka import KafkaException

    try:
        return make_admin(machine.kafka, client_id=CLIENT).list_topics(timeout=REQUEST_S)
    except KafkaException as exc:
        raise CheckSkipped("not examined: Kafka does not answer") from exc


def _version(machine: DoctorMachine) -> Iterator[CheckResult]:
    if machine.kafka.get("security.protocol", "PLAINTEXT").upper() != "PLAINTEXT":
        yield CheckResult(
            "unknown", "", "brokers tell what they can before a login only; not asked through TLS or SASL"
        )
        return
    host, _, port = machine.kafka["bootstrap.servers"].split(",")[0].strip().rpartition(":")
    try:
        able = api_versions(host.strip("[]"), int(port))
    except (OSError, ValueError, struct.error) as exc:
        raise CheckSkipped(f"not examined: {type(exc).__name__} when asked what it can") from exc
    release = next((name for key, version, name in NEWER if able.get(key, -1) >= version), "older than 2.5")
    if able.get(INIT_PRODUCER_ID, -1) < FENCING:
        text = "this Kafka cannot fence a producer that was replaced: 2.5 or newer is needed"
        yield CheckResult("error", release, text, "kafka.unsupported", "bootstrap.servers")
        return
    yield ok(f"Kafka {release} or newer")


def api_versions(host: str, port: int, timeout_s: float = REQUEST_S) -> dict[int, int]:
    """Request → the highest version of it that the broker takes (ApiVersions, version 0)."""
    name = CLIENT.encode()
    body = struct.pack(">hhih", 18, 0, 1, len(name)) + name
    with socket.create_connection((host, port), timeout_s) as connection:
        connection.sendall(struct.pack(">i", len(body)) + body)
        (size,) = struct.unpack(">i", _exactly(connection, 4))
        if not 10 <= size <= 1 << 20:
            raise ValueError("no answer of a broker")
        answer = _exactly(connection, size)
    _, error, count = struct.unpack_from(">ihi", answer)
    if error:
        raise ValueError("refused")
    triples = (struct.unpack_from(">hhh", answer, 10 + 6 * number) for number in range(count))
    return {key: highest for key, _, highest in triples}


def _exactly(connection: socket.socket, size: int) -> bytes:
    out = b""
    while len(out) < size:
        part = connection.recv(size - len(out))
        if not part:
            raise OSError("cut")
        out += part
    return out


def _topics(machine: DoctorMachine) -> Iterator[CheckResult]:
    """Checks the internal topics that exist by the rules of a worker's start. A worker makes the missing ones
    itself."""
    from cdcworker.coordinator.kafka.internal_topics import TopicNames, internal_topics

    specs = internal_topics(TopicNames.of_group(machine.group_id, machine.properties))
    metadata = _metadata(machine)
    there = [spec for spec in specs if spec.name in metadata.topics]
    if not there:
        yield ok(f"none of {machine.group_id} yet; the first worker makes them")
        return
    configs = _configs(machine, [spec.name for spec in there])
    wrong = 0
    for spec in there:
        for result in _topic(machine, spec, metadata.topics[spec.name], configs[spec.name]):
            wrong += 1
            yield result
    yield from _advice(there, metadata, configs)
    if not wrong:
        yield ok(f"{len(there)} of {len(specs)} topics of {machine.group_id}, as they must be")


def _topic(
    machine: DoctorMachine, spec: TopicSpec, metadata: Any, config: Mapping[str, str] | None
) -> Iterator[CheckResult]:
    from cdcworker.coordinator.kafka import topic_checks

    found = _found(spec.name, metadata, config)
    bootstrap = machine.kafka["bootstrap.servers"]
    try:
        if spec.exact:
            topic_checks.check_partitions(found, spec.partitions, spec.key)
        if spec.is_compacted:
            topic_checks.check_policy(found, bootstrap)
            topic_checks.check_in_sync(found, bootstrap)
    except CdcError as exc:
        yield CheckResult("error", spec.name, exc.message, exc.code, spec.key, exc.hint)
    leaderless = [number for number, part in metadata.partitions.items() if part.leader < 0]
    if leaderless:
        text = f"{len(leaderless)} partitions of {spec.name} have no leader"
        yield CheckResult("error", spec.name, text, "kafka.topic_missing", spec.key)


def _advice(specs: list[TopicSpec], metadata: Any, configs: Mapping[str, Any]) -> Iterator[CheckResult]:
    from cdcworker.coordinator.kafka import topic_checks

    kept = [spec for spec in specs if spec.is_compacted]
    found = [_found(spec.name, metadata.topics[spec.name], configs[spec.name]) for spec in kept]
    retention_ms = {spec.name: int(spec.config.get("delete.retention.ms", 0)) for spec in kept}
    for text in topic_checks.warnings(found, len(metadata.brokers), retention_ms):
        yield CheckResult("warning", "", text)


def _found(name: str, metadata: Any, config: Mapping[str, str] | None) -> Any:
    from cdcworker.coordinator.kafka.topic_checks import FoundTopic

    parts = metadata.partitions.values()
    return FoundTopic(name, len(parts), min((len(part.replicas) for part in parts), default=0), config)


def _configs(machine: DoctorMachine, names: list[str]) -> dict[str, dict[str, str] | None]:
    """None for a topic whose settings may not be seen."""
    from cdcworker.coordinator.kafka.clients import make_admin
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import ConfigResource, ResourceType

    asked = [ConfigResource(ResourceType.TOPIC, name) for name in names]
    out: dict[str, dict[str, str] | None] = {}
    admin = make_admin(machine.kafka, client_id=CLIENT)
    for asked_for, answer in admin.describe_configs(asked, request_timeout=REQUEST_S).items():
        try:
            out[asked_for.name] = {name: str(entry.value) for name, entry in answer.result(REQUEST_S).items()}
        except (KafkaException, TimeoutError):
            out[asked_for.name] = None
    return out


CHECKS = (
    DoctorCheck("kafka.reachable", "Kafka is the cluster's memory and its only coordinator.", _reachable),
    DoctorCheck("kafka.version", "Fencing of replaced producers is what exactly-once rests on.", _version),
    DoctorCheck("kafka.topics", "A topic that forgets would forget connectors and positions.", _topics),
)
