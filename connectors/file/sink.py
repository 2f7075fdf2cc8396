"""The file sink: each record of its topics is a line of one file, once, whatever dies in between."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final

from cdcworker.connectors.api.abilities import StandingTask
from cdcworker.connectors.api.context import CheckFinding, Config, TaskContext
from cdcworker.connectors.api.sink import LedgerAccess, SinkOffsets, SinkSpec
from cdcworker.connectors.config.allowed_paths import allowed_path
from cdcworker.connectors.config.common_keys import ACCEPTED, TASK_KEYS, topic_checks
from cdcworker.connectors.config.definition import ConfigDef, ConfigKey, between, is_regex
from cdcworker.connectors.file.lines import (
    AVRO,
    BYTES,
    JSON,
    STRING,
    UNREADABLE_LINE,
    converter_keys,
    file_key,
    line_decoder,
    plain_json,
)
from cdcworker.connectors.sink_engine.kafka.lag import RecordsRead, SinkLag
from cdcworker.schemas.errors import CdcError

if TYPE_CHECKING:
    from cdcworker.connectors.file.target import FileTarget
    from cdcworker.connectors.topic_reader import SchemaReader, TopicReader
    from confluent_kafka import Message

READ_S: Final = 0.2
REPORT_S: Final = 1.0
NULL: Final = b"null"
"""The line of a record without a value, as Kafka Connect prints it."""
_SOURCE_ONLY: Final = ("topic.creation.", "exactly.once", "transaction.")


def _own_keys() -> Iterable[ConfigKey]:
    yield file_key("The file to write. Beside it a ledger is kept, `.<file>.ledger-*`.")
    yield ConfigKey(
        "topics",
        "LIST",
        [],
        importance="HIGH",
        group="Topics",
        doc="Topics to read; one that does not exist yet is waited for.",
        topics="names",
    )
    yield ConfigKey(
        "topics.regex",
        validator=is_regex,
        importance="HIGH",
        group="Topics",
        doc="A regular expression; every topic whose whole name it matches is read.",
        topics="pattern",
    )
    yield ConfigKey(
        "batch.size", "INT", 2_000, group="File", validator=between(1, 100_000), doc="Most records of one batch."
    )
    yield from converter_keys(STRING, BYTES, JSON, AVRO)


CONFIG_DEF = ConfigDef(
    [*_own_keys(), *TASK_KEYS],
    accepted={
        **{name: note for name, note in ACCEPTED.items() if not name.startswith(_SOURCE_ONLY)},
        "name": "",
        "connector.class": "",
        "tasks.max": "One file is written by one task.",
        "errors.tolerance": "A record that cannot be converted halts the task.",
    },
    always=topic_checks,
)


class FileSink:
    """Lines out."""

    config_def: ClassVar[ConfigDef] = CONFIG_DEF

    def __init__(self, config: Config) -> None:
        self._config = dict(config)

    def split(self, tasks_max: int, topics: Sequence[str]) -> Sequence[Config]:
        """One task, whatever was allowed: two writers would have no common order."""
        del tasks_max
        named = CONFIG_DEF.parse(self._config)["topics"]
        names = sorted(set(named)) if named else [name for name in topics if not name.startswith("__")]
        # The share is laid over the connector's config, where the pattern still stands.
        return [{**self._config, "topics": ",".join(names), "topics.regex": ""}] if names else []

    def run(self, spec: SinkSpec, context: TaskContext) -> None:
        from cdcworker.connectors.file.target import FileTarget
        from cdcworker.connectors.sink_engine.kafka.brokers import SinkBrokers
        from cdcworker.connectors.topic_reader import SchemaReader, TopicReader

        config = CONFIG_DEF.parse(spec.config)
        path = allowed_path(config["file"], context.file_roots)
        target = FileTarget(path, spec.connector, spec.epoch, context.stopping)
        schemas = SchemaReader(spec.consumer, spec.schema_topic)
        lag = SinkLag(SinkBrokers(spec.kafka).begin_ends)
        reader: TopicReader | None = None
        try:
            target.open()
            reader = TopicReader(spec.consumer, spec.topics, target.offsets, reports_ends=True)
            FileSinkTask(reader, target, _decoder(config, schemas), lag, context).run(config["batch.size"])
        finally:
            target.close()
            schemas.close()
            if reader is not None:
                reader.close()

    def offsets(self, place: LedgerAccess) -> SinkOffsets:
        return self._target(place).stored()

    def alter_offsets(self, place: LedgerAccess, changes: SinkOffsets | None) -> None:
        """The lines that are in the file stay: read again, they are written again."""
        target = self._target(place)
        try:
            target.open()
            kept = {} if changes is None else {**target.offsets, **changes}
            target.seek({key: offset for key, offset in kept.items() if offset is not None})
        finally:
            target.close()

    def measure_lag(self, task: StandingTask) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        """What Kafka holds behind the offsets that the task has last reported, or else behind those of the ledger."""
        from cdcworker.connectors.sink_engine.kafka.standing_lag import measure, reported_offsets

        place = LedgerAccess(task.connector, file_roots=task.file_roots)
        offsets = reported_offsets(task.numbers) or dict(self._target(place).stored())
        return measure(task, offsets, CONFIG_DEF.parse(self._config)["topics"])

    def _target(self, place: LedgerAccess) -> FileTarget:
        from cdcworker.connectors.file.target import FileTarget

        path = allowed_path(CONFIG_DEF.parse(self._config)["file"], place.file_roots)
        return FileTarget(path, place.connector, place.epoch)

    def check_files(self, roots: Sequence[str]) -> None:
        allowed_path(CONFIG_DEF.parse(self._config)["file"], roots)

    def check(self) -> Sequence[CheckFinding]:
        return []


def _decoder(config: Mapping[str, Any], schemas: SchemaReader) -> Callable[[bytes], bytes]:
    if config["value.converter"] == AVRO:
        return lambda value: plain_json(schemas.decode(value))
    return line_decoder(config["value.converter"], schemas=config["value.converter.schemas.enable"])


class FileSinkTask:
    """Moves batches until the task is to stop; each is whole in the file, or not there at all."""

    def __init__(
        self,
        reader: TopicReader,
        target: FileTarget,
        decode: Callable[[bytes], bytes],
        lag: SinkLag,
        context: TaskContext,
    ) -> None:
        self._reader = reader
        self._target = target
        self._decode = decode
        self._lag = lag
        self._context = context
        self._records = 0
        self._reported = float("-inf")

    def run(self, batch_size: int) -> None:
        while not self._context.stopping():
            self._context.beat("a batch", 0.0)
            messages = self._reader.read(batch_size, READ_S)
            self._lag.read_records(_summed(messages), self._reader.read_to)
            if messages:
                self._apply(messages)
            self._report()

    def _apply(self, messages: Sequence[Message]) -> None:
        lines, offsets = [], {}
        for message in messages:
            lines.append(self._line(message))
            offsets[message.topic() or "", message.partition() or 0] = (message.offset() or 0) + 1
        self._target.append(b"\n".join(lines) + b"\n", offsets)
        self._records += len(lines)
        self._lag.applied_changes((message.topic() or "", message.timestamp()[1]) for message in messages)

    def _line(self, message: Message) -> bytes:
        value = message.value()
        if value is None:
            return NULL
        try:
            return self._decode(value)
        except (ValueError, CdcError) as exc:
            where = {"topic": message.topic() or "", "partition": message.partition() or 0}
            where |= {"offset": message.offset() or 0}
            if isinstance(exc, CdcError):
                raise CdcError(exc.code, exc.message, where=where) from exc
            text = f"the value does not fit value.converter: {type(exc).__name__}"
            raise CdcError(UNREADABLE_LINE, text, where=where) from None

    def _report(self) -> None:
        now = time.monotonic()
        if now - self._reported < REPORT_S:
            return
        self._reported = now
        self._lag.begin(self._reader.partitions)
        offsets = self._target.offsets
        lag = self._lag.numbers(offsets)
        late = lag.get("topic_lag_s") or {}
        self._context.report(
            {
                "records": self._records,
                "bytes": self._target.length,
                **lag,
                **({"lag_s": max(late.values())} if late else {}),
                "offsets": {f"{topic}-{partition}": offset for (topic, partition), offset in offsets.items()},
            }
        )


def _summed(messages: Sequence[Message]) -> Iterable[RecordsRead]:
    """Returns what was read, by partition."""
    sizes: dict[tuple[str, int], list[int]] = {}
    for message in messages:
        at = message.offset() or 0
        found = sizes.setdefault((message.topic() or "", message.partition() or 0), [at, at, 0, 0])
        found[1:] = [at, found[2] + 1, found[3] + len(message.key() or b"") + len(message)]
    return [RecordsRead(topic, partition, *found) for (topic, partition), found in sizes.items()]
