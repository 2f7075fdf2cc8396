"""Virtual time: a scheduler, operating-system processes that can be killed and paused, fibers that block in them.

Production code runs in fibers as it is: what blocks there (sleeping, waiting for a queue or an answer) gives the
processor back to the scheduler, which jumps to the next moment at which something happens. Nothing here depends on
real time, threads, the hash seed or the collector, so that a seed gives the same history every time.
"""

from __future__ import annotations

import hashlib
import heapq
import random
import traceback
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

from greenlet import getcurrent, greenlet


class Killed(BaseException):
    """Unwinds a fiber whose process has died. Nothing catches it, and no call out of the process works any more."""


class Violation(AssertionError):
    """An invariant does not hold."""


class _TimedOut:
    def __repr__(self) -> str:
        return "TIMED_OUT"


TIMED_OUT = _TimedOut()
WALL_START_S = 1_750_000_000.0


class World:
    """The scheduler and everything that all parts of one history share."""

    def __init__(self, seed: int, trace: Callable[[str], None] | None = None) -> None:
        self.seed = seed
        self.now = 0.0
        self.random = random.Random(seed)
        self.hub = getcurrent()
        self.current: Proc | None = None
        self.procs: list[Proc] = []
        self.violations: list[str] = []
        self.faults: Counter[str] = Counter()
        self.steps = 0
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0
        self._hash = hashlib.blake2b(digest_size=16)
        self._print = trace
        self._ids = 0

    # --- scheduling -------------------------------------------------------------------------------------------------

    def at(self, delay_s: float, action: Callable[..., None], *args: Any) -> None:
        self._count += 1
        heapq.heappush(self._heap, (self.now + delay_s, self._count, action, args))

    def run(self, until: float, stop: Callable[[], bool] | None = None) -> None:
        """Runs all events up to a time, or until `stop` holds."""
        heap, pop = self._heap, heapq.heappop
        while heap and heap[0][0] <= until:
            self.now, _, action, args = pop(heap)
            self.current = None
            self.steps += 1
            action(*args)
            if self.violations or (stop is not None and stop()):
                return
        self.now = max(self.now, until) if not heap or heap[0][0] > until else self.now

    def close(self) -> None:
        """Ends all processes, so that no fiber is left for the garbage collector."""
        self._heap.clear()
        for proc in self.procs:
            proc.kill("the end")
        self._heap.clear()

    # --- what a history looks like ----------------------------------------------------------------------------------

    def trace(self, kind: str, text: object) -> None:
        line = f"{self.now:.6f} {kind} {text}"
        self._hash.update(line.encode())
        if self._print is not None:
            self._print(line)

    def digest(self) -> str:
        return self._hash.hexdigest()

    def violate(self, name: str, text: str) -> None:
        self.trace("VIOLATION", f"{name}: {text}")
        self.violations.append(f"{name}: {text} (at {self.now:.3f} s)")

    def fault(self, kind: str, text: object = "") -> None:
        self.faults[kind] += 1
        self.trace("fault", f"{kind} {text}")

    def unique(self) -> int:
        self._ids += 1
        return self._ids


class Fiber(greenlet):
    """One thread of a process."""

    def __init__(self, proc: Proc, run: Callable[[], object]) -> None:
        super().__init__(self._main, proc.world.hub)
        self.proc = proc
        self.token = 0
        self._run = run
        self.ended = False

    def _main(self, _value: object = None) -> None:
        try:
            self._run()
        except Killed:
            pass
        except Exception as exc:  # noqa: BLE001 - a thread that dies of an error is a finding
            text = "".join(traceback.format_exception(exc)[-3:])
            self.proc.world.violate("thread", f"{self.proc.name}: {text}")
        finally:
            self.ended = True
            self.proc.fibers.pop(self, None)


