"""What a metric is: its name, its kind and its labels, and which of the numbers that a task reports it shows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

Kind = Literal["gauge", "counter", "histogram"]


@dataclass(frozen=True, slots=True)
class Metric:
    """`key` names the number among those that a task reports; empty: computed from the worker's picture.

    Counters stand here without the `_total` that Prometheus' text has at their end.
    """

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    key: str = ""
    scale: float = 1.0

    @property
    def shown(self) -> str:
        return f"{self.name}_total" if self.kind == "counter" else self.name


TASK: Final = ("connector", "task")
"""The labels of a metric of a task."""
