"""Copies batches of records to another cluster. A record is there, and in the ledger, once or not at all."""

from __future__ import annotations

import gc
import threading
from collections import Counter
from collections.abc import Callable, Sequence

from cdcworker.connectors.api.context import CheckFinding
from cdcworker.connectors.api.record_target import MessageBatch, RecordBatch, TargetPlace, TargetRecord, WrittenMessages
from cdcworker.connectors.formats.format import RECORD_UNREADABLE
from cdcworker.connectors.targets.kafka.cluster import TargetCluster
from cdcworker.connectors.targets.kafka.config import SERVERS
from cdcworker.connectors.targets.kafka.producer import Copy
from cdcworker.connectors.targets.kafka.session import MirrorSession
from cdcworker.schemas.errors import CdcError


class KafkaTarget:
    """Topics of another cluster."""

    def __init__(self, place: TargetPlace) -> None:
        self._place = place
        self._cancelled = threading.Event()
        self._session: MirrorSession | None = None
        self._firsts: dict[str, int] = {}
        """The first offset that this owner was given of a partition."""
        self._refused: dict[str, set[int]] = {}

    def write(self, batch: RecordBatch) -> None:
        copies = [_copy_of(record) for record in batch.records]
        try:
            self._guarded(lambda session: self._write(session, copies))
        except CdcError as error:
            if error.kind == "data" and len(copies) == 1:
                self._refused.setdefault(copies[0].place, set()).add(copies[0].offset)
            raise

    def write_messages(self, batch: MessageBatch) -> WrittenMessages:
        try:
            copies = [
                Copy(
                    f"{ids}-{message.partition()}",
                    message.topic(),
                    message.partition(),
                    message.offset(),
                    message.key(),
                    message.value(),
                    message.headers() or (),
                    message.timestamp()[1],
                )
                for message, ids in zip(batch.messages, batch.ids, strict=True)
            ]
        except UnicodeDecodeError:
            raise CdcError(RECORD_UNREADABLE, "the name of a header is not UTF-8") from None
        self._guarded(lambda session: self._write(session, copies))
        moments = Counter(copy.timestamp_ms for copy in copies if copy.value is not None and copy.timestamp_ms > 0)
        return WrittenMessages(len(copies), moments, {copy.source: copy.timestamp_ms for copy in copies})

    def move(self, offsets: dict[str, int]) -> None:
        """Sets the offsets from which on partitions are copied again, as a person asks for it. Raises CdcError."""
        self._guarded(lambda session: session.move(offsets))

    def cancel(self) -> None:
        self._cancelled.set()

    def close(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None
            # Admin clients are in cycles: their threads would stay until Python looks for such by itself.
            gc.collect()

    def check(self) -> Sequence[CheckFinding]:
        """Logs in; makes nothing."""
        try:
            TargetCluster(self._place.config).connect()
        except CdcError as error:
            severity = "warning" if error.kind == "transient" else "error"
            return [CheckFinding(SERVERS, severity, error.code, error.message, error.hint)]  # type: ignore[arg-type]
        return []

    def _guarded(self, work: Callable[[MirrorSession], None]) -> None:
        """Whatever goes wrong but a record that is refused: the next try begins at what the ledger says."""
        self._cancelled.clear()
        try:
            if self._session is None:
                self._session = MirrorSession(self._place, self._cancelled, self._firsts.keys())
            work(self._session)
        except CdcError as error:
            if error.kind != "data":
                self.close()
            raise
        except BaseException:
            self.close()
            raise

    def _write(self, session: MirrorSession, copies: Sequence[Copy]) -> None:
        for copy in copies:
            self._firsts.setdefault(copy.place, copy.offset)
        session.claim({copy.place: self._firsts[copy.place] for copy in copies})
        fresh = session.fresh(copies)
        if fresh:
            session.write(fresh, {place: frozenset(offsets) for place, offsets in self._refused.items()})
            for place in {copy.place for copy in fresh}:
                self._refused.pop(place, None)


def _copy_of(record: TargetRecord) -> Copy:
    return Copy(
        record.id.rpartition("-")[0],
        record.topic,
        record.partition,
        record.offset,
        record.key,
        record.value,
        [(header.key, header.value) for header in record.headers],
        record.timestamp_ms,
    )
