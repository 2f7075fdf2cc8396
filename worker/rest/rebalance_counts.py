"""Counts the leader's decisions for the metrics: the log keeps only the last ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from cdcworker.coordinator.model import View


@dataclass
class RebalanceCounts:
    """Tasks that moved while this worker led, by the reason of the move, since it was first scraped."""

    seen: int | None = None
    counts: Counter[str] = field(default_factory=Counter)
    causes: Counter[str] = field(default_factory=Counter)
    """Decisions that moved at least one task, by their cause."""

    def note(self, view: View) -> Mapping[str, int]:
        """Adds the decisions that are new in this view."""
        newest = max((entry.seq for entry in view.state.journal.values()), default=0)
        if self.seen is not None and view.is_leader:
            for entry in view.journal:
                if entry.seq > self.seen:
                    self.counts.update(move.why for move in entry.moves)
                    self.causes[entry.cause] += bool(entry.moves)
        self.seen = newest
        return self.counts
