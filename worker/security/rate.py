"""How often one client may ask: buckets of requests that fill up with time."""

from __future__ import annotations

import ipaddress
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

CLIENTS_MAX: Final = 10_000
HOLD_S: Final = 1.0
"""A refused request is answered so much later: a client that asks without pause is slowed down by its own waiting."""


@lru_cache(maxsize=CLIENTS_MAX)
def client_of(host: str) -> str:
    """What counts as one client: an IPv4 address, or the network of 64 bits that one place gets of IPv6."""
    if ":" not in host:
        return host
    try:
        address = ipaddress.IPv6Address(host)
    except ValueError:
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((int(address) >> 64 << 64, 64)))


@dataclass(frozen=True, slots=True)
class Rate:
    per_second: float
    burst: float


class Buckets:
    """One bucket for each client, the least recently seen forgotten first."""

    def __init__(self, rate: Rate, clock: Callable[[], float] = time.monotonic, clients_max: int = CLIENTS_MAX) -> None:
        self._rate = rate
        self._clock = clock
        self._clients_max = clients_max
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, client: str) -> bool:
        """Whether one more is within the client's rate."""
        left = self.left(client)
        fine = left >= 1.0
        self._left[client] = (left - 1.0 if fine else left, self._clock())
        self._left.move_to_end(client)
        while len(self._left) > self._clients_max:
            self._left.popitem(last=False)
        return fine

    def left(self, client: str) -> float:
        if client not in self._left:
            return self._rate.burst
        before, at = self._left[client]
        return min(self._rate.burst, before + (self._clock() - at) * self._rate.per_second)


class Limiter:
    """All that is counted. Requests of a known caller are counted for the caller, others for the address they come
    from; those to what is open have a bucket of their own, so that probes get through."""

    def __init__(
        self, requests: Rate, failures: Rate = Rate(5.0, 20.0), clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._requests = Buckets(requests, clock)
        self._open = Buckets(requests, clock)
        self._failures = Buckets(failures, clock)

    def may_ask(self, client: str) -> bool:
        return self._requests.take(client)

    def may_look(self, address: str) -> bool:
        return self._open.take(address)

    def may_fail(self, address: str) -> bool:
        """Whether a credential that is not known yet may be checked."""
        return self._failures.left(address) >= 1.0

    def failed(self, address: str) -> None:
        self._failures.take(address)
