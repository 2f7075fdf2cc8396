"""Calls of handlers that wait for systems outside: each kind has threads of its own, so that nobody else waits for them."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final, TypeVar

from cdcworker.schemas.threads import thread_pool
from cdcworker.worker.security.caller_shares import CallerShares

Result = TypeVar("Result")
POLL_S: Final = 0.02


class AllBusy(Exception):
    """No thread has become free in time."""


class SlowCalls:
    """Runs at most `at_once` calls at the same time, of which one caller has `per_caller` (0: all)."""

    def __init__(self, name: str, at_once: int, per_caller: int = 0) -> None:
        self._threads = thread_pool(max(1, at_once), name)
        self._free = asyncio.Semaphore(at_once)
        self._shares = CallerShares(per_caller or at_once)

    async def run(
        self, call: Callable[[], Result], *, wait_s: float, caller: str = "", own_wait_s: float = 0.0
    ) -> Result:
        """Returns what the call returns.

        AllBusy when no thread is free within `wait_s` seconds. Before that a caller who is named waits
        `own_wait_s` seconds for his earlier calls.
        """
        if caller:
            await self._share_of(caller, own_wait_s)
        try:
            await asyncio.wait_for(self._free.acquire(), wait_s)
        except BaseException as exc:
            self._give_back(caller)
            if isinstance(exc, TimeoutError):
                raise AllBusy from None
            raise
        return await asyncio.wrap_future(self._started(call, caller))

    def close(self) -> None:
        """Lets the threads end behind the calls that they do."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _share_of(self, caller: str, wait_s: float) -> None:
        deadline = time.monotonic() + wait_s
        while not self._shares.take(caller):
            if time.monotonic() >= deadline:
                raise AllBusy
            await asyncio.sleep(POLL_S)

    def _started(self, call: Callable[[], Result], caller: str) -> Future[Result]:
        loop = asyncio.get_running_loop()

        def done(_: Future[Any]) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has gone: nobody waits any more
                loop.call_soon_threadsafe(self._ended, caller)

        try:
            future = self._threads.submit(call)
        except BaseException:
            self._ended(caller)
            raise
        # A caller who has gone leaves the thread behind: it counts until its call ends.
        future.add_done_callback(done)
        return future

    def _ended(self, caller: str) -> None:
        self._free.release()
        self._give_back(caller)

    def _give_back(self, caller: str) -> None:
        if caller:
            self._shares.give_back(caller)
