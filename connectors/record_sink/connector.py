"""What every sink of records shares as a connector: how it is split and run, its offsets, its lag. A target adds its keys and
its class."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

from cdcworker.connectors.api.abilities import StandingTask
from cdcworker.connectors.api.context import CheckFinding, Config, TaskContext
from cdcworker.connectors.api.opened import Checks, Closes
from cdcworker.connectors.api.record_target import RecordBatch, RecordTarget, TargetPlace
from cdcworker.connectors.api.sink import DeadLetterFilter, LedgerAccess, SinkOffsets, SinkSpec
from cdcworker.connectors.config.definition import ConfigDef
from cdcworker.connectors.record_sink.config import BATCH_DEFAULT, LETTERS, EngineSettings, settings_of
from cdcworker.connectors.record_sink.errors import LETTERS_ELSEWHERE
from cdcworker.connectors.sink_engine.kafka.written_tables import group_of
from cdcworker.schemas.errors import CdcError

if TYPE_CHECKING:
    from cdcworker.connectors.record_sink.converters import RecordReader, SharedSchemas
    from cdcworker.connectors.record_sink.group_offsets import GroupClients
    from cdcworker.connectors.record_sink.lane import Lane, LaneParts
    from cdcworker.connectors.record_sink.ownership import Ownership
    from cdcworker.connectors.record_sink.progress import Progress
    from cdcworker.connectors.record_sink.redrive import RedriveParts
    from cdcworker.connectors.record_sink.task import RecordSinkTask, TaskParts

READ_AHEAD_KBYTES: Final = 1_024
"""What the client reads ahead of the lanes. It counts no more than keys and values, of which a small one takes four times its size."""


REDRIVE_WRITE_S: Final = 30.0
"""How long a write may take that a request waits for."""


class Nowhere:
    """A target that writes nothing, for a trial."""

    def write(self, batch: RecordBatch) -> None:
        del batch


class RecordSink:
    """A sink whose target takes records. A subclass names the definition of its keys and makes its target."""

    config_def: ClassVar[ConfigDef]

    def __init__(self, config: Config) -> None:
        self._config = dict(config)

    def open_target(self, place: TargetPlace) -> RecordTarget:
        """Returns a new target. Raises CdcError."""
        raise NotImplementedError

    def batch_default(self, config: Mapping[str, Any]) -> int:
        """Returns the most records of a batch where the config does not say."""
        del config
        return BATCH_DEFAULT

    def engine(self, config: Mapping[str, Any], settings: EngineSettings) -> EngineSettings:
        """Returns what the engine is told, for a target whose own keys say what a batch is."""
        del config
        return settings

    def reader(self, config: Config, schemas: SharedSchemas) -> RecordReader:
        """Returns what reads records, for a target that takes their bytes as they are."""
        from cdcworker.connectors.record_sink.converters import converted

        return converted(config, schemas)

    # As a connector

    def split(self, tasks_max: int, topics: Sequence[str]) -> Sequence[Config]:
        """Deals the topics out to the tasks."""
        parsed = self.config_def.parse(self._config)
        named = parsed["topics"]
        names = sorted(set(named)) if named else [name for name in topics if not name.startswith("__")]
        names = [name for name in names if name != parsed[LETTERS]]
        count = min(tasks_max, len(names))
        # The share is laid over the connector's config, where the pattern still stands.
        return [{**self._config, "topics": ",".join(names[n::count]), "topics.regex": ""} for n in range(count)]

    def run(self, spec: SinkSpec, context: TaskContext) -> None:
        task, schemas = self._task(spec, context)
        try:
            task.run()
        finally:
            schemas.close()

    def check(self) -> Sequence[CheckFinding]:
        config = self.config_def.parse(self._config)
        target = self.open_target(self._place(config, (), ""))
        try:
            return target.check() if isinstance(target, Checks) else []
        finally:
            if isinstance(target, Closes):
                target.close()

    def written_topics(self) -> Sequence[str]:
        """The topic of dead letters."""
        topic = self.config_def.parse(self._config)[LETTERS]
        return [topic] if topic else []

    def offsets(self, place: LedgerAccess) -> SinkOffsets:
        from cdcworker.connectors.record_sink import group_offsets

        clients = self._clients(place.kafka, place.connector)
        with contextlib.closing(clients.open_consumer()) as consumer:
            found = group_offsets.committed(consumer, self._partitions(place))
        return {part: one.offset for part, one in found.items()}

    def alter_offsets(self, place: LedgerAccess, changes: SinkOffsets | None) -> None:
        """What the target has taken stays; read again, it is written again, with the same ids."""
        from cdcworker.connectors.record_sink.group_offsets import GroupOffsets, Owner
        from cdcworker.connectors.sink_engine.kafka.brokers import SinkBrokers

        brokers = SinkBrokers(place.kafka)
        # What a pattern matches may be closed to the connector: only what it has read is altered, and shown.
        there = self.offsets(place)
        firsts = brokers.firsts(sorted({*there, *(changes or ())}))
        wanted = firsts if changes is None else {k: firsts[k] if v is None else v for k, v in changes.items()}
        owner = Owner(place.epoch, f"{group_of(place.connector)}:offsets")
        with contextlib.closing(
            GroupOffsets(self._clients(place.kafka, place.connector), owner, brokers.firsts)
        ) as group:
            group.take_over(sorted({*there, *wanted}))
            if wanted:
                group.commit(wanted, ())

    def trace(self, place: LedgerAccess, change: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"next_offset": self.offsets(place).get((change["topic"], change["partition"]))}

    def measure_lag(self, task: StandingTask) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        """What Kafka holds behind the offsets that the task has last reported, or else behind those of the group."""
        from cdcworker.connectors.sink_engine.kafka.standing_lag import measure, reported_offsets

        place = LedgerAccess(task.connector, kafka=task.kafka)
        known = reported_offsets(task.numbers) or {
            part: at for part, at in self.offsets(place).items() if at is not None
        }
        return measure(task, known, self.config_def.parse(self._config)["topics"])

    def redrives_by(self, config: Mapping[str, Any]) -> Literal["record", "row", "letter", ""]:
        """Returns by which place the target knows a record that is sent again: its own; its own, by which it also tells older rows from
        newer ones; or that of its letter, for a target that keeps offsets and takes no earlier one. Empty: it cannot be sent again."""
        del config
        return "record"

    def dead_letters(self, place: LedgerAccess, asked: DeadLetterFilter) -> Mapping[str, Any]:
        """Returns how many letters are in the topic of dead letters that are not done with, and those that are wanted."""
        from cdcworker.connectors.record_sink.redrive import listed

        with self._letters(place, asked) as parts:
            return listed(parts, asked)

    def redrive(self, place: LedgerAccess, asked: DeadLetterFilter) -> Mapping[str, Any]:
        """Sends letters the way that their records came. The sink may run meanwhile."""
        from cdcworker.connectors.record_sink.redrive import redriven

        if asked.topic:
            raise CdcError(LETTERS_ELSEWHERE, "letters of a topic are sent again in their order: all of them, or none")
        if not self.redrives_by(self.config_def.parse(self._config)):
            raise CdcError(LETTERS_ELSEWHERE, "this connector cannot send letters again")
        with self._letters(place, asked) as parts:
            return redriven(parts, asked)

    # Parts

    @contextlib.contextmanager
    def _letters(self, place: LedgerAccess, asked: DeadLetterFilter) -> Iterator[RedriveParts]:
        """What a request about letters works with. CdcError."""
        from cdcworker.connectors.record_sink.converters import SharedSchemas
        from cdcworker.connectors.record_sink.lane import Lane
        from cdcworker.connectors.record_sink.redrive import RedriveParts
        from cdcworker.connectors.sink_engine.kafka.brokers import SinkBrokers
        from cdcworker.connectors.topic_reader import SchemaReader

        config = self.config_def.parse(self._config)
        topic = config[LETTERS]
        if not topic:
            raise CdcError(LETTERS_ELSEWHERE, "the config names no topic of dead letters")
        clients = replace(self._clients(asked.kafka, place.connector), letters_topic=topic)
        clients = replace(clients, consumer={**clients.consumer, "group.id": clients.group})
        schemas = SchemaReader({**clients.consumer, "enable.auto.commit": False}, asked.schema_topic)

        def open_lane(ownership: Ownership, progress: Progress, dry_run: bool) -> Lane:
            writes = self._place(config, place.file_roots, "")
            parts = self._redrive_lane(place.connector, config, SharedSchemas(schemas), ownership, progress)
            target = Nowhere() if dry_run else self.open_target(replace(writes, connector=place.connector))
            return Lane(0, parts._replace(target=target))

        try:
            by = self.redrives_by(config)
            yield RedriveParts(place.connector, topic, SinkBrokers(asked.kafka), clients, open_lane, by)
        finally:
            schemas.close()

    def _redrive_lane(
        self,
        connector: str,
        config: Mapping[str, Any],
        schemas: SharedSchemas,
        ownership: Ownership,
        progress: Progress,
    ) -> LaneParts:
        from cdcworker.connectors.record_sink.lane import LaneParts
        from cdcworker.connectors.record_sink.redrive import RedrivenForm
        from cdcworker.connectors.record_sink.unwrap import Unwrap, options_of
        from cdcworker.connectors.transform_chain.config import whole_chain_of

        given = self._config
        settings = self.engine(config, settings_of(config, self.batch_default(config)))
        # A letter that fails again is one more letter, however many do.
        timeout_s = min(settings.target_timeout_s, REDRIVE_WRITE_S)
        settings = replace(
            settings, tolerant=True, refused_in_row_max=0, logs_refused=False, target_timeout_s=timeout_s
        )
        settings = replace(settings, linger_s=0.0, idle_s=0.0)
        return LaneParts(
            Nowhere(),
            self.reader(given, schemas),
            whole_chain_of(given, lambda at: Unwrap(options_of(given, at))),
            settings,
            RedrivenForm(connector, 0, True, self._class_name),
            ownership,
            progress,
        )

    @property
    def _class_name(self) -> str:
        return f"{type(self).__module__}.{type(self).__qualname__}"

    def _task(self, spec: SinkSpec, context: TaskContext) -> tuple[RecordSinkTask, Any]:
        from cdcworker.connectors.record_sink.dead_letters import ensure_topic
        from cdcworker.connectors.record_sink.task import RecordSinkTask
        from cdcworker.connectors.sink_engine.kafka.brokers import client_settings
        from cdcworker.connectors.topic_reader import SchemaReader

        config = self.config_def.parse(spec.config)
        settings = self.engine(config, settings_of(config, self.batch_default(config)))
        if settings.letters_topic and settings.tolerant:
            ensure_topic(client_settings(spec.kafka), settings.letters_topic, settings.replication_factor)
        schemas = SchemaReader(spec.consumer, spec.schema_topic)
        try:
            place = self._place(config, context.file_roots, spec.state_dir)
            place = replace(
                place, connector=spec.connector, epoch=spec.epoch, kafka=spec.kafka, writer=spec.transactional_id
            )
            parts = self._parts(spec, settings, place, schemas)
            return RecordSinkTask(spec.topics, parts, context), schemas
        except BaseException:
            schemas.close()
            raise

    def _parts(self, spec: SinkSpec, settings: EngineSettings, place: TargetPlace, schemas: Any) -> TaskParts:
        from cdcworker.connectors.record_sink.converters import SharedSchemas
        from cdcworker.connectors.record_sink.group_offsets import GroupClients, GroupOffsets, Owner
        from cdcworker.connectors.record_sink.lane import Lane
        from cdcworker.connectors.record_sink.task import TaskParts
        from cdcworker.connectors.sink_engine.kafka.brokers import SinkBrokers
        from cdcworker.connectors.sink_engine.kafka.lag import SinkLag
        from cdcworker.connectors.topic_reader import TopicReader

        brokers, shared = SinkBrokers(spec.kafka), SharedSchemas(schemas)
        clients = GroupClients(spec.consumer, spec.producer, group_of(spec.connector), settings.letters_topic)
        group = GroupOffsets(clients, Owner(spec.epoch, spec.transactional_id), brokers.firsts)

        def renew_letters() -> None:
            from cdcworker.connectors.record_sink.letter_offsets import renew

            # One task does it for all.
            if settings.letters_topic and spec.task == 0:
                renew(clients, brokers, settings.letters_topic)

        def open_lane(number: int, ownership: Ownership, progress: Progress) -> Lane:
            return Lane(number, self._lane_parts(spec, settings, place, shared, ownership, progress))

        return TaskParts(
            settings,
            brokers,
            group,
            lambda offsets: TopicReader(
                {**spec.consumer, "queued.max.messages.kbytes": READ_AHEAD_KBYTES},
                spec.topics,
                offsets,
                reports_ends=True,
            ),
            open_lane,
            SinkLag(brokers.begin_ends),
            renew_letters,
        )

    def _lane_parts(
        self,
        spec: SinkSpec,
        settings: EngineSettings,
        place: TargetPlace,
        schemas: SharedSchemas,
        ownership: Ownership,
        progress: Progress,
    ) -> LaneParts:
        from cdcworker.connectors.record_sink.dead_letters import LetterForm
        from cdcworker.connectors.record_sink.lane import LaneParts
        from cdcworker.connectors.record_sink.unwrap import Unwrap, options_of
        from cdcworker.connectors.transform_chain.config import whole_chain_of

        given = spec.config
        return LaneParts(
            self.open_target(place),
            self.reader(given, schemas),
            whole_chain_of(given, lambda at: Unwrap(options_of(given, at))),
            settings,
            LetterForm(spec.connector, spec.task, settings.letter_headers, self._class_name),
            ownership,
            progress,
        )

    def _place(self, config: Mapping[str, Any], roots: Sequence[str], state_dir: str) -> TargetPlace:
        return TargetPlace(config, self._config.get("connector.class", "").strip(), roots, state_dir)

    def _clients(self, kafka: Mapping[str, str], connector: str) -> GroupClients:
        from cdcworker.connectors.record_sink.group_offsets import GroupClients
        from cdcworker.connectors.sink_engine.kafka.brokers import client_settings

        shared = client_settings(kafka)
        consumer = {**shared, "isolation.level": "read_committed"}
        return GroupClients(consumer, {**shared, "transaction.timeout.ms": 30_000, "log_level": 2}, group_of(connector))

    def _partitions(self, place: LedgerAccess) -> list[tuple[str, int]]:
        """Returns the partitions of the topics of which something is committed, or that the config names."""
        from cdcworker.connectors.sink_engine.kafka.brokers import SinkBrokers
        from cdcworker.schemas import patterns

        parsed = self.config_def.parse(self._config)
        brokers = SinkBrokers(place.kafka)
        names = parsed["topics"] or [
            name
            for name in brokers.all_topics()
            if name != parsed[LETTERS] and patterns.matches(parsed["topics.regex"], name)
        ]
        return [(topic, n) for topic, count in brokers.partitions(sorted(names)).items() for n in range(count)]
