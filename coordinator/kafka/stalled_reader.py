"""Detects a consumer that reads nothing although its topic has more records."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any

from cdcworker.schemas.threads import start_thread
from confluent_kafka import IsolationLevel, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

CHECK_INTERVAL_S = 15.0
"""The interval between two checks."""
ANSWER_S = 10.0
_LEADERS_S = 1.0

Ends = Mapping[int, "Future[Any]"]
Positions = Mapping[int, int]


class StalledReaderCheck:
    """Asks for the end offsets at each check and compares them with the positions at the next one; it never waits.

    A consumer that connects to a broker before the broker's partitions have leaders may search for one for ever,
    without any error.
    """

    def __init__(self, ask: Callable[[], Ends], learn_leaders: Callable[[], None]) -> None:
        self._ask = ask
        self._learn_leaders = learn_leaders
        self._next = time.monotonic() + CHECK_INTERVAL_S
        self._last_check: tuple[Ends, Positions] | None = None

    def is_due(self) -> bool:
        """Tells whether the next check is due."""
        return time.monotonic() >= self._next

    def stalled(self, positions: Positions) -> bool:
        """Tells whether some partition had more records at the last check and none of them was read since.

        `positions` are the offsets of the next records to read, by partition.
        """
        self._next = time.monotonic() + CHECK_INTERVAL_S
        last, self._last_check = self._last_check, None
        if last is not None and self._is_stalled(*last, positions):
            return True
        self._last_check = self._ask(), dict(positions)
        return False

    def _is_stalled(self, ends: Ends, before: Positions, now: Positions) -> bool:
        still = [number for number in ends if now[number] == before[number]]
        ends_known = {number: _end_of(ends[number]) for number in still}
        if None in ends_known.values():
            # The admin client keeps outdated leaders, too. The refresh runs on its own thread, so nobody waits.
            start_thread(self._learn_leaders, name="leaders")
        return any(end is not None and end > now[number] for number, end in ends_known.items())


def _end_of(answer: Future[Any]) -> int | None:
    try:
        return int(answer.result(0).offset)
    except (KafkaException, TimeoutError):
        return None


def stalled_reader_check(admin: AdminClient, topic: str, partitions: tuple[int, ...]) -> StalledReaderCheck:
    """Returns a check over the last stable offsets: records above an open transaction cannot be read yet."""

    def ask() -> Ends:
        specs = {TopicPartition(topic, number): OffsetSpec.latest() for number in partitions}
        answers = admin.list_offsets(specs, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=ANSWER_S)
        return {place.partition: answer for place, answer in answers.items()}

    def learn_leaders() -> None:
        try:
            admin.list_topics(topic, timeout=_LEADERS_S)
        except KafkaException:
            return

    return StalledReaderCheck(ask, learn_leaders)
