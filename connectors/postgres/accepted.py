"""Keys of Debezium and Kafka Connect that existing configurations carry: accepted with a note, or refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from cdcworker.connectors import common, formats
from cdcworker.connectors.config import ConfigKey, Validator, one_of

_NAMES = "Not applied: illegal characters in names are escaped reversibly."
_UNNEEDED = "Not needed here: accepted without effect."
_TYPE = "Not needed here: the source's type is always in the schema's cdc.type."
_BATCH = "Not needed here: batches and memory are bounded by bytes."
_RETRY = "Not needed here: the worker retries transient errors with its own back-off."

_OVERRIDE = "Not applied: the worker's own client settings hold."
_HARMLESS = (
    "acks", "batch.size", "buffer.memory", "client.id", "compression.type", "delivery.timeout.ms", "enable.idempotence",
    "fetch.max.bytes", "fetch.max.wait.ms", "fetch.min.bytes", "linger.ms", "max.block.ms",
    "max.in.flight.requests.per.connection", "max.partition.fetch.bytes", "max.poll.interval.ms", "max.poll.records",
    "max.request.size", "receive.buffer.bytes", "request.timeout.ms", "retries", "retry.backoff.ms",
    "send.buffer.bytes", "session.timeout.ms",
)  # fmt: skip
"""Client settings that connectors' configs may carry. None is applied; those that name servers, logins, files and
classes are refused, so that nobody takes them for applied."""

_OWN = ("topic.creation.default.", "key.converter", "value.converter")
_CONNECT = {
    **{name: note for name, note in common.ACCEPTED.items() if not name.startswith(_OWN)},
    **formats.ACCEPTED,
    "name": "",
    "connector.class": "",
    "topic.creation.default.": "Given to created topics as it is.",
    "offsets.storage.topic": _UNNEEDED,
    **{f"{kind}.override.{name}": _OVERRIDE for kind in ("producer", "consumer", "admin") for name in _HARMLESS},
}

_DEBEZIUM = {
    "max.batch.size": _BATCH,
    "max.queue.size": _BATCH,
    "max.queue.size.in.bytes": _BATCH,
    "queue.provider.type": _BATCH,
    "poll.interval.ms": _BATCH,
    "poll.dispatch.interval.ms": _BATCH,
    "errors.max.retries": _RETRY,
    "retriable.restart.connector.wait.ms": _RETRY,
    "slot.max.retries": _RETRY,
    "slot.retry.delay.ms": _RETRY,
    "connection.validation.timeout.ms": _RETRY,
    "connection.restart.wait.ms": _RETRY,
    "lsn.flush.mode": "Confirmed after the Kafka transaction only.",
    "lsn.flush.timeout.ms": _UNNEEDED,
    "lsn.flush.timeout.action": _UNNEEDED,
    "flush.lsn.source": "Confirmed after the Kafka transaction only.",
    "offset.mismatch.strategy": "A slot and a position that do not fit halt the task.",
    "xmin.fetch.interval.ms": _UNNEEDED,
    "heartbeat.topics.prefix": "Its name is topic.heartbeat.prefix now, which counts if both are given.",
    "snapshot.max.threads.multiplier": _UNNEEDED,
    "legacy.snapshot.max.threads": _UNNEEDED,
    "snapshot.fetch.size": "See snapshot.chunk.max.bytes.",
    "snapshot.delay.ms": _UNNEEDED,
    "streaming.delay.ms": _UNNEEDED,
    "snapshot.locking.mode": "The snapshot takes no lock that writers notice.",
    "snapshot.isolation.mode": "Each chunk is read in its own repeatable-read transaction.",
    "snapshot.tables.order.by.row.count": _UNNEEDED,
    "incremental.snapshot.": "Every snapshot is incremental here.",
    "read.only": "Nothing needs to be written to the source's tables.",
    "signal.": "Signals come by REST, or by the table of signal.data.collection.",
    "notification.": "Notifications are not sent; progress is in the task's status.",
    "schema.refresh.mode": "Relations are compared on every change of the stream.",
    "schema.name.adjustment.mode": _NAMES,
    "field.name.adjustment.mode": _NAMES,
    "topic.naming.strategy": _NAMES,
    "topic.cache.size": _UNNEEDED,
    "include.unknown.datatypes": "See unknown.type.handling.mode: unknown types are included, as text by default.",
    "include.schema.changes": _UNNEEDED,
    "event.processing.failure.handling.mode": "A change that cannot be handed on holds its table back; see table.failure.policy.",
    "column.propagate.source.type": _TYPE,
    "datatype.propagate.source.type": _TYPE,
    "sanitize.field.names": _NAMES,
    "source.struct.version": _UNNEEDED,
    "executor.shutdown.timeout.ms": _UNNEEDED,
    "guardrail.": _UNNEEDED,
    "openlineage.": "Lineage events are not sent.",
    "internal.": _UNNEEDED,
    "database.server.name": "Its name is topic.prefix now, which counts if both are given.",
    "database.history.": _UNNEEDED,
    "schema.history.": _UNNEEDED,
    "custom.metric.tags": _UNNEEDED,
    "retriable.": _RETRY,
    "status.update.interval": _UNNEEDED,
    "topic.delimiter": "Always a dot.",
}

ACCEPTED: dict[str, str] = {**_CONNECT, **_DEBEZIUM}


def _never(reason: str) -> Validator:
    def check(value: Any) -> str | None:
        return f"is not available: {reason}" if value else None

    return check


def _off(reason: str) -> Validator:
    def check(value: Any) -> str | None:
        return f"is not available: {reason}" if value is True else None

    return check


def _refuse(name: str, reason: str) -> ConfigKey:
    return ConfigKey(
        name, validator=_never(reason), importance="LOW", group="Not available", doc=f"Not available: {reason}."
    )


TOLERANCE = ConfigKey(
    "errors.tolerance",
    default="none",
    validator=one_of("none"),
    group="Error handling",
    doc="A record that cannot be handled holds its table back, or halts (table.failure.policy); there are no dead letters.",
)

REFUSED: tuple[ConfigKey, ...] = (
    *(
        _refuse(f"{name}.{old}", f"its name is {name}.{new}.list")
        for name in ("schema", "table", "column")
        for old, new in (("whitelist", "include"), ("blacklist", "exclude"))
    ),
    _refuse("predicates", "a transform is applied to every record"),
    _refuse("converters", "custom converters are not applied"),
    _refuse("post.processors", "post-processors are not applied"),
    _refuse("snapshot.select.statement.overrides", "a snapshot reads whole tables"),
    _refuse("slot.stream.params", "stream parameters are fixed; see replication.origin"),
    _refuse("database.initial.statements", "session settings fix the text forms"),
    ConfigKey(
        "slot.two.phase",
        "BOOLEAN",
        False,
        validator=_off("prepared transactions are handed on when they commit"),
        importance="LOW",
        group="Not available",
    ),
)

FORMER_PREFIX: Final = "database.server.name"
"""What topic.prefix was called before Debezium 2."""


def renamed(config: Mapping[str, str]) -> dict[str, str]:
    """With the present name beside the former one: whoever reads a task's config looks for that."""
    former = config.get(FORMER_PREFIX)
    return dict(config) if former is None else {"topic.prefix": former, **config}
