"""Rate limits of clients: token buckets of requests."""

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
"""Seconds by which the answer to a refused request is delayed, so that a client that repeats without pause slows itself
down."""


@lru_cache(maxsize=CLIENTS_MAX)
def client_of(host: str) -> str:
    """Returns what counts as one client: an IPv4 address, or the IPv6 network of 64 bits that one site gets."""
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
class RequestRate:
    """Requests per second in the long run, and at once after a pause."""

    per_second: float
    burst: float


class TokenBuckets:
    """One token bucket for each client; the least recently seen client is forgotten first."""

    def __init__(
        self, rate: RequestRate, clock: Callable[[], float] = time.monotonic, clients_max: int = CLIENTS_MAX
    ) -> None:
        self._rate = rate
        self._clock = clock
        self._clients_max = clients_max
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, client: str) -> bool:
        """Takes one token; returns whether there was one."""
        left = self.left(client)
        fine = left >= 1.0
        self._left[client] = (left - 1.0 if fine else left, self._clock())
        self._left.move_to_end(client)
        while len(self._left) > self._clients_max:
            self._left.popitem(last=False)
        return fine

    def give_back(self, client: str) -> None:
        """Returns one token to the client."""
        self._left[client] = (min(self._rate.burst, self.left(client) + 1.0), self._clock())

    def left(self, client: str) -> float:
        """Returns the tokens that the client has left."""
        if client not in self._left:
            return self._rate.burst
        before, at = self._left[client]
        return min(self._rate.burst, before + (self._clock() - at) * self._rate.per_second)


class RateLimiter:
    """All rate limits. A known caller's requests count for the caller, others for their address; open paths have
    buckets of their own, so that probes get through."""

    def __init__(
        self,
        requests: RequestRate,
        failures: RequestRate = RequestRate(5.0, 20.0),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._requests = TokenBuckets(requests, clock)
        self._open = TokenBuckets(requests, clock)
        self._failures = TokenBuckets(failures, clock)

    def may_ask(self, client: str) -> bool:
        return self._requests.take(client)

    def may_look(self, address: str) -> bool:
        return self._open.take(address)

    def may_guess(self, address: str) -> bool:
        """Returns whether a credential that is not known yet may be checked. It counts from now on as one that was wrong,
        so that guesses at the same time are held to the same number as guesses one after the other."""
        return self._failures.take(address)

    def was_no_guess(self, address: str) -> None:
        """Takes the count back for a credential that was right, or was not checked."""
        self._failures.give_back(address)
