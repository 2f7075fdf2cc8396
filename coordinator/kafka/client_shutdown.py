"""Closing of Kafka clients with a time limit: librdkafka's close and destroy may block for ever.

They join its threads, also one that waits for a broker which went away (librdkafka issues 4519 and 4674): such a client
is abandoned on a thread of its own. And an assignment that arrives while a group member closes may never be answered
(issue 4884); its callback holds Python's lock meanwhile, which blocks the whole process. So a member first
unsubscribes, polls until it has no partitions left, and then closes.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable
from typing import Any

from cdcworker.schemas.threads import start_thread
from confluent_kafka import KafkaException

log = logging.getLogger(__name__)

CLOSE_S = 10.0
"""The default time limit: a group member whose coordinator is away takes up to its session time-out to leave."""

_STEP_S = 0.01
_EMPTY_TRIES = 3
"""How often `purge` tries: a broken client first raises its fatal error, and only then reports its records."""


def close_client(close: Callable[[], object], what: str, timeout_s: float = CLOSE_S) -> bool:
    """Calls `close` on a thread of its own; tells whether it returned within `timeout_s`. The client's errors are
    logged."""
    thread = start_thread(_run_close, close, what, name=f"end-{what.replace(' ', '-')}", kind="end-client")
    thread.join(timeout_s)
    if thread.is_alive():
        log.warning("a client does not close and is abandoned client=%s waited=%.1fs", what, timeout_s)
    return not thread.is_alive()


def _run_close(close: Callable[[], object], what: str) -> None:
    try:
        close()
    except (KafkaException, RuntimeError) as exc:
        log.warning("a client failed to close client=%s error=%s", what, exc)


def leave_group(member: Any, what: str, timeout_s: float = CLOSE_S) -> bool:
    """Closes a group member, which leaves its group at once; tells whether that took less than `timeout_s`.

    Its callbacks run meanwhile, on another thread.
    """
    return close_client(lambda: _leave(member, time.monotonic() + timeout_s), what, timeout_s)


def _leave(member: Any, deadline: float) -> None:
    try:
        member.unsubscribe()
        member.poll(_STEP_S)
        while member.assignment() and time.monotonic() < deadline:
            member.poll(_STEP_S)
    finally:
        member.close()


def destroy_client(last_reference: list[Any], what: str, timeout_s: float = CLOSE_S) -> bool:
    """Destroys the client in this list, which must hold its last reference: a producer has no close."""
    return close_client(last_reference.clear, what, timeout_s)


def purge(producer: Any, wait_s: float) -> None:
    """Has a producer call all its delivery callbacks; records that are not stored after `wait_s` fail."""
    for attempt in range(_EMPTY_TRIES):
        with contextlib.suppress(KafkaException):
            producer.flush(0.0 if attempt else wait_s)
            producer.purge()
            producer.flush(0)
            return