class Proc:
    """A process of the operating system, with a clock of its own. Children die with it."""

    def __init__(self, world: World, name: str, host: str, parent: Proc | None = None) -> None:
        self.world = world
        self.name = name
        self.host = host
        self.alive = True
        self.paused = False
        self.children: dict[Proc, None] = {}
        self.parent = parent
        self.fibers: dict[Fiber, None] = {}
        self.on_end: list[Callable[[], None]] = []
        self.wall_offset_s = 0.0
        self.fuse = 0
        """Counts down at each wait; at the end `burn` happens to the process."""
        self.burn: Callable[[], None] = lambda: None
        if parent is None:
            self.rate = 1.0 + world.random.uniform(-0.005, 0.005)
            self._offset = world.random.uniform(1_000.0, 100_000.0)
        else:
            self.rate, self._offset = parent.rate, parent._offset
            parent.children[self] = None
        self._deferred: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        world.procs.append(self)

    # --- clocks -----------------------------------------------------------------------------------------------------

    def mono(self) -> float:
        return self._offset + self.world.now * self.rate

    def wall(self) -> float:
        return WALL_START_S + self.world.now + self.wall_offset_s

    # --- running ----------------------------------------------------------------------------------------------------

    def call(self, action: Callable[..., None], *args: Any) -> None:
        """Calls an action in the process: at once, when it wakes up from a pause, or never if it is dead."""
        if not self.alive:
            return
        if self.paused:
            self._deferred.append((action, args))
            return
        self.world.current = self
        action(*args)
        self.world.current = None

    def later(self, delay_s: float, action: Callable[..., None], *args: Any) -> None:
        """Calls an action after a delay on the process's own clock."""
        self.world.at(delay_s / self.rate, self.call, action, *args)

    def spawn(self, run: Callable[[], object]) -> Fiber:
        fiber = Fiber(self, run)
        self.fibers[fiber] = None
        self.world.at(0.0, self.call, self._resume, fiber, fiber.token, None)
        return fiber

    def _resume(self, fiber: Fiber, token: int, value: object) -> None:
        if fiber.token == token and not fiber.ended:
            fiber.token += 1
            fiber.switch(value)

    def wake(self, fiber: Fiber, token: int, value: object = None) -> None:
        """Makes `block` return; only the first call for a token counts."""
        self.call(self._resume, fiber, token, value)

    # --- faults -----------------------------------------------------------------------------------------------------

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        if not self.paused or not self.alive:
            return
        self.paused = False
        deferred, self._deferred = self._deferred, deque()
        for action, args in deferred:
            self.world.at(0.0, self.call, action, *args)

    def kill(self, why: str) -> None:
        """Kills the process, as SIGKILL does. The scheduler calls it, never the process's own fibers."""
        if not self.alive:
            return
        self.alive = False
        self.world.trace("dead", f"{self.name} {why}")
        for child in list(self.children):
            child.kill("its parent died")
        for fiber in list(self.fibers):
            if fiber:
                fiber.throw(Killed())
            else:
                fiber.ended = True
        self.fibers.clear()
        self._deferred.clear()
        if self.parent is not None:
            self.parent.children.pop(self, None)
        for action in self.on_end:
            action()


# --- for code that runs in fibers -----------------------------------------------------------------------------------


def fiber() -> Fiber:
    current = getcurrent()
    assert isinstance(current, Fiber), "only a fiber can wait"
    return current


def block(timeout_s: float | None) -> object:
    """Waits until `Proc.wake` is called for this fiber and its present token; returns TIMED_OUT after the time-out."""
    me = fiber()
    proc = me.proc
    if not proc.alive:
        raise Killed
    if proc.fuse:
        proc.fuse -= 1
        if not proc.fuse:
            proc.world.at(0.0, proc.burn)
    if timeout_s is not None:
        proc.later(max(0.0, timeout_s), proc._resume, me, me.token, TIMED_OUT)
    value = proc.world.hub.switch()
    if not proc.alive:
        raise Killed
    proc.world.current = proc
    return value


def sleep(seconds: float) -> None:
    block(seconds)


class Signal:
    """A signal that fibers wait for until it is set."""

    def __init__(self) -> None:
        self._waiting: list[tuple[Fiber, int]] = []

    def wait(self, timeout_s: float | None) -> bool:
        me = fiber()
        entry = (me, me.token)
        self._waiting.append(entry)
        done = block(timeout_s) is not TIMED_OUT
        if not done and entry in self._waiting:
            self._waiting.remove(entry)
        return done

    def set_off(self) -> None:
        waiting, self._waiting = self._waiting, []
        for me, token in waiting:
            me.proc.world.at(0.0, me.proc.wake, me, token)

    def wait_for(self, condition: Callable[[], object], timeout_s: float) -> bool:
        """Waits until a condition holds; it is checked whenever the signal is set."""
        proc = fiber().proc
        until = proc.mono() + timeout_s
        while not condition():
            left = until - proc.mono()
            if left <= 0:
                return False
            self.wait(left)
        return True
