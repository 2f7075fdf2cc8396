"""The one place where threads and lasting tasks of the event loop are made. One that dies is known by its name: to the
log, the health and a metric."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import os
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

log = logging.getLogger(__name__)

BACKOFF_S: Final = (1.0, 60.0)
"""The first and the longest pause before a thread that died is started again; it doubles in between."""
STEADY_S: Final = 120.0
"""A thread that ran for so long begins with the shortest pause again."""
CANCEL_AGAIN_S: Final = 0.1
EXIT_DIED: Final = 1


class ThreadDeaths:
    """Which threads of this process have died. Threads of one kind count together.

    A kind is dead from a death until a thread of the same kind has ended as it should, or was started again and has
    lasted.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._dead: set[str] = set()

    def died(self, kind: str) -> None:
        """Notes a death."""
        with self._lock:
            self._counts[kind] += 1
            self._dead.add(kind)

    def healed(self, kind: str) -> None:
        """Notes that a thread of this kind does its work."""
        if kind in self._dead:
            with self._lock:
                self._dead.discard(kind)

    def dead(self) -> tuple[str, ...]:
        """Returns the kinds whose work is not done now, sorted."""
        with self._lock:
            return tuple(sorted(self._dead))

    def counts(self) -> Mapping[str, int]:
        """Returns how many threads have died, by kind."""
        with self._lock:
            return dict(self._counts)


THREAD_DEATHS: Final = ThreadDeaths()
"""The deaths in this process."""


class SupervisedThread(threading.Thread):
    """A daemon thread whose death is noticed. An exception that `work` does not handle is its death.

    `kind` is the name that health and metrics show; by default the thread's name. `restart_until` is the event that
    ends the thread's service: without one the thread is not started again. A thread without which its process cannot
    work has `ends_process`: then its death ends the process, and whoever watches that starts another one.
    """

    def __init__(
        self,
        work: Callable[..., object] | None = None,
        *args: Any,
        name: str,
        kind: str = "",
        restart_until: threading.Event | None = None,
        ends_process: bool = False,
    ) -> None:
        super().__init__(name=name, daemon=True)
        self._work = work
        self._arguments = args
        self._kind = kind or name
        self._restart_until = restart_until
        self._ends_process = ends_process

    def serve(self) -> None:
        """The thread's work; a subclass may define it instead of passing `work`."""
        if self._work is not None:
            self._work(*self._arguments)

    def run(self) -> None:
        pause_s = BACKOFF_S[0]
        while True:
            began = time.monotonic()
            try:
                self.serve()
                THREAD_DEATHS.healed(self._kind)
                return
            except BaseException as exc:
                self._on_death(exc)
                if not isinstance(exc, Exception):
                    raise
            if time.monotonic() - began > STEADY_S:
                pause_s = BACKOFF_S[0]
            if self._restart_until is None or self._restart_until.wait(pause_s):
                return
            pause_s = min(pause_s * 2, BACKOFF_S[1])
            log.warning("thread is started again thread=%s", self.name)

    def works(self) -> None:
        """Tells that the thread does its work, after a restart: its kind is not dead any more."""
        THREAD_DEATHS.healed(self._kind)

    def _on_death(self, exc: BaseException) -> None:
        _note_death(self._kind, self.name, exc)
        if self._ends_process:
            logging.shutdown()
            os._exit(EXIT_DIED)


def _note_death(kind: str, name: str, exc: BaseException) -> None:
    THREAD_DEATHS.died(kind)
    # The frames say where; the exception's text may hold a value.
    frames = exc.__traceback__
    while frames is not None and frames.tb_next is not None:
        frames = frames.tb_next
    place = f"{frames.tb_frame.f_code.co_name}:{frames.tb_lineno}" if frames is not None else ""
    log.error("thread died thread=%s error=%s place=%s", name, type(exc).__name__, place)


def start_thread(work: Callable[..., object], *args: Any, name: str, kind: str = "") -> SupervisedThread:
    """Starts a supervised thread for one piece of work."""
    thread = SupervisedThread(work, *args, name=name, kind=kind)
    thread.start()
    return thread


def start_timer(after_s: float, work: Callable[..., object], *args: Any, name: str) -> threading.Event:
    """Does some work after a time, unless the event that is returned is set before."""
    cancelled = threading.Event()

    def wait() -> None:
        if not cancelled.wait(after_s):
            work(*args)

    start_thread(wait, name=name)
    return cancelled


def thread_pool(threads: int, name: str) -> ThreadPoolExecutor:
    """Returns a pool. Its threads do not die of an exception: the future of each call carries it to whoever asked."""
    return ThreadPoolExecutor(threads, name)


def supervised_task(
    step: Callable[[], object], every_s: float, *, name: str, goes_on: Callable[[], bool] = lambda: True
) -> asyncio.Task[None]:
    """Starts a task of the event loop that calls `step` again and again, a coroutine function or another.

    An exception of a call is a death, known by `name` until a later call succeeds; the pause before that doubles. The
    task ends when `goes_on` returns False.
    """
    return asyncio.create_task(_repeat(step, every_s, name, goes_on), name=name)


async def _repeat(step: Callable[[], object], every_s: float, name: str, goes_on: Callable[[], bool]) -> None:
    pause_s = BACKOFF_S[0]
    while goes_on():
        try:
            result = step()
            if inspect.isawaitable(result):
                await result
        except Exception as exc:  # noqa: BLE001 - whatever a step raises is its death, which is told
            _note_death(name, name, exc)
            await asyncio.sleep(max(every_s, pause_s))
            pause_s = min(pause_s * 2, BACKOFF_S[1])
            continue
        THREAD_DEATHS.healed(name)
        pause_s = BACKOFF_S[0]
        await asyncio.sleep(every_s)


async def end_task(task: asyncio.Task[None]) -> None:
    """Cancels a task and waits for its end.

    It is cancelled again as long as it runs: `asyncio.wait_for` loses a cancellation that comes when what it waits for has
    just ended.
    """
    while not task.done():
        task.cancel()
        await asyncio.wait([task], timeout=CANCEL_AGAIN_S)
    if not task.cancelled():
        task.result()


@contextlib.asynccontextmanager
async def repeated(step: Callable[[], object], every_s: float, *, name: str) -> AsyncIterator[None]:
    """Calls `step` every `every_s` seconds as a supervised task, as long as the context lasts."""
    task = supervised_task(step, every_s, name=name)
    try:
        yield
    finally:
        await end_task(task)
