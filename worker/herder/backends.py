"""The backends of coordination: Kafka for logs and election, Kafka with ZooKeeper's election, or the memory of this
process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Protocol

from cdcworker.coordinator import memory
from cdcworker.coordinator.api import Leadership, LeaderWriter, TailedLog
from cdcworker.coordinator.kafka.clients import cluster_id, make_admin
from cdcworker.coordinator.kafka.compacted_log import KafkaCompactedLog
from cdcworker.coordinator.kafka.end_offsets import left_open
from cdcworker.coordinator.kafka.errors import translate
from cdcworker.coordinator.kafka.internal_topics import ensure_topics, internal_topics
from cdcworker.coordinator.kafka.leader_writer import KafkaLeaderWriter, fence
from cdcworker.coordinator.kafka.leadership import (
    GroupFlag,
    KafkaLeadership,
    check_group_members,
    flagged_client_id,
    join_delay_s,
    members,
)
from cdcworker.coordinator.kafka.member_removal import remove_member
from cdcworker.coordinator.log.leader_claim import ClusterIdentity
from cdcworker.coordinator.model import Leader
from cdcworker.coordinator.zookeeper.client import ZkSettings
from cdcworker.coordinator.zookeeper.leader_writer import ClaimedWriter
from cdcworker.coordinator.zookeeper.leadership import ZkLeadership
from cdcworker.schemas.errors import CdcError
from cdcworker.worker.herder.config import HerderConfig
from cdcworker.worker.security.topic_rules import access_of

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

CONNECT_S = 10.0
TRANSACTION_S = 10.0
LEASES = b"lease/"


def status_partition(key: str) -> int:
    """Returns the partition of a record in the status log, -1 for any. Presence and leases share partition 0, so that
    an unreachable partition makes either all leases stale or none."""
    return 0 if key.startswith(("worker/", "lease/")) else -1


class ClusterBackend(Protocol):
    """Gives one worker the cluster's logs, the election and the leader's writer. `open` is called first."""

    cluster_id: str
    partitions: Mapping[str, int]
    """The number of partitions of each internal topic."""

    @property
    def identity(self) -> ClusterIdentity:
        """The identity that tells this cluster from others; complete after `open`."""

    def open(self) -> None:
        """Connects to the servers and checks the internal topics. CdcError says why the worker cannot start."""

    def configs(self) -> TailedLog: ...

    def status(self) -> TailedLog: ...

    def join(self) -> Leadership:
        """Takes part in the election."""

    def record_identity(self, identity: ClusterIdentity) -> None:
        """Notes the identity of the cluster to which the config log belongs."""

    def claim(self) -> LeaderWriter:
        """Opens a new writer for the leader, which fences the writer of the leader before. Called on the writer's
        thread."""

    def fence(self, transactional_ids: Sequence[str]) -> Mapping[str, CdcError | None]:
        """Fences the producers of these transactional ids; returns the error of each, None for a fenced one. Called on
        its own thread."""

    def remove_leader(self, leader: Leader) -> None:
        """Ends the leader's place in the election at once, as the end of its session would. CdcError says why that
        cannot be done. Called on its own thread."""

    def topics(self) -> frozenset[str]:
        """Returns the existing topics except those that no connector may read. Called on planning threads."""

    def close(self) -> None:
        """Closes what `open` has opened."""


def make_backend(config: HerderConfig) -> ClusterBackend:
    """Returns the backend that `coordination.backend` names."""
    return _BACKENDS[config.backend](config)


class KafkaBackend:
    """Keeps the logs in compacted topics, elects through a consumer group, and writes the leader's records in
    transactions."""

    def __init__(self, config: HerderConfig) -> None:
        self._config = config
        self._client_id = f"cdcworker-{config.worker_id}"
        self._claims = 0
        self.cluster_id = ""
        self.partitions: Mapping[str, int] = {}

    @property
    def identity(self) -> ClusterIdentity:
        config, names = self._config, self._config.topics
        topics = (names.configs, names.offsets, names.status, names.schemas, names.coordination)
        return ClusterIdentity(self.cluster_id, config.group_id, topics, config.backend)

    def record_identity(self, identity: ClusterIdentity) -> None:
        """Does nothing: the core alone decides by the identity."""

    def close(self) -> None:
        """Does nothing: no connection stays open between calls."""

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
    def _flagged_client_id(self) -> str:
        return flagged_client_id(self._client_id, self.identity.flag)

    def _check_strangers(self) -> Sequence[str]:
        """Refuses a group id that another cluster uses: the two would fence each other's transactional ids for ever."""
        group_id = self._config.group_id
        client_ids = members(self._admin, group_id, CONNECT_S)
        check_group_members(client_ids, group_id, self.identity.flag)
        return client_ids

    def configs(self) -> TailedLog:
        return KafkaCompactedLog(
            self._config.kafka, self._config.topics.configs, client_id=f"{self._client_id}-configs"
        )

    def status(self) -> TailedLog:
        config = self._config
        client_id = f"{self._client_id}-status"
        return KafkaCompactedLog(
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
            client_id=self._flagged_client_id,
            session_timeout_s=config.session_timeout_s,
            join_after_s=join_delay_s(self._members, self._flagged_client_id, config.session_timeout_s),
        )

    def claim(self) -> LeaderWriter:
        return self._claimed_writer(KafkaLeaderWriter)

    def _claimed_writer(self, make: type[KafkaLeaderWriter]) -> LeaderWriter:
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

    def remove_leader(self, leader: Leader) -> None:
        config, client_id = self._config, f"{self._client_id}-removal"
        remove_member(config.kafka, group_id=config.group_id, member_id=leader.member, client_id=client_id)

    def topics(self) -> frozenset[str]:
        from confluent_kafka import KafkaException

        names = self._config.topics
        own = {names.configs, names.offsets, names.status, names.schemas, names.coordination}
        access = access_of(self._config.providers)
        try:
            topics = self._admin.list_topics(timeout=CONNECT_S).topics
        except KafkaException as exc:
            raise translate(exc, "list topics") from exc
        return access.readable(topics.keys()) - own


