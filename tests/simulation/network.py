"""The simulated network between processes and services: delay, loss, duplication, stragglers, one-way cuts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from .engine import Proc, World, block, fiber

HELD = object()
"""The return value of a handler that answers later, through the `answer` that it was given."""

Handler = Callable[..., Any]


@dataclass
class Rule:
    """A fault of the links between hosts and services; `*` matches any."""

    host: str = "*"
    service: str = "*"
    loss: float = 0.0
    delay_s: float = 0.0
    repeat: float = 0.0
    is_response: bool = False
    """The request arrives, the answer meets the fault."""
    name: str = ""

    def matches(self, proc: Proc, service: str) -> bool:
        return (self.host in ("*", proc.host, proc.name)) and (self.service == "*" or service.startswith(self.service))


@dataclass
class Network:
    world: World
    rules: list[Rule] = field(default_factory=list)
    base_s: float = 0.001
    sent: int = 0
    _last: dict[tuple[object, str], float] = field(default_factory=dict)

    def send(
        self, proc: Proc, link: object, service: str, handler: Handler, answer: Callable[[Any], None] | None = None
    ) -> None:
        """One request. Requests of one link (a connection) arrive in order; `answer` is called in the process."""
        self.sent += 1
        delays = self._delays(proc, service, False) if self.rules else (self._hop(),)
        for delay in delays:
            key = (link, service)
            arrival = max(self.world.now + delay, self._last.get(key, 0.0))
            self._last[key] = arrival
            self.world.at(arrival - self.world.now, self._arrive, proc, link, service, handler, answer)

    def _arrive(
        self, proc: Proc, link: object, service: str, handler: Handler, answer: Callable[[Any], None] | None
    ) -> None:
        result = handler()
        if answer is not None and result is not HELD:
            self.respond(proc, service, answer, result)

    def respond(self, proc: Proc, service: str, answer: Callable[[Any], None], result: Any) -> None:
        delays = self._delays(proc, service, True)[:1] if self.rules else (self._hop(),)
        for delay in delays:
            self.world.at(delay, proc.call, answer, result)

    def _hop(self) -> float:
        return self.base_s * (0.2 + self.world.random.random())

    def _delays(self, proc: Proc, service: str, is_response: bool) -> tuple[float, ...]:
        delay, random = self._hop(), self.world.random
        out = 1
        for rule in self.rules:
            if rule.is_response == is_response and rule.matches(proc, service):
                if rule.loss and random.random() < rule.loss:
                    return ()
                delay += rule.delay_s * random.random()
                if rule.repeat and random.random() < rule.repeat:
                    out = 2
        return (delay,) * out

    def is_cut(self, proc: Proc, service: str) -> bool:
        return any(r.loss >= 1.0 and r.matches(proc, service) for r in self.rules)

    def ask(self, proc: Proc, link: object, service: str, handler: Handler, timeout_s: float) -> Any:
        """The same from a fiber, waiting for the answer; TIMED_OUT without one."""
        me = fiber()
        token = me.token
        self.send(proc, link, service, handler, lambda result: proc._resume(me, token, result))
        return block(timeout_s)

    def forget(self, link: object) -> None:
        for key in [key for key in self._last if key[0] is link]:
            del self._last[key]
