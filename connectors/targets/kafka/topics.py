"""Makes topics of the target cluster like those of the source: as many partitions, the same settings; and the ledger's."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from cdcworker.connectors.sink_engine.kafka.brokers import SinkBrokers, client_settings
from cdcworker.connectors.targets.kafka.errors import ANSWER_S, LEDGER_UNFIT, answer_of, error_of
from cdcworker.connectors.targets.kafka.ledger import SETTINGS
from cdcworker.connectors.targets.kafka.naming import TopicNames
from cdcworker.schemas import patterns
from cdcworker.schemas.errors import CdcError
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    NewTopic,
    ResourceType,
)

log = logging.getLogger(__name__)


class CopiedTopics:
    """The topics of one task on the target cluster."""

    def __init__(
        self, source: Mapping[str, str], target: AdminClient, config: Mapping[str, Any], names: TopicNames
    ) -> None:
        """`source`: client properties of the cluster that is read."""
        self._source = AdminClient({**client_settings(source), "log_level": 3})
        self._brokers = SinkBrokers(source)
        self._target = target
        self._config = config
        self._names = names
        self._counts: dict[str, int] = {}
        """Partitions of topics of the source that are there on the target."""

    def prepare(self, topic: str, partition: int) -> bool:
        """Makes the copy of a topic, or makes it grow, so that it has a partition; returns whether there was something to do. Raises
        CdcError."""
        if self._counts.get(topic, 0) > partition:
            return False
        wanted = max(self._brokers.partitions([topic]).get(topic, 0), partition + 1)
        copy = self._names.on_target(topic)
        try:
            found = self._target.list_topics(timeout=ANSWER_S).topics.get(copy)
            if found is None:
                self._create(copy, wanted, self._settings(topic))
            else:
                if len(found.partitions) < wanted:
                    self._grow(copy, wanted)
                if topic not in self._counts:
                    self._alter(copy, self._settings(topic))
        except KafkaException as exc:
            raise error_of(exc.args[0], "a topic of the target cluster cannot be made", topic=copy) from exc
        self._counts[topic] = wanted
        return True

    def prepare_ledger(self, topic: str) -> None:
        """Makes the ledger's topic where it is not there. CdcError where one that is there loses records."""
        if self.make(topic, 1, SETTINGS):
            return
        try:
            policy = self._described(self._target, topic).get("cleanup.policy")
        except KafkaException as exc:
            raise error_of(exc.args[0], "the ledger's topic is not told", topic=topic) from exc
        if policy is not None and policy.value != "compact":
            raise CdcError(LEDGER_UNFIT, f"its cleanup.policy is {policy.value}", where={"topic": topic})

    def make(self, topic: str, partitions: int, settings: Mapping[str, str]) -> bool:
        """Makes a topic of the target cluster where it is not there; returns whether it was not. Raises CdcError."""
        try:
            if topic in self._target.list_topics(timeout=ANSWER_S).topics:
                return False
            self._create(topic, partitions, settings)
        except KafkaException as exc:
            raise error_of(exc.args[0], "a topic of the target cluster cannot be made", topic=topic) from exc
        return True

    def _create(self, name: str, partitions: int, settings: Mapping[str, str]) -> None:
        made = NewTopic(name, partitions, self._config["replication.factor"], config=dict(settings))
        try:
            answer_of(self._target.create_topics([made], operation_timeout=ANSWER_S)[name])
        except KafkaException as exc:
            if exc.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise
        log.info("topic is made on the target cluster topic=%s partitions=%d", name, partitions)

    def _grow(self, name: str, partitions: int) -> None:
        grown = self._target.create_partitions([NewPartitions(name, partitions)], operation_timeout=ANSWER_S)
        answer_of(grown[name])
        log.info("topic gets more partitions on the target cluster topic=%s partitions=%d", name, partitions)

    def _settings(self, topic: str) -> dict[str, str]:
        """Returns the settings that a copy of a topic has. Those that may not be read are left out."""
        # The time of a copy is that of the record, whoever has set it.
        own = {"message.timestamp.type": "CreateTime"}
        if not self._config["sync.topic.configs.enabled"]:
            return own
        try:
            found = self._described(self._source, topic)
        except KafkaException as exc:
            log.warning("settings of a topic cannot be read topic=%s error=%s", topic, exc.args[0].name())
            return own
        left_out = self._config["config.properties.exclude"]
        return own | {
            name: entry.value
            for name, entry in found.items()
            if entry.source == ConfigSource.DYNAMIC_TOPIC_CONFIG.value
            and entry.value is not None
            and not patterns.matches_any(left_out, name)
        }

    def _alter(self, name: str, wanted: Mapping[str, str]) -> None:
        if not self._config["sync.topic.configs.enabled"]:
            return
        try:
            there = self._described(self._target, name)
            changed = [
                ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
                for key, value in wanted.items()
                if key not in there or there[key].value != value
            ]
            if changed:
                resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=changed)
                for future in self._target.incremental_alter_configs([resource]).values():
                    answer_of(future)
        except KafkaException as exc:
            log.warning("settings of a topic cannot be copied topic=%s error=%s", name, exc.args[0].name())

    def _described(self, admin: AdminClient, topic: str) -> dict[str, Any]:
        (future,) = admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic)]).values()
        found: dict[str, Any] = answer_of(future)
        return found
