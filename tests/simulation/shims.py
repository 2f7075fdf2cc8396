"""The parts of the standard library that production code uses, on virtual time: clocks, threads, queues, ids."""

from __future__ import annotations

import concurrent.futures as real_futures
import contextlib
import queue as real_queue
import random as real_random
import sys
import threading as real_threading
import time as real_time
import types
import uuid as real_uuid
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import cdcworker.schemas.threads as real_threads
from greenlet import getcurrent

from .engine import Fiber, Proc, Signal, World, sleep

ROOMS = ("cdcworker.coordinator", "cdcworker.worker", "cdcworker.connectors")


class Shims:
    """Replaces `time`, `threading`, `queue`, `uuid` and futures as seen by production modules."""

    def __init__(self) -> None:
        self.world: World | None = None

    def proc(self) -> Proc:
        me = getcurrent()
        if isinstance(me, Fiber):
            return me.proc
        assert self.world is not None
        assert self.world.current is not None, "nobody's clock"
        return self.world.current

    # --- time -------------------------------------------------------------------------------------------------------

    def monotonic(self) -> float:
        return self.proc().mono()

    def clock_gettime(self, _clock: int) -> float:
        return self.proc().mono()

    def time(self) -> float:
        return self.proc().wall()

    def time_ns(self) -> int:
        return int(self.proc().wall() * 1000) * 1_000_000

    # --- threading --------------------------------------------------------------------------------------------------

    def thread(self) -> type:
        shims = self

        class Thread:
            def __init__(
                self,
                target: Callable[..., object],
                args: tuple[Any, ...] = (),
                kwargs: dict[str, Any] | None = None,
                name: str = "",
                daemon: bool = True,
            ) -> None:
                self.name = name
                self._run = lambda: target(*args, **(kwargs or {}))
                self._fiber: Fiber | None = None

            def start(self) -> None:
                self._fiber = shims.proc().spawn(self._run)

            def is_alive(self) -> bool:
                return self._fiber is not None and not self._fiber.ended

            def join(self, timeout: float | None = None) -> None:
                until = shims.monotonic() + (timeout or 60.0)
                while self.is_alive() and shims.monotonic() < until:
                    sleep(0.01)

        return Thread

    def supervised_thread(self, thread: Any) -> type:
        class SupervisedThread(thread):  # type: ignore[misc]
            def __init__(self, work: Callable[..., object], *args: Any, name: str, **_options: Any) -> None:
                super().__init__(work, args, name=name)

            def works(self) -> None:
                """Does nothing: the simulator itself sees what dies."""

        return SupervisedThread

    # --- uuid -------------------------------------------------------------------------------------------------------

    def uuid4(self) -> real_uuid.UUID:
        assert self.world is not None
        return real_uuid.UUID(int=self.world.random.getrandbits(128), version=4)


class Queue:
    """A SimpleQueue between fibers of one process."""

    def __init__(self) -> None:
        self._items: deque[Any] = deque()
        self._signal = Signal()

    def put(self, item: Any) -> None:
        self._items.append(item)
        self._signal.set_off()

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        if not self._items and block:
            if timeout is None:
                while not self._items:
                    self._signal.wait(None)
            else:
                self._signal.wait_for(lambda: self._items, timeout)
        return self.get_nowait()

    def get_nowait(self) -> Any:
        if not self._items:
            raise real_queue.Empty
        return self._items.popleft()

    def empty(self) -> bool:
        return not self._items

    def qsize(self) -> int:
        return len(self._items)


class Event:
    def __init__(self) -> None:
        self._set = False
        self._signal = Signal()

    def set(self) -> None:
        self._set = True
        self._signal.set_off()

    def clear(self) -> None:
        self._set = False

    def is_set(self) -> bool:
        return self._set

    def wait(self, timeout: float | None = None) -> bool:
        self._signal.wait_for(lambda: self._set, 1e9 if timeout is None else timeout)
        return self._set


