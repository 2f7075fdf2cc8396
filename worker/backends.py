"""Where a herd keeps its logs and how it elects: on Kafka, with ZooKeeper's election, or in this process's memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

from cdcworker.coordinator import memory
from cdcworker.coordinator.api import Leadership, TailedLog, Writer
from cdcworker.coordinator.claim import Identity
from cdcworker.coordinator.kafka_clients import cluster_id, make_admin
from cdcworker.coordinator.kafka_errors import translate
from cdcworker.coordinator.kafka_group import Flag, KafkaLeadership, check_strangers, flagged, join_delay_s, members
from cdcworker.coordinator.kafka_log import CompactedLog
from cdcworker.coordinator.kafka_offsets import left_open
from cdcworker.coordinator.kafka_topics import ensure_topics, internal_topics
from cdcworker.coordinator.kafka_writer import KafkaWriter, fence
from cdcworker.coordinator.zk_client import ZkSettings
from cdcworker.coordinator.zk_group import ZkLeadership
from cdcworker.coordinator.zk_writer import ClaimedWriter
from cdcworker.schemas.errors import CdcError

if TYPE_CHECKING:
    from cdcworker.worker.herder import HerderConfig
    from confluent_kafka.admin import AdminClient

CONNECT_S = 10.0
TRANSACTION_S = 10.0
LEASES = b"lease/"


def status_partition(key: str) -> int:
    """Presence and leases share partition 0, so that one unreachable partition ages either all leases or none."""
    return 0 if key.startswith(("worker/", "lease/")) else -1


class Backend(Protocol):
    """One worker's way to the logs, the election and the leader's pen. `open` comes first."""

    cluster_id: str
    partitions: Mapping[str, int]
    """Of each internal topic."""

    @property
    def identity(self) -> Identity:
        """What tells this cluster from others; complete after `open`."""

    def open(self) -> None:
        """Reach the servers and check what is there; CdcError that says why the worker cannot start."""

    def configs(self) -> TailedLog: ...

    def status(self) -> TailedLog: ...

    def join(self) -> Leadership:
        """Take part in the election."""

    def recorded(self, identity: Identity) -> None:
        """The config log says that it belongs to this one."""

    def claim(self) -> Writer:
        """A new pen: when it is there, the predecessor's is fenced. Called on the pen's thread."""

    def fence(self, transactional_ids: Sequence[str]) -> Mapping[str, CdcError | None]:
        """Take over each id for a moment. Called on a thread of its own."""

    def topics(self) -> frozenset[str]:
        """Existing topics that are neither the system's own nor the cluster's. Called on planning threads."""

    def close(self) -> None:
        """End what `open` began."""


def make_backend(config: HerderConfig) -> Backend:
    """The one that `coordination.backend` names."""
    return _BACKENDS[config.backend](config)


class KafkaBackend:
    """The logs are compacted topics, the election is a consumer group, the pen is a transaction with its proof."""

    def __init__(self, config: HerderConfig) -> None:
        self._config = config
        self._client_id = f"cdcworker-{config.worker_id}"
        self._claims = 0
        self.cluster_id = ""
        self.partitions: Mapping[str, int] = {}

    @property
    def identity(self) -> Identity:
        config, names = self._config, self._config.topics
        topics = (names.configs, names.offsets, names.status, names.schemas, names.coordination)
        return Identity(self.cluster_id, config.group_id, topics, config.backend)

    def recorded(self, identity: Identity) -> None:
        """The core alone decides by it."""

    def close(self) -> None:
        """Nothing is held between calls."""

    def open(self) -> None:
        config = self._config
        self.cluster_id = cluster_id(config.kafka, client_id=self._client_id, timeout_s=CONNECT_S)
        specs = internal_topics(
            config.topics, offsets_partitions=config.offsets_partitions, status_partitions=config.status_partitions
        )
        self.partitions = ensure_topics(
            config.kafka, specs, client_id=self._client_id, replication_factor=config.replication_factor
        )
        self._members = self._check_strangers()

    @cached_property
    def _admin(self) -> AdminClient:
        return make_admin(self._config.kafka, client_id=f"{self._client_id}-admin")

    @property
    def _flagged(self) -> str:
        return flagged(self._client_id, self.identity.flag)

    def _check_strangers(self) -> Sequence[str]:
        """Another cluster under our group id has our transactional ids too: the two would fence each other for ever."""
        group_id = self._config.group_id
        found = members(self._admin, group_id, CONNECT_S)
        check_strangers(found, group_id, self.identity.flag)
        return found

    def configs(self) -> TailedLog:
        return CompactedLog(self._config.kafka, self._config.topics.configs, client_id=f"{self._client_id}-configs")

    def status(self) -> TailedLog:
        config = self._config
        client_id = f"{self._client_id}-status"
        return CompactedLog(
            config.kafka,
            config.topics.status,
            client_id=client_id,
            partition_of=status_partition,
            counters=LEASES,
        )

    def join(self) -> Leadership:
        config = self._config
        return KafkaLeadership(
            config.kafka,
            topic=config.topics.coordination,
            group_id=config.group_id,
            client_id=self._flagged,
            session_timeout_s=config.session_timeout_s,
            join_after_s=join_delay_s(self._members, self._flagged, config.session_timeout_s),
        )

    def claim(self) -> Writer:
        return self._pen(KafkaWriter)

    def _pen(self, make: type[KafkaWriter]) -> Writer:
        config = self._config
        self._claims += 1
        if self._claims > 1:
            # Two clusters that started at the same moment did not see each other: each fences the other's leader.
            self._check_strangers()
        writer = make(
            config.kafka,
            group_id=config.group_id,
            topic=config.topics.configs,
            coordination_topic=config.topics.coordination,
            client_id=f"{self._client_id}-leader",
            timeout_s=TRANSACTION_S,
        )
        # Of the id that is held now: nobody else will end it, and nobody has read what is in it.
        try:
            writer.void(left_open(self._admin, [(config.topics.configs, 0)], CONNECT_S))
        except BaseException:
            writer.close()
            raise
        return writer

    def fence(self, transactional_ids: Sequence[str]) -> Mapping[str, CdcError | None]:
        return fence(self._config.kafka, transactional_ids, client_id=f"{self._client_id}-fence")

    def topics(self) -> frozenset[str]:
        from confluent_kafka import KafkaException

        names = self._config.topics
        own = {names.configs, names.offsets, names.status, names.schemas, names.coordination}
        try:
            found = self._admin.list_topics(timeout=CONNECT_S).topics
        except KafkaException as exc:
            raise translate(exc, "list topics") from exc
        return frozenset(name for name in found if not name.startswith("__") and name not in own)


class ZooKeeperBackend(KafkaBackend):
    """Logs and pen on Kafka, the election by a lock: who may write is settled by claims in the log."""

    def __init__(self, config: HerderConfig) -> None:
        super().__init__(config)
        self._ensemble = ""
        settings = ZkSettings(config.zookeeper_connect, config.session_timeout_s, config.zookeeper_digest)
        self._leadership = FlaggedLock(settings, group_id=config.group_id, name=self._flagged)

    @property
    def identity(self) -> Identity:
        return replace(super().identity, ensemble=self._ensemble)

    def open(self) -> None:
        super().open()
        self._ensemble = self._leadership.open(CONNECT_S)
        check_strangers(self._leadership.contenders(), self._config.group_id, self.identity.flag)

    def recorded(self, identity: Identity) -> None:
        self._leadership.recorded = identity.ensemble

    def join(self) -> Leadership:
        config = self._config
        self._leadership.flag = Flag(
            config.kafka, topic=config.topics.coordination, group_id=config.group_id, client_id=self._flagged
        )
        self._leadership.join()
        return self._leadership

    def claim(self) -> Writer:
        return self._pen(ClaimedWriter)

    def close(self) -> None:
        self._leadership.close()


class FlaggedLock(ZkLeadership):
    """A contender for the lock that also shows itself in the group: Kafka's users must see that the id is taken."""

    flag: Flag | None = None

    def tick(self, timeout_s: float) -> None:
        if self.flag is not None:
            self.flag.serve()
        super().tick(timeout_s)

    def close(self) -> None:
        super().close()
        if self.flag is not None:
            self.flag.close()


