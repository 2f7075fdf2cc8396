"""Ends what takes too long from another thread: a server that stands still answers nothing, not even that it was too slow."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

SLACK_S = 5.0
"""How much longer than a server's own limit a client waits for it to say so."""


@contextmanager
def ended_after(seconds: float, end: Callable[[], object]) -> Iterator[threading.Event]:
    """Calls `end` when so much time has passed; the event says whether that was so."""
    ended = threading.Event()

    def run() -> None:
        ended.set()
        with suppress(Exception):  # what is to be ended may have ended by itself
            end()

    timer = threading.Timer(seconds, run)
    timer.daemon = True
    timer.start()
    try:
        yield ended
    finally:
        timer.cancel()
        timer.join()
