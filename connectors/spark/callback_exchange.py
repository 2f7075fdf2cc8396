"""Hands the batches of Spark's callback thread to the thread that asks for them."""

from __future__ import annotations

import threading
from typing import Generic, TypeVar

Item = TypeVar("Item")


class CallbackExchange(Generic[Item]):
    """Passes one item at a time between two threads. Whoever puts it waits until it has been taken and the next one is asked
    for: until then Spark, which waits for its callback, reads no further batch."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._item: Item | None = None
        self._is_taken = False
        self._is_closed = False

    def put(self, item: Item) -> None:
        """Offers the item and waits until the next one is asked for, or the exchange is closed."""
        with self._changed:
            self._item = item
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._is_closed or (self._item is None and not self._is_taken))

    def take(self, timeout_s: float) -> Item | None:
        """Lets the callback that brought the last item return, and returns the next item; None when there is none in time."""
        with self._changed:
            self._is_taken = False
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._is_closed or self._item is not None, timeout_s)
            item, self._item = self._item, None
            self._is_taken = item is not None
            return None if self._is_closed else item

    def close(self) -> None:
        """Lets everybody go; an item that nobody has taken is dropped."""
        with self._changed:
            self._is_closed, self._item = True, None
            self._changed.notify_all()
