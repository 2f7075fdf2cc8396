"""Leadership by a Kafka consumer group: the owner of partition 0 of the coordination topic is elected."""

from __future__ import annotations

import contextlib
import logging
import re
import struct
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from cdcworker.coordinator.api import Term
from cdcworker.coordinator.errors import OTHER_CLUSTER
from cdcworker.coordinator.kafka import errors as e
from cdcworker.coordinator.kafka.client_shutdown import leave_group
from cdcworker.coordinator.kafka.clients import make_consumer, member_config
from cdcworker.schemas.errors import CdcError
from cdcworker.schemas.untrusted.refusals import REFUSALS
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

log = logging.getLogger(__name__)

_MAGIC = b"CGMDv2:"
_ELECTING_PARTITION = 0
REJOIN_AFTER_S = 2.0
"""A member that owns the partition but has no term rejoins the group after this time."""
_FLAG_SESSION_S = 10.0
_ASK_AGAIN_S = 0.2


def parse_metadata(metadata: bytes) -> tuple[int, str]:
    """Returns generation and member id of librdkafka's group metadata; raises ValueError for an unknown form."""
    if not metadata.startswith(_MAGIC) or len(metadata) < len(_MAGIC) + 4:
        raise ValueError("group metadata of an unknown form")
    (generation,) = struct.unpack_from("<i", metadata, len(_MAGIC))
    parts = metadata[len(_MAGIC) + 4 :].split(b"\0")
    if len(parts) < 2:
        raise ValueError("group metadata without a member")
    return generation, parts[1].decode()


def proof_of(metadata: bytes) -> Term:
    """Returns a term with this group metadata as its proof.

    Raises ValueError for metadata without a member (generation −1, or no member id): the broker accepts such a
    transaction without any check, so it would prove nothing (INV-6).
    """
    generation, member = parse_metadata(metadata)
    if generation < 0 or not member:
        raise ValueError("group metadata of a consumer that has not joined")
    return Term(proof=metadata, hint=generation, member=member)


class GroupFlag:
    """A group member without partitions, for clusters that elect by ZooKeeper: its client id shows who uses the group
    id."""

    def __init__(self, properties: Mapping[str, str], *, topic: str, group_id: str, client_id: str) -> None:
        config = member_config(properties, client_id=client_id, group_id=group_id, session_timeout_s=_FLAG_SESSION_S)
        self._consumer: Any = make_consumer(config)
        self._consumer.subscribe([topic])

    def serve(self) -> None:
        """Serves the group protocol. Errors are left to the client: nothing depends on this member."""
        if self._consumer is not None:
            with contextlib.suppress(KafkaException, RuntimeError):
                self._consumer.poll(0)

    def close(self) -> None:
        """Leaves the group."""
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            leave_group(consumer, "flag in the group")


_FLAG = re.compile(r"cdcworker-(?P<worker>.*)-cluster\.(?P<flag>[0-9a-f]{12})")


def flagged_client_id(client_id: str, flag: str) -> str:
    """Returns the client id under which a worker joins its group; it carries the identity `flag` of its cluster."""
    return f"{client_id}-cluster.{flag}"


def check_group_members(names: Iterable[str], group_id: str, flag: str) -> None:
    """Raises CdcError `coordinator.other_cluster` for a group member that is no worker, or a worker of another
    cluster."""
    for name in names:
        match = _FLAG.fullmatch(name)
        # A worker of an older version has no flag: it may belong to this cluster.
        if (match and match["flag"] == flag) or (not match and name.startswith("cdcworker-")):
            continue
        who = f"worker {match['worker']} with other topics or another backend" if match else f"client {name!r}"
        raise CdcError(
            OTHER_CLUSTER,
            f"the group id is in use by {who}",
            where={"group.id": group_id},
            hint="Give this cluster a group.id of its own, or end what uses the id first.",
        )


def members(admin: AdminClient, group_id: str, timeout_s: float) -> list[str]:
    """Returns the client ids of the group's live members; none when ACLs forbid it or no broker answers.

    It uses the deprecated call: the newer ones abort the whole process when the group coordinator goes away meanwhile
    (librdkafka issue 4605).
    """
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            groups = admin.list_groups(group_id, timeout=max(0.1, deadline - time.monotonic()))
            return [str(member.client_id) for group in groups for member in group.members]
        except KafkaException as exc:
            error = e.kafka_error(exc)
        # The group coordinator may be moving to another broker, or starting.
        if e.code_of(error) not in (e.TRANSIENT, e.TIMEOUT) or time.monotonic() + _ASK_AGAIN_S >= deadline:
            log.warning("members of the group not checked group=%s error=%s", group_id, error.name())
            return []
        time.sleep(_ASK_AGAIN_S)


