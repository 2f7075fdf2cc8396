"""A lane writes the batches of its partitions, one behind the other: reads, transforms, writes, tries again, sets aside."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from cdcworker.connectors.api.opened import Closes
from cdcworker.connectors.api.record_target import (
    CancelsWrites,
    MessageBatch,
    RecordBatch,
    RecordTarget,
    TargetRecord,
    TargetUnavailable,
    WritesMessages,
)
from cdcworker.connectors.formats.format import RECORD_UNREADABLE
from cdcworker.connectors.record_sink.config import EngineSettings
from cdcworker.connectors.record_sink.converters import RecordReader
from cdcworker.connectors.record_sink.dead_letters import LetterForm, Refused, Stage
from cdcworker.connectors.record_sink.errors import DEAD_LETTERS_MANY, TARGET_HUNG
from cdcworker.connectors.record_sink.group_offsets import Letter, Partition
from cdcworker.connectors.record_sink.ownership import Ownership
from cdcworker.connectors.record_sink.progress import Done, Progress
from cdcworker.connectors.record_sink.unsent import unsent_columns
from cdcworker.connectors.transform_chain.chain import FAILED, TransformChain
from cdcworker.connectors.transforms.data import ConnectRecord
from cdcworker.schemas.errors import INTERNAL, CdcError, raised_at
from cdcworker.schemas.threads import SupervisedThread

log = logging.getLogger(__name__)
T = TypeVar("T")

WAITING_BYTES_MAX: Final = 2_097_152
"""Records of so many bytes, or of one batch, wait for a lane before its partitions are paused."""
RETRY_AFTER_S_MAX: Final = 3_600.0
BREAK_OFF_S: Final = 10.0
"""How long a write that was cancelled may go on."""
LOOK_S: Final = 0.05
AGAIN_S: Final = 1.0
"""How long after Kafka did not tell a schema it is asked again."""
_OVERHEAD: Final = 200
"""Bytes that a record takes besides its key and value."""


class LaneParts(NamedTuple):
    """What a lane works with. Only it uses the first three."""

    target: RecordTarget
    reader: RecordReader
    chain: TransformChain
    settings: EngineSettings
    form: LetterForm
    ownership: Ownership
    progress: Progress


class _Ended(Exception):
    """The task is to stop: the batch is given up and read again."""


class _Entry(NamedTuple):
    record: TargetRecord
    message: Any
    ids: str


class Lane:
    """Messages of some partitions, in their order. `offer` is called by the thread that reads; all else is its own thread's."""

    def __init__(self, number: int, parts: LaneParts) -> None:
        self._parts = parts
        self._settings = parts.settings
        self._waiting: deque[tuple[Any, str]] = deque()
        self._bytes = 0
        self._since = self._last = 0.0
        self._bytes_max = max(WAITING_BYTES_MAX, parts.settings.batch_bytes)
        self._changed = threading.Condition()
        self._ending = threading.Event()
        self._busy = False
        self._began: float | None = None
        self._cancelled_at: float | None = None
        self._letters: list[Letter] = []
        self._refused = 0
        self._straight = _straight(parts)
        self._thread = SupervisedThread(self._run, name=f"write-{number}", kind="write")

    def start(self) -> None:
        self._thread.start()

    def offer(self, messages: Iterable[tuple[Any, str]]) -> None:
        """Takes messages, each with what its id begins with."""
        with self._changed:
            self._last = time.monotonic()
            if not self._waiting:
                self._since = self._last
            for message in messages:
                self._waiting.append(message)
                self._bytes += _size(message[0])
            self._changed.notify()

    def withdraw(self) -> None:
        """Forgets the messages that no batch has begun with."""
        with self._changed:
            self._waiting.clear()
            self._bytes = 0

    @property
    def is_full(self) -> bool:
        return self._bytes >= self._bytes_max or len(self._waiting) >= 4 * self._settings.batch_records + 100

    @property
    def has_room(self) -> bool:
        """Whether paused partitions may be resumed."""
        return self._bytes <= self._bytes_max // 2 and len(self._waiting) <= 2 * self._settings.batch_records

    @property
    def is_idle(self) -> bool:
        # In this order: what is taken out of the one is in the other before.
        return not self._waiting and not self._busy

    def watch(self) -> None:
        """Breaks off a write that takes too long. CdcError `sink.target_hung` where that cannot be."""
        began, now = self._began, time.monotonic()
        if began is None or now - began < self._settings.target_timeout_s:
            return
        error = CdcError(TARGET_HUNG, f"a batch was not answered in {self._settings.target_timeout_s:g} s")
        if not isinstance(self._parts.target, CancelsWrites):
            raise error
        if self._cancelled_at is None:
            self._cancelled_at = now
            log.warning("%s", error)
            self._parts.target.cancel()
        elif now - self._cancelled_at > BREAK_OFF_S:
            raise error

    def end(self) -> None:
        """Begins no further batch, and waits before no further try."""
        self._ending.set()
        with self._changed:
            self._changed.notify()

    def join(self, timeout_s: float) -> None:
        """Waits for the write that runs; one that takes longer is broken off."""
        self._thread.join(timeout_s)
        if self._thread.is_alive() and isinstance(self._parts.target, CancelsWrites):
            self._parts.target.cancel()
            self._thread.join(1.0)
        if not self._thread.is_alive() and isinstance(self._parts.target, Closes):
            self._parts.target.close()

    # The lane's own thread

    def _run(self) -> None:
        try:
            while messages := self._take():
                self._wait_for_commits()
                self._work(messages)
        except _Ended:
            pass
        except CdcError as error:
            self._parts.progress.failed(error)
        except Exception as error:  # noqa: BLE001 - a target's own code; its text may hold values
            place = f"{type(error).__name__} at {raised_at(error)}"
            self._parts.progress.failed(CdcError(INTERNAL, f"a target or a transform has failed: {place}"))

    def _take(self) -> list[tuple[Any, str]]:
        """Returns the messages of the next batch; none: the task is to stop."""
        settings = self._settings
        with self._changed:
            self._busy = False
            while not self._ending.is_set():
                left = self._ends_at() - time.monotonic()
                is_whole = len(self._waiting) >= settings.batch_records or self._bytes >= settings.batch_bytes
                if self._waiting and (is_whole or left <= 0):
                    break
                self._changed.wait(left if self._waiting else None)
            if self._ending.is_set():
                return []
            self._busy = True
            taken: list[tuple[Any, str]] = []
            size = 0
            while self._waiting and len(taken) < settings.batch_records and size < settings.batch_bytes:
                taken.append(self._waiting.popleft())
                size += _size(taken[-1][0])
            self._bytes -= size
            self._since = time.monotonic()
            return taken

    def _ends_at(self) -> float:
        """Returns when a batch ends that gets no more records."""
        settings, at = self._settings, self._since + self._settings.linger_s
        return min(at, self._last + settings.idle_s) if settings.idle_s else at

    def _wait_for_commits(self) -> None:
        while self._parts.progress.is_full:
            if self._ending.wait(LOOK_S):
                raise _Ended

    def _work(self, messages: Sequence[tuple[Any, str]]) -> None:
        if self._straight is not None and self._written_straight(self._straight, messages):
            return
        offsets: dict[Partition, int] = {}
        moments: Counter[int] = Counter()
        newest: dict[str, int] = {}
        entries: list[_Entry] = []
        self._letters, self._refused = [], 0
        for message, ids in messages:
            offsets[message.topic(), message.partition()] = message.offset() + 1
            record = self._read(message, ids)
            if record is None:
                continue
            moment = moment_of(record, message)
            if moment is not None:
                moments[moment] += 1
            newest[message.topic()] = moment or message.timestamp()[1]
            unsent = unsent_columns(record) if record.headers else ()
            made = self._transformed(record, message, ids)
            if made is not None:
                entries.append(_Entry(_target_record(made, message, ids, unsent), message, ids))
        self._write(entries)
        written = len(entries) - self._refused
        self._parts.progress.done(
            Done(offsets, self._letters, self._refused, max(0, written), moments, newest, len(messages))
        )

    def _written_straight(self, target: WritesMessages, messages: Sequence[tuple[Any, str]]) -> bool:
        """Returns whether the target has taken the messages without that records were made of them."""
        found, ids = zip(*messages, strict=True)
        batch = MessageBatch(found, ids, self._record, self._schema)
        try:
            written = self._tried(lambda: target.write_messages(batch))
        except CdcError as error:
            # A record is to blame; one by one it is found out which.
            if error.kind != "data":
                raise
            return False
        if written is None:
            return False
        offsets = {(each.topic(), each.partition()): each.offset() + 1 for each, _ in messages}
        self._parts.progress.taken()
        self._parts.progress.done(Done(offsets, [], 0, written.records, written.moments, written.newest, len(messages)))
        return True

    def _record(self, message: Any, ids: str) -> TargetRecord:
        record = self._parts.reader.read(message)
        return _target_record(record, message, ids, unsent_columns(record) if record.headers else ())

    def _schema(self, id: int) -> Any:
        schemas = self._parts.reader.schemas
        assert schemas is not None
        return schemas.stored(id).schema

    def _read(self, message: Any, ids: str) -> ConnectRecord | None:
        while True:
            try:
                return self._parts.reader.read(message)
            except CdcError as error:
                if error.kind != "transient":
                    self._set_aside(message, ids, "VALUE_CONVERTER", error)
                    return None
                self._parts.progress.try_failed(error)
                log.warning("a schema is asked for again error=%s", error)
            except Exception as error:  # noqa: BLE001 - one record that no converter expects; the text may hold values
                text = f"the record cannot be read ({type(error).__name__})"
                self._set_aside(message, ids, "VALUE_CONVERTER", CdcError(RECORD_UNREADABLE, text))
                return None
            if self._ending.wait(AGAIN_S):
                raise _Ended

    def _transformed(self, record: ConnectRecord, message: Any, ids: str) -> ConnectRecord | None:
        try:
            return self._parts.chain.apply(record)
        except CdcError as error:
            self._set_aside(message, ids, "TRANSFORMATION", error)
        except Exception as error:  # noqa: BLE001 - one record that a transform does not expect; the text may hold values
            text = f"a transform cannot be applied ({type(error).__name__})"
            self._set_aside(message, ids, "TRANSFORMATION", CdcError(FAILED, text))
        return None

    def _write(self, entries: Sequence[_Entry]) -> None:
        """Writes records. Where one of them is refused, halves are written until it is known which."""
        if not entries:
            return
        try:
            batch = RecordBatch([entry.record for entry in entries])
            self._tried(lambda: self._parts.target.write(batch))
            self._parts.progress.taken()
            return
        except CdcError as error:
            if error.kind != "data":
                raise
            if len(entries) == 1:
                self._set_aside(entries[0].message, entries[0].ids, "TASK_PUT", error)
                return
        half = len(entries) // 2
        self._write(entries[:half])
        self._write(entries[half:])

    def _tried(self, write: Callable[[], T]) -> T:
        """Writes a batch, again and again while the target does not take it now."""
        tries, since = 0, time.monotonic()
        while self._parts.ownership.wait():
            self._cancelled_at, self._began = None, time.monotonic()
            try:
                return write()
            except CdcError as error:
                self._began = None
                if error.kind != "transient":
                    raise
                self._may_try_again(error, tries, since)
                self._parts.progress.try_failed(error)
                delay = self._delay(error, tries)
                tries += 1
                log.warning("target does not take a batch try=%d delay_s=%.1f error=%s", tries, delay, error)
                if self._ending.wait(delay):
                    break
            finally:
                self._began = None
        raise _Ended

    def _may_try_again(self, error: CdcError, tries: int, since: float) -> None:
        settings = self._settings
        is_late = 0 <= settings.retry_timeout_s <= time.monotonic() - since
        if is_late or 0 <= settings.retries_max <= tries:
            raise error

    def _delay(self, error: CdcError, tries: int) -> float:
        settings = self._settings
        delay = min(settings.backoff_max_s, settings.backoff_s * 2.0 ** min(tries, 30))
        delay *= 0.5 + random.random() / 2  # noqa: S311 - spreads retries, protects nothing
        asked = error.retry_after_s if isinstance(error, TargetUnavailable) else None
        return max(delay, min(asked or 0.0, RETRY_AFTER_S_MAX))

    def _set_aside(self, message: Any, ids: str, stage: Stage, error: CdcError) -> None:
        """Makes a dead letter of a message, or raises the error that halts the task."""
        if error.kind != "data":
            raise error
        where: Mapping[str, str | int] = {
            **error.where,
            "topic": message.topic(),
            "partition": message.partition(),
            "offset": message.offset(),
        }
        settings = self._settings
        if not settings.tolerant:
            raise CdcError(error.code, error.message, where=where, hint=error.hint)
        in_row = self._parts.progress.refused_in_row()
        if 0 < settings.refused_in_row_max < in_row:
            raise CdcError(
                DEAD_LETTERS_MANY, f"{in_row} in a row, the last: [{error.code}] {error.message}", where=where
            )
        if settings.logs_refused:
            log.warning(
                "record is set aside stage=%s error=%s", stage, CdcError(error.code, error.message, where=where)
            )
        self._refused += stage == "TASK_PUT"
        if settings.letters_topic:
            self._letters.append(self._parts.form.letter(Refused(message, stage, error, ids)))


