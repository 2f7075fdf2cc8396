"""States as commands name them, of the cluster's picture."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any


def worker_state(worker: Mapping[str, Any]) -> str:
    return "gone" if not worker["alive"] else "draining" if worker["draining"] else "alive"


def task_states(cluster: Mapping[str, Any]) -> dict[str, int]:
    """How many tasks there are of each state."""
    return dict(Counter(task["state"] for task in cluster["tasks"]))


def in_states(states: Mapping[str, int]) -> str:
    return ", ".join(f"{number} {state}" for state, number in sorted(states.items())) or "none"