def join_delay_s(members: Sequence[str], client_id: str, session_timeout_s: float) -> float:
    """Returns how many seconds a new process waits before it joins the group, if a killed process of its name is a
    member.

    A join starts a rebalance, which waits for all members and so for the end of the dead one's session; a leader killed
    meanwhile would keep its term for another whole session. Without other members nobody leads, and joining at once is
    faster.
    """
    return session_timeout_s if client_id in members and any(name != client_id for name in members) else 0.0


class KafkaLeadership:
    """A member of the classic group protocol. It belongs to one thread; callbacks run inside `tick` and `close`
    only."""

    def __init__(
        self,
        properties: Mapping[str, str],
        *,
        topic: str,
        group_id: str,
        client_id: str,
        session_timeout_s: float = 10.0,
        join_after_s: float = 0.0,
    ) -> None:
        self._topic = topic
        self._term: Term | None = None
        self._owner = False
        self._closed = False
        config = member_config(properties, client_id=client_id, group_id=group_id, session_timeout_s=session_timeout_s)
        self._consumer = make_consumer(config)
        self._rejoin_at: float | None = None
        if join_after_s > 0.0:
            self._rejoin_at = time.monotonic() + join_after_s
        else:
            self._subscribe()

    def _subscribe(self) -> None:
        self._consumer.subscribe(
            [self._topic], on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost
        )

    def tick(self, timeout_s: float) -> None:
        """Serves the group protocol; waits at most `timeout_s`. All callbacks run inside this call."""
        if self._closed:
            return
        try:
            if self._rejoin_at is not None and time.monotonic() >= self._rejoin_at:
                self._rejoin()
            message = self._consumer.poll(timeout_s)
        except KafkaException as exc:
            self._give_up(e.kafka_error(exc))
            return
        if message is None:
            return
        error = message.error()
        if error is None:
            number, offset = message.partition() or 0, message.offset() or 0
            REFUSALS.add("coordination", "this topic must stay empty", partition=number, offset=offset)
        else:
            self._on_error(error)

    def term(self) -> Term | None:
        """Returns the present term; None while this member does not own the partition or has no proof."""
        return self._term

    def _rejoin(self) -> None:
        """Gives the partition back: while an owner has no proof, nobody can lead."""
        self._rejoin_at = None
        log.info("joining the group")
        self._consumer.unsubscribe()
        self._subscribe()

    def _rejoin_soon(self) -> None:
        if self._rejoin_at is None:
            self._rejoin_at = time.monotonic() + REJOIN_AFTER_S

    def close(self) -> None:
        """Leaves the group at once, so that the next owner need not wait for the session to end."""
        if self._closed:
            return
        self._closed = True
        self._owner, self._term = False, None
        leave_group(self._consumer, "member of the group")

    # --- callbacks --------------------------------------------------------------------------------------------------
    # An exception in a callback is raised by poll() in the middle of the rebalance: none may escape here.

    def _on_assign(self, consumer: Consumer, partitions: Sequence[TopicPartition]) -> None:
        if self._closed:
            return
        if any(partition.partition == _ELECTING_PARTITION for partition in partitions):
            self._owner = True
        if not self._owner:
            return
        # The proof is captured here only: metadata fetched at a write would be accepted from any member, owner or not.
        # With the cooperative protocol this runs at every rebalance, with an empty list when nothing has changed.
        self._capture(consumer)

    def _capture(self, consumer: Any) -> None:
        try:
            self._term = proof_of(consumer.consumer_group_metadata())
            self._rejoin_at = None
            log.info("elected generation=%d", self._term.hint)
        except (ValueError, KafkaException, RuntimeError) as exc:
            self._term = None
            self._rejoin_soon()
            log.error("no proof of the term error=%s", exc)

    def _on_revoke(self, _consumer: Consumer, partitions: Sequence[TopicPartition]) -> None:
        if any(partition.partition == _ELECTING_PARTITION for partition in partitions):
            self._step_down("revoked")

    def _on_lost(self, _consumer: Consumer, _partitions: Sequence[TopicPartition]) -> None:
        self._rejoin_at = None
        self._step_down("lost")

    def _step_down(self, why: str) -> None:
        if self._owner:
            log.info("leadership over reason=%s", why)
        self._owner, self._term = False, None

    def _on_error(self, error: KafkaError) -> None:
        if error.fatal() or error.code() == KafkaError._MAX_POLL_EXCEEDED:
            self._give_up(error)
        elif e.code_of(error) in (*e.TELLING, e.TOPIC_MISSING, e.UNEXPECTED):
            problem = e.translate(error, "join the group")
            log.error("group membership fails error=%s hint=%s", problem, problem.hint)
        else:
            log.debug("group membership stalls error=%s", e.text_of(error))

    def _give_up(self, error: KafkaError) -> None:
        if self._owner:
            self._rejoin_soon()
        self._step_down(error.name())
        if error.fatal():
            raise CdcError(
                e.code_of(error), f"group membership ended: {e.text_of(error)}", where={"topic": self._topic}
            )
        log.warning("group membership stalls error=%s", e.text_of(error))
