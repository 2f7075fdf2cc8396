"""Keys of Debezium and Kafka Connect that configurations of any source carry: accepted with a note, or refused."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from cdcworker.connectors.config import common_keys, converters
from cdcworker.connectors.config.definition import ConfigKey, Validator, one_of

_NAMES = "Not applied: illegal characters in names are escaped reversibly."
UNNEEDED = "Not needed here: accepted without effect."
_BATCH = "Not needed here: batches and memory are bounded by bytes."
RETRY = "Not needed here: the worker retries transient errors with its own back-off."

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
    **{name: note for name, note in common_keys.ACCEPTED.items() if not name.startswith(_OWN)},
    **converters.ACCEPTED,
    "name": "",
    "connector.class": "",
    "topic.creation.default.": "Given to created topics as it is.",
    "offsets.storage.topic": UNNEEDED,
    **{f"{kind}.override.{name}": _OVERRIDE for kind in ("producer", "consumer", "admin") for name in _HARMLESS},
}

_DEBEZIUM = {
    "max.batch.size": _BATCH,
    "max.queue.size": _BATCH,
    "max.queue.size.in.bytes": _BATCH,
    "queue.provider.type": _BATCH,
    "poll.interval.ms": _BATCH,
    "poll.dispatch.interval.ms": _BATCH,
    "errors.max.retries": RETRY,
    "retriable.restart.connector.wait.ms": RETRY,
    "connection.validation.timeout.ms": RETRY,
    "connection.restart.wait.ms": RETRY,
    "heartbeat.topics.prefix": "Its name is topic.heartbeat.prefix now, which counts if both are given.",
    "snapshot.max.threads.multiplier": UNNEEDED,
    "legacy.snapshot.max.threads": UNNEEDED,
    "snapshot.fetch.size": "See snapshot.chunk.max.bytes.",
    "snapshot.delay.ms": UNNEEDED,
    "streaming.delay.ms": UNNEEDED,
    "snapshot.locking.mode": "The snapshot takes no lock that writers notice.",
    "snapshot.isolation.mode": "Each chunk is read in its own repeatable-read transaction.",
    "snapshot.tables.order.by.row.count": UNNEEDED,
    "incremental.snapshot.": "Every snapshot is incremental here.",
    "read.only": "Nothing needs to be written to the source's tables.",
    "signal.": "Signals come by REST, or by the table of signal.data.collection.",
    "notification.": "Notifications are not sent; progress is in the task's status.",
    "schema.name.adjustment.mode": _NAMES,
    "field.name.adjustment.mode": _NAMES,
    "topic.cache.size": UNNEEDED,
    "include.unknown.datatypes": "See unknown.type.handling.mode: unknown types are included, as text by default.",
    "include.schema.changes": UNNEEDED,
    "sanitize.field.names": _NAMES,
    "source.struct.version": UNNEEDED,
    "executor.shutdown.timeout.ms": UNNEEDED,
    "guardrail.collections.limit.action": UNNEEDED,
    "openlineage.": "Lineage events are not sent.",
    "internal.": UNNEEDED,
    "database.server.name": "Its name is topic.prefix now, which counts if both are given.",
    "database.history.": UNNEEDED,
    "schema.history.": UNNEEDED,
    "custom.metric.tags": UNNEEDED,
    "retriable.": RETRY,
    "transaction.metadata.factory": "Transaction metadata has Debezium's default form.",
    "sourceinfo.struct.maker": "The source block has Debezium's default form.",
    "connector.thread.name.pattern": UNNEEDED,
    "include.schema.comments": UNNEEDED,
    "query.fetch.size": "See snapshot.chunk.max.bytes.",
    "custom.sanitize.pattern": "Not applied: values of secret keys are never shown.",
    "memory.management.": UNNEEDED,
    "statistics.metrics.enabled": UNNEEDED,
    "event.converting.failure.handling.mode": "A value that cannot be converted holds its table back; see table.failure.policy.",
    "topic.key.": "Only of a naming strategy that is not available: keys get no field.",
    "fail.on.no.tables": "Always on: a config for which no table is found is refused when it is submitted.",
    "advanced.metrics.enable": UNNEEDED,
    "snapshot.mode.configuration.based.": "Only of snapshot.mode=configuration_based, which is not available.",
    "snapshot.query.mode": "A snapshot reads whole tables.",
    "database.query.timeout.ms": "A chunk of rows is small; task.hang.timeout.ms ends a task that makes no step.",
}

ACCEPTED: Final[dict[str, str]] = {**_CONNECT, **_DEBEZIUM}
"""Names that any source accepts without effect, with a note for who uses them."""


def _never(reason: str) -> Validator:
    def check(value: Any) -> str | None:
        return f"is not available: {reason}" if value else None

    return check


def refused(name: str, reason: str) -> ConfigKey:
    """A key that no configuration may set, since its effect would be missed."""
    return ConfigKey(
        name, validator=_never(reason), importance="LOW", group="Not available", doc=f"Not available: {reason}."
    )


_NAMING = ("io.debezium.schema.SchemaTopicNamingStrategy", "io.debezium.schema.DefaultTopicNamingStrategy")


def _only(choices: tuple[str, ...], reason: str) -> Validator:
    def check(value: Any) -> str | None:
        return None if value in choices else f"is not available with this value: {reason}"

    return check


def default_only_keys() -> Iterable[ConfigKey]:
    """Keys that are accepted with Debezium's default. Any other value is refused when a config is submitted, since its effect
    would be missed; a connector that runs with one goes on."""
    group = "Not available"
    yield ConfigKey(
        "topic.naming.strategy", default=_NAMING[0], importance="LOW", group=group, has_effect=False,
        validator=_only(_NAMING, "topics are topic.prefix.schema.table; a RegexRouter gives them other names"),
        doc="Only Debezium's default: topic.prefix.schema.table. A RegexRouter gives topics other names.",
    )  # fmt: skip
    yield ConfigKey(
        "topic.delimiter", default=".", importance="LOW", group=group, has_effect=False,
        validator=_only((".",), "the parts of a topic's name are joined by a dot; a RegexRouter gives topics other names"),
        doc="Only a dot. A RegexRouter gives topics other names.",
    )  # fmt: skip
    yield ConfigKey(
        "table.ignore.builtin", "BOOLEAN", True, importance="LOW", group=group, has_effect=False,
        validator=lambda value: None if value else "is not available with this value: the server's own tables are not captured",
        doc="Only true: the server's own tables are not captured.",
    )  # fmt: skip
    yield ConfigKey(
        "guardrail.collections.max", "INT", 0, importance="LOW", group=group, has_effect=False,
        validator=lambda value: None if value == 0 else "is not available with this value: memory does not grow with the "
        "number of tables; choose tables with table.include.list",
        doc="Only 0, no bound: memory does not grow with the number of tables.",
    )  # fmt: skip
    yield ConfigKey(
        "event.processing.failure.handling.mode", default="fail", importance="LOW", group=group, has_effect=False, recommended=("fail",),
        note="A change that cannot be handed on holds its table back; see table.failure.policy.",
        validator=_only(("fail",), "no change is skipped; table.failure.policy holds its table back, or halts the task"),
        doc="Only fail: a change that cannot be handed on is never skipped. It holds its table back, or halts the task with "
        "table.failure.policy=halt.",
    )  # fmt: skip
    for name, of in (
        ("snapshot.mode", "snapshots"),
        ("snapshot.locking.mode", "locks"),
        ("snapshot.query.mode", "queries"),
    ):
        yield refused(f"{name}.custom.name", f"{of} of one's own are not called")


TOLERANCE = ConfigKey(
    "errors.tolerance",
    default="none",
    validator=one_of("none"),
    group="Error handling",
    doc="A record that cannot be handled holds its table back, or halts (table.failure.policy); there are no dead letters.",
)


def refused_keys(names: Iterable[str] = ("schema", "table", "column")) -> Iterable[ConfigKey]:
    """Keys that any source refuses. `names` are those of the include and exclude lists."""
    for name in names:
        for old, new in (("whitelist", "include"), ("blacklist", "exclude")):
            yield refused(f"{name}.{old}", f"its name is {name}.{new}.list")
    for name in ("topic.regex", "topic.replacement"):
        yield refused(name, "a RegexRouter among the transforms gives topics other names")
    yield refused("converters", "custom converters are not applied")
    yield refused("post.processors", "post-processors are not applied")
    yield refused("snapshot.select.statement.overrides", "a snapshot reads whole tables")


FORMER_PREFIX: Final = "database.server.name"
"""What topic.prefix was called before Debezium 2."""


def renamed(config: Mapping[str, str]) -> dict[str, str]:
    """Returns the config with the present name beside each former one: whoever reads a task's config looks for that."""
    former = config.get(FORMER_PREFIX)
    return dict(config) if former is None else {"topic.prefix": former, **config}