class Future:
    """A `concurrent.futures.Future` between fibers instead of threads."""

    def __init__(self) -> None:
        self._state = "pending"
        self._value: Any = None
        self._error: BaseException | None = None
        self._signal = Signal()
        self._callbacks: list[Callable[[Any], None]] = []

    def __class_getitem__(cls, _item: Any) -> type:
        return cls

    def set_running_or_notify_cancel(self) -> bool:
        return self._state != "cancelled"

    def cancel(self) -> bool:
        if self._state == "pending":
            self._finish("cancelled")
        return self._state == "cancelled"

    def cancelled(self) -> bool:
        return self._state == "cancelled"

    def done(self) -> bool:
        return self._state != "pending"

    def set_result(self, value: Any) -> None:
        self._value = value
        self._finish("done")

    def set_exception(self, error: BaseException | None) -> None:
        self._error = error
        self._finish("done")

    def _finish(self, state: str) -> None:
        self._state = state
        self._signal.set_off()
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(self)

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        if self.done():
            callback(self)
        else:
            self._callbacks.append(callback)

    def result(self, timeout: float | None = None) -> Any:
        self.exception(timeout)
        if self._error is not None:
            raise self._error
        return self._value

    def exception(self, timeout: float | None = None) -> BaseException | None:
        if not self._signal.wait_for(self.done, 1e9 if timeout is None else timeout):
            raise TimeoutError
        if self._state == "cancelled":
            raise real_futures.CancelledError
        return self._error


class Executor:
    """A pool in which every call has a thread of its own."""

    def __init__(self, *_args: Any, **_kwargs: Any) -> None:
        pass

    def submit(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Future:
        future = Future()

        def run() -> None:
            try:
                future.set_result(call(*args, **kwargs))
            except Exception as exc:  # noqa: BLE001 - it is the caller's
                future.set_exception(exc)

        SHIMS.proc().spawn(run)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Does nothing: threads end by themselves."""


def _module(name: str, real: types.ModuleType, **replaced: Any) -> types.ModuleType:
    """A module that has all of the real one except what is replaced."""
    made = types.ModuleType(name)
    made.__dict__.update({k: v for k, v in vars(real).items() if not k.startswith("__")})
    made.__dict__.update(replaced)
    return made


SHIMS = Shims()

_TIME = _module(
    "time",
    real_time,
    monotonic=SHIMS.monotonic,
    perf_counter=SHIMS.monotonic,
    clock_gettime=SHIMS.clock_gettime,
    time=SHIMS.time,
    time_ns=SHIMS.time_ns,
    sleep=sleep,
)
_THREAD = SHIMS.thread()
_SUPERVISED_THREAD: Any = SHIMS.supervised_thread(_THREAD)


def _start_thread(work: Callable[..., object], *args: Any, name: str, kind: str = "") -> Any:
    thread = _SUPERVISED_THREAD(work, *args, name=name, kind=kind)
    thread.start()
    return thread


_THREADING = _module("threading", real_threading, Thread=_THREAD, Event=Event)
_QUEUE = _module("queue", real_queue, SimpleQueue=Queue, Queue=Queue)
_UUID = _module("uuid", real_uuid, uuid4=SHIMS.uuid4)
_REPLACED = (
    (real_time, _TIME),
    (real_threading, _THREADING),
    (real_queue, _QUEUE),
    (real_uuid, _UUID),
    (real_futures.Future, Future),
    (real_futures.ThreadPoolExecutor, Executor),
    (real_threads.SupervisedThread, _SUPERVISED_THREAD),
    (real_threads.start_thread, _start_thread),
    (real_threads.thread_pool, Executor),
)


@contextlib.contextmanager
def installed(world: World, extra: dict[tuple[str, str], Any]) -> Iterator[None]:
    """Gives production modules virtual time, and `extra` ((module, name) → value) instead of their imports."""
    undo: list[tuple[types.ModuleType, str, Any]] = []
    for name, module in sorted(sys.modules.items()):
        if module is None or not name.startswith(ROOMS):
            continue
        for attribute, value in list(vars(module).items()):
            for real, shim in _REPLACED:
                if value is real:
                    undo.append((module, attribute, value))
                    setattr(module, attribute, shim)
    for (name, attribute), value in extra.items():
        module = sys.modules[name]
        undo.append((module, attribute, getattr(module, attribute)))
        setattr(module, attribute, value)
    before, SHIMS.world = SHIMS.world, world
    state = real_random.getstate()
    real_random.seed(world.seed)
    try:
        yield
    finally:
        world.close()
        SHIMS.world = before
        real_random.setstate(state)
        for module, attribute, value in reversed(undo):
            setattr(module, attribute, value)


__all__ = ["SHIMS", "Event", "Future", "Queue", "installed"]
