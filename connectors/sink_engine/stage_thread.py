"""Works on one item in a thread of its own while the next one is made ready."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from cdcworker.schemas.threads import SupervisedThread

T = TypeVar("T")


class StageThread(Generic[T]):
    """Works on one item at a time, in order. An item that fails ends it: later items were built on its success."""

    def __init__(self, work: Callable[[T], None], name: str = "") -> None:
        """`name` is that of its threads."""
        self._work = work
        self._name = name or "stage"
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    @property
    def busy(self) -> bool:
        thread = self._thread
        return thread is not None and thread.is_alive()

    @property
    def error(self) -> BaseException | None:
        return self._error

    def wait(self, timeout_s: float | None = None) -> bool:
        """Waits until the item that was taken is done; returns False when it is not in time."""
        thread = self._thread
        if thread is not None:
            thread.join(timeout_s)
        return not self.busy

    def give(self, item: T) -> bool:
        """Waits for the item before. False: one has failed, and this one is not taken."""
        self.wait()
        if self._error is not None:
            return False
        self._thread = SupervisedThread(self._run, item, name=self._name)
        self._thread.start()
        return True

    def reset(self) -> None:
        """Forgets the error; only while nothing runs."""
        self._error = None

    def _run(self, item: T) -> None:
        try:
            self._work(item)
        except BaseException as exc:  # noqa: BLE001 - whoever waits for the item asks for it
            self._error = exc