class ZooKeeperBackend(KafkaBackend):
    """Keeps the logs on Kafka and elects by a lock in ZooKeeper; claims in the log decide who may write."""

    def __init__(self, config: HerderConfig) -> None:
        super().__init__(config)
        self._ensemble = ""
        settings = ZkSettings(config.zookeeper_connect, config.session_timeout_s, config.zookeeper_digest)
        name = self._flagged_client_id
        flag = partial(
            GroupFlag, config.kafka, topic=config.topics.coordination, group_id=config.group_id, client_id=name
        )
        self._leadership = FlaggedZkLeadership(settings, group_id=config.group_id, name=name, open_flag=flag)

    @property
    def identity(self) -> ClusterIdentity:
        return replace(super().identity, ensemble=self._ensemble)

    def open(self) -> None:
        super().open()
        self._ensemble = self._leadership.open(CONNECT_S)
        check_group_members(self._leadership.contenders(), self._config.group_id, self.identity.flag)

    def record_identity(self, identity: ClusterIdentity) -> None:
        self._leadership.record(identity.ensemble)

    def join(self) -> Leadership:
        self._leadership.join()
        return self._leadership

    def claim(self) -> LeaderWriter:
        return self._claimed_writer(ClaimedWriter)

    def remove_leader(self, leader: Leader) -> None:
        self._leadership.remove(leader.member, leader.hint)

    def close(self) -> None:
        self._leadership.close()


class FlaggedZkLeadership(ZkLeadership):
    """Takes part in the election by ZooKeeper and in the consumer group, so that users of Kafka see that the group id
    is in use."""

    def __init__(self, settings: ZkSettings, *, group_id: str, name: str, open_flag: Callable[[], GroupFlag]) -> None:
        """`open_flag` joins the group; called when the election is joined."""
        super().__init__(settings, group_id=group_id, name=name)
        self._open_flag = open_flag
        self._flag: GroupFlag | None = None

    def join(self) -> None:
        self._flag = self._open_flag()
        super().join()

    def tick(self, timeout_s: float) -> None:
        if self._flag is not None:
            self._flag.serve()
        super().tick(timeout_s)

    def close(self) -> None:
        super().close()
        if self._flag is not None:
            self._flag.close()


class MemoryBackend:
    """Keeps everything in this process, shared by the herders of the same group; for tests."""

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
    def identity(self) -> ClusterIdentity:
        return ClusterIdentity(self.cluster_id, self._config.group_id, tuple(self.partitions), "memory")

    def record_identity(self, identity: ClusterIdentity) -> None:
        """Does nothing: a process has one cluster of this name."""

    def close(self) -> None:
        """Does nothing: the cluster goes on without this worker."""

    def open(self) -> None:
        """Does nothing: there is no server."""

    def configs(self) -> TailedLog:
        return memory.MemoryLog(self._cluster.configs)

    def status(self) -> TailedLog:
        return memory.MemoryLog(self._cluster.status)

    def join(self) -> Leadership:
        return memory.MemoryLeadership(self._cluster.group, self._member)

    def claim(self) -> LeaderWriter:
        cluster = self._cluster
        return memory.MemoryLeaderWriter(cluster.configs, cluster.group, cluster.transactions, "leader")

    def fence(self, transactional_ids: Sequence[str]) -> Mapping[str, CdcError | None]:
        for name in transactional_ids:
            self._cluster.transactions.init(name)
        return dict.fromkeys(transactional_ids)

    def remove_leader(self, leader: Leader) -> None:
        with self._cluster.group.lock:
            self._cluster.group.leave(leader.member)

    def topics(self) -> frozenset[str]:
        return frozenset()


_BACKENDS: Mapping[str, Callable[[HerderConfig], ClusterBackend]] = {
    "kafka": KafkaBackend,
    "zookeeper": ZooKeeperBackend,
    "memory": MemoryBackend,
}
