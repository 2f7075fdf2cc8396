"""Whether a reader of a log stands still in front of records that are there."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any

from confluent_kafka import IsolationLevel, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

LOOK_S = 15.0
"""Between two looks."""
ANSWER_S = 10.0
_LEADERS_S = 1.0

Ends = Mapping[int, "Future[Any]"]
Positions = Mapping[int, int]


class StallWatch:
    """Asks for the ends now and then and compares them at the next look, so that nobody ever waits for the answer.

    A consumer that met a broker between its start and its election of leaders may look for a leader for ever, and says
    nothing of it.
    """

    def __init__(self, ask: Callable[[], Ends], learn_leaders: Callable[[], None]) -> None:
        self._ask = ask
        self._learn_leaders = learn_leaders
        self._next = time.monotonic() + LOOK_S
        self._asked: tuple[Ends, Positions] | None = None

    def is_due(self) -> bool:
        return time.monotonic() >= self._next

    def stalled(self, positions: Positions) -> bool:
        """Whether nothing was read since the last look of a partition that had more then."""
        self._next = time.monotonic() + LOOK_S
        asked, self._asked = self._asked, None
        if asked is not None and self._stands(*asked, positions):
            return True
        self._asked = self._ask(), dict(positions)
        return False

    def _stands(self, ends: Ends, before: Positions, now: Positions) -> bool:
        still = [number for number in ends if now[number] == before[number]]
        told = {number: _told(ends[number]) for number in still}
        if None in told.values():
            # The one that asks keeps the leaders it once learnt, too. Nobody waits for it.
            threading.Thread(target=self._learn_leaders, name="leaders", daemon=True).start()
        return any(end is not None and end > now[number] for number, end in told.items())


def _told(answer: Future[Any]) -> int | None:
    try:
        return int(answer.result(0).offset)
    except (KafkaException, TimeoutError):
        return None


def watch(admin: AdminClient, topic: str, partitions: tuple[int, ...]) -> StallWatch:
    """Over the last stable offsets: what stands behind an open transaction is not there to be read."""

    def ask() -> Ends:
        asked = {TopicPartition(topic, number): OffsetSpec.latest() for number in partitions}
        told = admin.list_offsets(asked, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=ANSWER_S)
        return {place.partition: answer for place, answer in told.items()}

    def learn_leaders() -> None:
        try:
            admin.list_topics(topic, timeout=_LEADERS_S)
        except KafkaException:
            return

    return StallWatch(ask, learn_leaders)
