"""Messages that wait for the server's confirm, by the numbers by which it counts them."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any, NamedTuple


class Message(NamedTuple):
    id: str
    order: Hashable
    """Two messages of which this is the same come in their order; None: the order does not matter."""
    exchange: str
    routing_key: str
    content: Any
    """Body and properties, as the client's library has them."""


class Confirms:
    """What was published on one channel and has no answer yet, and what was answered."""

    def __init__(self, taken: set[str], *, retries_unroutable: bool = False) -> None:
        """`taken` gets the ids of messages that the server has taken. `retries_unroutable`: those that no queue takes come again."""
        self._taken, self._retries = taken, retries_unroutable
        self._last = 0
        self._waiting: dict[int, Message] = {}
        self._orders: set[Hashable] = set()
        self._held_back: set[Hashable] = set()
        self._returned: set[str] = set()
        self.unroutable: list[str] = []
        """Ids of messages that no queue takes."""
        self.not_taken = 0
        """How many the server has not taken, for a reason that may pass, or has not got since one before them was not taken."""

    def __len__(self) -> int:
        return len(self._waiting)

    def begin(self, taken: set[str]) -> None:
        """Begins with another batch, while nothing waits."""
        self._taken, self.unroutable, self.not_taken = taken, [], 0
        self._waiting, self._orders, self._returned, self._held_back = {}, set(), set(), set()

    def holds(self, order: Hashable) -> bool:
        """Returns whether a message of the same order waits."""
        return order is not None and order in self._orders

    def holds_back(self, message: Message) -> bool:
        """Returns whether a message is to come again with one before it that was not taken; it counts as not taken then."""
        is_behind = message.order is not None and message.order in self._held_back
        self.not_taken += is_behind
        return is_behind

    def sent(self, message: Message) -> None:
        """Takes note of the next message of the channel."""
        self._last += 1
        self._waiting[self._last] = message
        self._orders.add(message.order)

    def returned(self, id: str) -> None:
        """Takes note that no queue takes a message; the server confirms it all the same, behind that."""
        self._returned.add(id)

    def confirmed(self, number: int, *, multiple: bool) -> None:
        for message in self._answered(number, multiple):
            if message.id in self._returned:
                self.unroutable.append(message.id)
                if self._retries:
                    self._held_back.add(message.order)
            else:
                self._taken.add(message.id)

    def refused(self, number: int, *, multiple: bool) -> None:
        for message in self._answered(number, multiple):
            self.not_taken += 1
            self._held_back.add(message.order)

    def _answered(self, number: int, multiple: bool) -> Iterator[Message]:
        """Yields the message of a number, or all of which it is the last."""
        numbers = [number]
        if multiple:
            # They stand in the order of their numbers.
            numbers = []
            for each in self._waiting:
                if each > number > 0:
                    break
                numbers.append(each)
        for each in numbers:
            message = self._waiting.pop(each, None)
            if message is not None:
                self._orders.discard(message.order)
                yield message
