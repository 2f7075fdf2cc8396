"""Counts the records that this process has refused, and tells of each once: a place in a topic is named, no content."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Mapping
from typing import Final

log = logging.getLogger(__name__)

PLACES_MAX: Final = 10_000
"""Places that are remembered, so that a log that is read again counts and tells nothing twice."""
LINES_MAX: Final = 20
"""Lines within `LINES_S` seconds; the next line then says how many were left out."""
LINES_S: Final = 60.0
KEY_CHARS_MAX: Final = 120


class Refusals:
    """All refused records of one process. Any thread may add one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._places: dict[tuple[str, int, int], None] = {}
        self._lines = 0
        self._left_out = 0
        self._since = time.monotonic()

    def add(self, name: str, reason: str, *, partition: int = 0, offset: int = -1, key: str = "") -> None:
        """Counts one record of the log `name`. `reason` is a fixed text and never content of the record.

        A record that is no part of a topic has a negative offset and counts each time.
        """
        with self._lock:
            place = (name, partition, offset)
            if offset >= 0:
                if place in self._places:
                    return
                self._places[place] = None
                if len(self._places) > PLACES_MAX:
                    self._places.pop(next(iter(self._places)))
            self._counts[name] += 1
            if not self._may_tell():
                return
            left_out, self._left_out = self._left_out, 0
        log.error(
            "record refused log=%s partition=%d offset=%d key=%s reason=%s left_out=%d",
            *(name, partition, offset, shown_key(key), reason, left_out),
        )

    def counts(self) -> Mapping[str, int]:
        """Returns how many records were refused, by log."""
        with self._lock:
            return dict(self._counts)

    def _may_tell(self) -> bool:
        now = time.monotonic()
        if now - self._since >= LINES_S:
            self._since, self._lines = now, 0
        self._lines += 1
        if self._lines > LINES_MAX:
            self._left_out += 1
        return self._lines <= LINES_MAX


def shown_key(key: str) -> str:
    """Returns a key for one line of a log, whoever wrote it."""
    return ascii(key[:KEY_CHARS_MAX])[1:-1]


REFUSALS: Final = Refusals()
"""The refused records of this process."""
