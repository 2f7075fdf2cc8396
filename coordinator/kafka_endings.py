"""Ends Kafka clients without being held up by them: librdkafka's close and destroy may wait for ever.

They join its threads, also one that still knows a broker which went away (librdkafka issues 4519 and 4674): such a
client is left behind on a thread of its own. And an assignment that is given to a member while it closes may never be
answered (issue 4884); the callback holds Python's lock meanwhile, so that the whole process stands still. A member
therefore leaves first, is given what was on its way to it, and closes when it has nothing left.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from confluent_kafka import KafkaException

log = logging.getLogger(__name__)

CLOSE_S = 10.0
"""A member whose coordinator is away takes up to its session's time to leave."""

_STEP_S = 0.01
_EMPTY_TRIES = 3
"""A broken client raises that it is before it tells of its records."""


def end(close: Callable[[], object], what: str, timeout_s: float = CLOSE_S) -> bool:
    """Call `close` on a thread; whether it came back within `timeout_s`. What the client complains of is logged."""
    thread = threading.Thread(target=_ended, args=(close, what), name=f"end-{what.replace(' ', '-')}", daemon=True)
    thread.start()
    thread.join(timeout_s)
    if thread.is_alive():
        log.warning("a client does not end and is left behind client=%s waited=%.1fs", what, timeout_s)
    return not thread.is_alive()


def _ended(close: Callable[[], object], what: str) -> None:
    try:
        close()
    except (KafkaException, RuntimeError) as exc:
        log.warning("a client did not end well client=%s error=%s", what, exc)


def leave(member: Any, what: str, timeout_s: float = CLOSE_S) -> bool:
    """End a member of a group, which leaves it at once; whether it came back within `timeout_s`.

    Its callbacks run meanwhile, on another thread.
    """
    return end(lambda: _left(member, time.monotonic() + timeout_s), what, timeout_s)


def _left(member: Any, deadline: float) -> None:
    try:
        member.unsubscribe()
        member.poll(_STEP_S)
        while member.assignment() and time.monotonic() < deadline:
            member.poll(_STEP_S)
    finally:
        member.close()


def let_go(held: list[Any], what: str, timeout_s: float = CLOSE_S) -> bool:
    """Destroy what the list holds: a producer has no close, it ends with the last reference to it."""
    return end(held.clear, what, timeout_s)


def empty(producer: Any, wait_s: float) -> None:
    """Tell of every record of a producer what became of it, as failed where it is not stored after `wait_s`."""
    for at in range(_EMPTY_TRIES):
        with contextlib.suppress(KafkaException):
            producer.flush(0.0 if at else wait_s)
            producer.purge()
            producer.flush(0)
            return
