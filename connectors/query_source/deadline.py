"""Ends what takes too long from another thread: a server that stands still answers nothing, not even that it was too slow."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

from cdcworker.schemas.threads import start_timer

SLACK_S: Final = 5.0
"""How much longer than a server's own limit a client waits for it to say so."""


@contextmanager
def ended_after(seconds: float, end: Callable[[], object]) -> Iterator[threading.Event]:
    """Calls `end` when so much time has passed, and never after the block; the event says whether that was so."""
    ended, lock, is_over = threading.Event(), threading.Lock(), threading.Event()

    def run() -> None:
        with lock:
            if not is_over.is_set():
                ended.set()
                with suppress(Exception):  # what is to be ended may have ended by itself
                    end()

    given_up = start_timer(seconds, run, name="query-deadline")
    try:
        yield ended
    finally:
        given_up.set()
        with lock:
            is_over.set()