def _straight(parts: LaneParts) -> WritesMessages | None:
    """Returns the target where it may take messages as they are."""
    takes = isinstance(parts.target, WritesMessages) and not parts.chain and parts.reader.is_plain
    return parts.target if takes else None  # type: ignore[return-value]  # it was asked for


def moment_of(record: ConnectRecord, message: Any) -> int | None:
    """Returns when a change was committed in the source, in ms; None for a row that a snapshot has loaded, and for a record of
    which nobody can tell."""
    source = record.value.get("source") if isinstance(record.value, Mapping) else None
    if not isinstance(source, Mapping):
        found: int = message.timestamp()[1]
        return found if record.value is not None and found > 0 else None
    moment = source.get("ts_ms")
    return moment if isinstance(moment, int) and source.get("snapshot") in (None, "false", False) else None


def _target_record(record: ConnectRecord, message: Any, ids: str, unsent: Sequence[str]) -> TargetRecord:
    return TargetRecord(
        f"{ids}-{message.partition()}-{message.offset()}",
        record.topic,
        message.partition(),
        message.offset(),
        record.timestamp or 0,
        record.key_schema,
        record.key,
        record.value_schema,
        record.value,
        record.headers,
        unsent,
    )


def _size(message: Any) -> int:
    return len(message.key() or b"") + len(message) + _OVERHEAD
