"""One data message as an observer of the stream sees it."""

from __future__ import annotations

from typing import Protocol

from cdcworker.connectors.postgres.relations import Plan
from cdcworker.schemas.change import Op, Row


class Observer(Protocol):
    """Sees every event of a captured table while a snapshot is under way; may say that one is to be left out."""

    def began(self, xid: int) -> None: ...

    def event(self, plan: Plan, event: Event) -> bool: ...

    def reshaped(self, plan: Plan) -> None: ...


class Event:
    """One data message for the observer."""

    __slots__ = ("after", "before", "data", "emitted", "key_changed", "op", "same", "unchanged")

    def __init__(self, op: Op, data: bytes) -> None:
        self.op = op
        self.data = data
        self.before: Row | None = None
        self.after: Row | None = None
        self.unchanged: tuple[int, ...] = ()
        self.key_changed = False
        self.same = False
        self.emitted = True