class MemoryBackend:
    """Everything in this process, shared by the herders that name the same group; for tests. Nothing survives it."""

    def __init__(self, config: HerderConfig) -> None:
        self._config = config
        self._cluster = memory.cluster(config.group_id, config.session_timeout_s)
        self._member = f"{config.worker_id}-{memory.next_member()}"
        self.cluster_id = f"memory-{config.group_id}"
        names = config.topics
        self.partitions: Mapping[str, int] = {
            names.configs: 1,
            names.status: 1,
            names.schemas: 1,
            names.offsets: config.offsets_partitions,
        }

    @property
    def identity(self) -> Identity:
        return Identity(self.cluster_id, self._config.group_id, tuple(self.partitions), "memory")

    def recorded(self, identity: Identity) -> None:
        """There is no other."""

    def close(self) -> None:
        """The cluster goes on without us."""

    def open(self) -> None:
        """There is nothing to reach."""

    def configs(self) -> TailedLog:
        return memory.MemoryLog(self._cluster.configs)

    def status(self) -> TailedLog:
        return memory.MemoryLog(self._cluster.status)

    def join(self) -> Leadership:
        return memory.MemoryLeadership(self._cluster.group, self._member)

    def claim(self) -> Writer:
        cluster = self._cluster
        return memory.MemoryWriter(cluster.configs, cluster.group, cluster.transactions, "leader")

    def fence(self, transactional_ids: Sequence[str]) -> Mapping[str, CdcError | None]:
        for name in transactional_ids:
            self._cluster.transactions.init(name)
        return dict.fromkeys(transactional_ids)

    def topics(self) -> frozenset[str]:
        return frozenset()


_BACKENDS: Mapping[str, Callable[[HerderConfig], Backend]] = {
    "kafka": KafkaBackend,
    "zookeeper": ZooKeeperBackend,
    "memory": MemoryBackend,
}
