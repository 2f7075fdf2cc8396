"""Whether held tasks may move so that work is spread evenly: not while a worker has just been lost and may return."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

Member = tuple[str, str]
"""A worker and its boot."""


@dataclass(frozen=True, slots=True)
class Crew:
    """The workers that the leader spread work over last, and since when one of them is missing."""

    members: frozenset[Member] = frozenset()
    short_since: float | None = None


def mustered(crew: Crew, members: Collection[Member], mono: float) -> Crew:
    """The crew of a new decision. Whoever joins makes it complete: it is to get its part at once.

    A new leader does not know who was there before it, and takes somebody to be missing.
    """
    now = frozenset(members)
    if crew.members and now - crew.members:
        return Crew(now)
    return crew if now == crew.members else Crew(now, mono)


def may_level(crew: Crew, delay_s: float, mono: float) -> bool:
    """Whether tasks that nobody lost may be taken from one worker for another."""
    return crew.short_since is None or mono - crew.short_since >= delay_s
