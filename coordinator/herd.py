"""The herd core: one pure function from (state, event, now) to (state, commands)."""

from __future__ import annotations

from dataclasses import dataclass

from cdcworker.coordinator.events import Event, HerdCommand, Now
from cdcworker.coordinator.model import Presence, View


@dataclass(frozen=True, slots=True)
class HerdSettings:
    """Times of the herd, in seconds; all but `session_timeout_s` follow from the defaults of the design."""

    session_timeout_s: float = 10.0


@dataclass(frozen=True, slots=True)
class HerdState:
    """Everything one worker knows. Opaque to the driver: it only hands it back, and reads `view`."""

    me: Presence
    settings: HerdSettings


def initial(me: Presence, settings: HerdSettings | None = None) -> HerdState:
    """The state of a worker that has read nothing yet. `me` carries a boot id that is new for this process."""
    return HerdState(me, settings or HerdSettings())


def step(state: HerdState, event: Event, now: Now) -> tuple[HerdState, tuple[HerdCommand, ...]]:
    """Take one event. Driver's order at start: ConfigRecords(replay), StatusRecords, Started, then events as they come."""
    raise NotImplementedError


def view(state: HerdState, now: Now, kafka_cluster_id: str = "") -> View:
    """The cluster as this worker knows it."""
    raise NotImplementedError
