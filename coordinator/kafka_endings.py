"""Ends Kafka clients without being held up by them.

librdkafka's close and destroy join its threads, and may wait for ever for one that still knows a broker which went
away (librdkafka issues 4519 and 4674). Such a client is left behind on a thread of its own.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

from confluent_kafka import KafkaException

log = logging.getLogger(__name__)

CLOSE_S = 10.0
"""A member whose coordinator is away takes up to its session's time to leave."""


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


def let_go(held: list[Any], what: str, timeout_s: float = CLOSE_S) -> bool:
    """Destroy what the list holds: a producer has no close, it ends with the last reference to it."""
    return end(held.clear, what, timeout_s)
