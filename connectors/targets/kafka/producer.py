"""Writes copies of records and what is noted of them in one transaction of the target cluster."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from cdcworker.connectors.api.record_target import TargetUnavailable
from cdcworker.connectors.record_sink.errors import RECORD_REFUSED, TARGET_UNAVAILABLE
from cdcworker.connectors.record_sink.group_offsets import taken_over
from cdcworker.connectors.targets.kafka.errors import as_target_error, error_of
from cdcworker.connectors.targets.kafka.ledger import Record
from cdcworker.schemas import failpoints
from cdcworker.schemas.errors import CdcError
from confluent_kafka import KafkaError, KafkaException

STEP_S: Final = 0.25
ABORT_S: Final = 2.0
WRITE_S_MAX: Final = 120.0
_DOING: Final = "a transaction of the target cluster has failed"


class Copy(NamedTuple):
    """A record on its way."""

    place: str
    """The partition of the source: the id of its topic and its number."""
    source: str
    """The topic that was read."""
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]
    timestamp_ms: int


Written = Mapping[tuple[str, int], tuple[int, int]]
"""The first and the last offset of what was written to each partition of the target; -1 where the broker has not told."""


class _Purged(TargetUnavailable):
    """The client has thrown away a record that nobody has refused."""


class CopyProducer:
    """A producer that has taken its id over: whoever had it before writes nothing more. One thread uses it."""

    def __init__(self, settings: Mapping[str, Any], id: str, cancelled: threading.Event) -> None:
        """Raises CdcError."""
        self._is_down = False
        try:
            self._producer: Any = taken_over({**settings, "error_cb": self._note}, id)
        except CdcError as error:
            raise as_target_error(error) from error
        self._record_bytes_max = int(settings["message.max.bytes"])
        self._cancelled = cancelled
        self._deadline = 0.0
        self._written: dict[tuple[str, int], list[int]] = {}
        self._refusal: Any = None

    def transact(
        self,
        copies: Sequence[tuple[str, Copy]],
        ledger: str,
        noted: Callable[[Written], Sequence[Record]],
    ) -> Sequence[Record]:
        """Writes copies to their topics, and to the ledger what `noted` makes of where they lie, which is returned. CdcError: of kind
        `data`, then nothing was written and the producer may be used again; any other kind, and nobody knows."""
        if any(len(copy.key or b"") + len(copy.value or b"") > self._record_bytes_max for _, copy in copies):
            # The client would say so in the middle of a transaction.
            raise CdcError(
                RECORD_REFUSED,
                f"the record is larger than the {self._record_bytes_max} bytes of target.max.request.size",
            )
        try:
            return self._transact(copies, ledger, noted)
        except _Purged:
            # After an abort the client empties its queues once more when the next transaction has begun.
            return self._transact(copies, ledger, noted)

    def _transact(
        self,
        copies: Sequence[tuple[str, Copy]],
        ledger: str,
        noted: Callable[[Written], Sequence[Record]],
    ) -> Sequence[Record]:
        self._deadline = time.monotonic() + WRITE_S_MAX
        self._written, self._refusal, self._is_down = {}, None, False
        try:
            self._producer.begin_transaction()
            self._send(copies)
            self._flush()
            records = noted({place: _span(offsets) for place, offsets in self._written.items()})
            for key, value in records:
                self._producer.produce(ledger, value, key, 0)
            if failpoints.active:
                failpoints.hit("mirror.before_commit")
            self._commit()
        except KafkaException as exc:
            raise self._failed(exc.args[0]) from exc
        except SystemError as exc:
            # What the client raises when it is told of a fatal error while it waits.
            self._is_aborted()
            raise TargetUnavailable(TARGET_UNAVAILABLE, "the producer of the target cluster has failed") from exc
        except BaseException:
            self._is_aborted()
            raise
        if failpoints.active:
            failpoints.hit("mirror.after_commit")
        return records

    def close(self) -> None:
        """Lets go of the client, which knows of this object."""
        self._producer = None

    def wait_for_partition(self, topic: str, partition: int) -> None:
        """Waits until the client knows of a partition that was just made. Raises CdcError."""
        deadline = time.monotonic() + WRITE_S_MAX
        while time.monotonic() < deadline and not self._cancelled.is_set():
            try:
                found = self._producer.list_topics(topic, 5.0).topics[topic]
            except KafkaException as exc:
                raise error_of(exc.args[0], "a topic of the target cluster is not told", topic=topic) from exc
            if partition in found.partitions:
                return
            self._cancelled.wait(0.05)
        raise TargetUnavailable(TARGET_UNAVAILABLE, "a partition of the target cluster does not come to be")

    def _send(self, copies: Sequence[tuple[str, Copy]]) -> None:
        places = [(topic, copy.partition) for topic, copy in copies]
        firsts: dict[tuple[str, int], int] = {}
        for number, place in enumerate(places):
            firsts.setdefault(place, number)
        told = {*firsts.values(), *{place: number for number, place in enumerate(places)}.values()}
        for number, (topic, copy) in enumerate(copies):
            # Where the first and the last of a partition lie tells where those between them do.
            noted = self._delivered if number in told else None
            self._produce(topic, copy, noted)

    def _produce(self, topic: str, copy: Copy, noted: Callable[[Any, Any], None] | None) -> None:
        _, _, partition, _, key, value, headers, timestamp_ms = copy
        while True:
            try:
                # Without a time, which is 0 here, the client takes that of the copy.
                self._producer.produce(
                    topic,
                    value,
                    key,
                    partition,
                    on_delivery=noted,
                    timestamp=max(timestamp_ms, 0),
                    headers=list(headers),
                )
                return
            except BufferError:
                self._check()
                self._producer.poll(STEP_S)

    def _delivered(self, error: Any, message: Any) -> None:
        if error is None:
            self._written.setdefault((message.topic(), message.partition()), []).append(message.offset())
        elif self._refusal is None:
            self._refusal = error

    def _flush(self) -> None:
        while self._producer.flush(STEP_S):
            self._check()

    def _commit(self) -> None:
        while True:
            try:
                self._producer.commit_transaction(STEP_S)
                return
            except KafkaException as exc:
                if not exc.args[0].retriable():
                    raise
                # It goes on with the same commit.
                self._check()

    def _note(self, error: Any) -> None:
        self._is_down |= error.code() == KafkaError._ALL_BROKERS_DOWN

    def _check(self) -> None:
        self._producer.poll(0)
        if self._is_down or self._cancelled.is_set() or time.monotonic() > self._deadline:
            raise TargetUnavailable(TARGET_UNAVAILABLE, "the target cluster does not answer in time")

    def _failed(self, error: Any) -> CdcError:
        """Returns the error for a transaction that has failed. What is open is aborted."""
        is_aborted = self._is_aborted()
        found = error_of(error, _DOING)
        if found.kind != "data" and self._refusal is not None:
            found = error_of(self._refusal, _DOING)
        if found.kind == "data" and not is_aborted:
            return TargetUnavailable(TARGET_UNAVAILABLE, found.message)
        if is_aborted and self._refusal is not None and self._refusal.code() == KafkaError._PURGE_QUEUE:
            return _Purged(TARGET_UNAVAILABLE, found.message)
        return found

    def _is_aborted(self) -> bool:
        try:
            self._producer.abort_transaction(ABORT_S)
            # What was on its way is told of now, and not in the next transaction.
            self._producer.flush(ABORT_S)
        except (KafkaException, SystemError):
            return False
        return True


def _span(offsets: Sequence[int]) -> tuple[int, int]:
    return (-1, -1) if min(offsets) < 0 else (min(offsets), max(offsets))
