"""Leadership by a Kafka consumer group: who owns partition 0 of the coordination topic is the leader-elect."""

from __future__ import annotations

import contextlib
import logging
import re
import struct
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from cdcworker.coordinator import kafka_errors as e
from cdcworker.coordinator.api import Term
from cdcworker.coordinator.errors import OTHER_CLUSTER
from cdcworker.coordinator.kafka_clients import make_consumer, member_config
from cdcworker.coordinator.kafka_endings import leave
from cdcworker.schemas.errors import CdcError
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

log = logging.getLogger(__name__)

_MAGIC = b"CGMDv2:"
_ELECTING_PARTITION = 0
REJOIN_AFTER_S = 2.0
"""An owner that has lost its term without being told that it lost the partition joins afresh after this."""
_FLAG_SESSION_S = 10.0
_ASK_AGAIN_S = 0.2


def parse_metadata(metadata: bytes) -> tuple[int, str]:
    """Generation and member id of a client's group metadata; raises ValueError for another form."""
    if not metadata.startswith(_MAGIC) or len(metadata) < len(_MAGIC) + 4:
        raise ValueError("group metadata of an unknown form")
    (generation,) = struct.unpack_from("<i", metadata, len(_MAGIC))
    parts = metadata[len(_MAGIC) + 4 :].split(b"\0")
    if len(parts) < 2:
        raise ValueError("group metadata without a member")
    return generation, parts[1].decode()


def proof_of(metadata: bytes) -> Term:
    """A term with this metadata as its proof.

    Metadata of nobody (generation −1, or no member id) is refused: the broker takes such a transaction without any
    check, so that it would prove nothing (INV-6).
    """
    generation, member = parse_metadata(metadata)
    if generation < 0 or not member:
        raise ValueError("group metadata of a consumer that has not joined")
    return Term(proof=metadata, hint=generation)


class Flag:
    """A member that wants nothing: by its client id it shows that the group id is taken, and by whom."""

    def __init__(self, properties: Mapping[str, str], *, topic: str, group_id: str, client_id: str) -> None:
        config = member_config(properties, client_id=client_id, group_id=group_id, session_timeout_s=_FLAG_SESSION_S)
        self._consumer: Any = make_consumer(config)
        self._consumer.subscribe([topic])

    def serve(self) -> None:
        """Nothing rests on it: what goes wrong is the client's to repair."""
        if self._consumer is not None:
            with contextlib.suppress(KafkaException, RuntimeError):
                self._consumer.poll(0)

    def close(self) -> None:
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            leave(consumer, "flag in the group")


_FLAG = re.compile(r"cdcworker-(?P<worker>.*)-cluster\.(?P<flag>[0-9a-f]{12})")


def flagged(client_id: str, flag: str) -> str:
    """The client id under which a worker joins its group."""
    return f"{client_id}-cluster.{flag}"


def check_strangers(names: Iterable[str], group_id: str, flag: str) -> None:
    """CdcError when one of these members of the group is another cluster's, or no worker at all."""
    for name in names:
        match = _FLAG.fullmatch(name)
        # A worker of an older version shows no flag: it may be one of ours.
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
    """Client ids of the group's live members; none when we may not ask.

    Asked by the old call: of the newer ones, those that go to a group's coordinator abort the whole process when the
    broker goes away meanwhile (librdkafka issue 4605).
    """
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            groups = admin.list_groups(group_id, timeout=max(0.1, deadline - time.monotonic()))
            return [str(member.client_id) for group in groups for member in group.members]
        except KafkaException as exc:
            error = e.kafka_error(exc)
        # The group's coordinator may be on its way to another broker, or to its first one.
        if e.code_of(error) not in (e.TRANSIENT, e.TIMEOUT) or time.monotonic() + _ASK_AGAIN_S >= deadline:
            log.warning("members of the group not checked group=%s error=%s", group_id, error.name())
            return []
        time.sleep(_ASK_AGAIN_S)


def join_delay_s(members: Sequence[str], client_id: str, session_timeout_s: float) -> float:
    """How long a new process lets the group be: a killed process of its name may still be a member.

    Whoever joins makes the group wait for all its members, so for the end of the dead one's session; and a leader that
    is killed while the group waits gets a whole session more from when that is over. Where there is nobody else, nobody
    leads meanwhile either, and to wait outside would take longer.
    """
    return session_timeout_s if client_id in members and any(name != client_id for name in members) else 0.0


class KafkaLeadership:
    """A classic group member. Thread-confined; callbacks run inside `tick` and `close` only."""

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
        """Serve the group protocol; all callbacks run inside this call."""
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
            log.error(
                "foreign record topic=%s offset=%s error=this topic must stay empty", self._topic, message.offset()
            )
        else:
            self._on_error(error)

    def term(self) -> Term | None:
        return self._term

    def _rejoin(self) -> None:
        """Give the partition back: an owner without a proof would keep the lead from everybody."""
        self._rejoin_at = None
        log.info("joining the group")
        self._consumer.unsubscribe()
        self._subscribe()

    def _rejoin_soon(self) -> None:
        if self._rejoin_at is None:
            self._rejoin_at = time.monotonic() + REJOIN_AFTER_S

    def close(self) -> None:
        """Leave the group at once, so that the next owner need not wait for the session to end."""
        if self._closed:
            return
        self._closed = True
        self._owner, self._term = False, None
        leave(self._consumer, "member of the group")

    # --- callbacks --------------------------------------------------------------------------------------------------
    # An exception in a callback would surface in poll() after the rebalance half happened: none may leave here.

    def _on_assign(self, consumer: Consumer, partitions: Sequence[TopicPartition]) -> None:
        if self._closed:
            return
        if any(place.partition == _ELECTING_PARTITION for place in partitions):
            self._owner = True
        if not self._owner:
            return
        # Captured here and nowhere else: metadata fetched when writing would be accepted from any member, owner or
        # not. Under the cooperative protocol this runs at every rebalance, with an empty list when nothing changed.
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
        if any(place.partition == _ELECTING_PARTITION for place in partitions):
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
            told = e.translate(error, "join the group")
            log.error("group membership fails error=%s hint=%s", told, told.hint)
        else:
            log.debug("group membership stalls error=%s", error.str())

    def _give_up(self, error: KafkaError) -> None:
        if self._owner:
            self._rejoin_soon()
        self._step_down(error.name())
        if error.fatal():
            raise CdcError(e.code_of(error), f"group membership ended: {error.str()}", where={"topic": self._topic})
        log.warning("group membership stalls error=%s", error.str())
