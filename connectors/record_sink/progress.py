"""What the target has taken and the offsets are not yet committed of: written by the threads that write, taken by the one that
commits."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from cdcworker.connectors.record_sink.group_offsets import Letter, Partition
from cdcworker.connectors.telemetry.latency import LatencyHistogram
from cdcworker.connectors.telemetry.retry_status import RetryStatus
from cdcworker.schemas.errors import CdcError

LETTER_BYTES_MAX: Final = 4_194_304
"""Dead letters of so many bytes are committed at once."""
_OVERHEAD: Final = 1_000
"""Bytes that a dead letter takes besides its key and value: its headers, for the most part."""


class Done(NamedTuple):
    """A batch that is behind its lane: `written` records are in the target, others are dead letters or were left out."""

    offsets: Mapping[Partition, int]
    letters: Sequence[Letter]
    refused: int
    written: int
    moments: Mapping[int, int]
    """When its changes were committed in the source, in ms, and how many at each time."""
    newest: Mapping[str, int]
    """By topic, the time of a change that is in the target now, in ms."""
    messages: int = 0
    """How many messages it was made of."""


class Progress:
    """The lanes' results. Offsets and dead letters of a batch are taken together."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._offsets: dict[Partition, int] = {}
        self._letters: list[Letter] = []
        self._letter_bytes = 0
        self._in_row = 0
        self._failed: CdcError | None = None
        self._newest: dict[str, int] = {}
        self.retrying = RetryStatus()
        self.latency = LatencyHistogram()
        self.changes = self.batches = self.refused = self.batch_records = self.messages = 0

    def done(self, batch: Done) -> None:
        now_s = time.time()
        with self._lock:
            self._offsets.update(batch.offsets)
            self._letters += batch.letters
            self._letter_bytes += sum(len(one.key or b"") + len(one.value or b"") + _OVERHEAD for one in batch.letters)
            self._newest.update(batch.newest)
            self.changes += batch.written
            self.refused += batch.refused
            self.batches += 1
            self.messages += batch.messages
            self.batch_records = batch.written
            self.latency.note_all(batch.moments, now_s)

    def taken(self) -> None:
        """The target has taken records."""
        with self._lock:
            self._in_row = 0
            self.retrying.over()

    def refused_in_row(self) -> int:
        """Counts one more record that is set aside; returns how many that are without one in between that was taken."""
        with self._lock:
            self._in_row += 1
            return self._in_row

    def try_failed(self, error: CdcError) -> None:
        with self._lock:
            self.retrying.failed(error)

    def failed(self, error: CdcError) -> None:
        """A lane has ended with an error; the first one is the task's."""
        with self._lock:
            self._failed = self._failed or error

    def raise_failed(self) -> None:
        if self._failed is not None:
            raise self._failed

    @property
    def is_urgent(self) -> bool:
        """Whether what waits for a commit takes too much memory."""
        return self._letter_bytes >= LETTER_BYTES_MAX

    @property
    def is_full(self) -> bool:
        """Whether no further record is to be set aside before a commit: those that wait would take too much memory."""
        return self._letter_bytes >= 2 * LETTER_BYTES_MAX

    def take(self) -> tuple[dict[Partition, int], list[Letter]]:
        """Returns what is to be committed, in one transaction."""
        with self._lock:
            taken = self._offsets, self._letters
            self._offsets, self._letters, self._letter_bytes = {}, [], 0
            return taken

    def take_newest(self) -> dict[str, int]:
        with self._lock:
            taken, self._newest = self._newest, {}
            return taken

    def numbers(self) -> dict[str, Any]:
        with self._lock:
            return {
                "changes": self.changes,
                "rows": self.changes,
                "batches": self.batches,
                "batch_records": self.batch_records,
                "dead_letters": self.refused,
                "latency": self.latency.numbers(),
                **self.retrying.numbers(),
            }
