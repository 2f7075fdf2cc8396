"""Which fault comes when? The seed and a fault's number decide, so that a later part goes on where an earlier one ended."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

T = TypeVar("T")

KINDS: Final = (
    "kill source task",
    "pause source task",
    "kill sink task",
    "pause sink task",
    "kill Spark JVM",
    "pause Spark JVM",
    "kill worker",
    "kill worker tree",
    "pause worker",
    "pause worker tree",
    "pause worker past the session",
    "pause worker tree past the session",
    "wake tasks before their worker",
    "kill leader",
    "pause leader",
    "pause leader past the session",
    "kill fork server",
    "pause fork server",
    "drain worker",
    "rolling restart",
    "kill Kafka",
    "pause Kafka",
    "kill PostgreSQL",
    "terminate walsender",
    "kill MariaDB",
    "kill dump connection",
    "restart connector",
    "pause connector",
    "stop connector",
    "change config",
    "snapshot",
)
"""Each comes once in a round of as many faults, in an order of the round's own."""
CALM_EVERY: Final = 10
"""After so many faults source and targets are compared row by row."""
WAIT_S: Final = (3.0, 12.0)
HOLD_S: Final = (0.5, 5.0)


@dataclass(frozen=True, slots=True)
class Fault:
    """`wait_s` passes before it and `hold_s` is how long it lasts. `draw`, from 0 to below 1, chooses who is hit."""

    number: int
    kind: str
    wait_s: float
    hold_s: float
    draw: float

    @property
    def ends_in_calm(self) -> bool:
        return self.number % CALM_EVERY == CALM_EVERY - 1

    def one_of(self, choices: Sequence[T]) -> T:
        """Returns the choice that is hit. ValueError where there is none."""
        if not choices:
            raise ValueError(f"nobody to hit: {self.kind}")
        return choices[int(self.draw * len(choices))]


def fault(seed: int, number: int) -> Fault:
    """Returns the fault of a number, from 0 on."""
    round_, place = divmod(number, len(KINDS))
    order = list(KINDS)
    random.Random(f"{seed} round {round_}").shuffle(order)
    own = random.Random(f"{seed} fault {number}")
    return Fault(number, order[place], own.uniform(*WAIT_S), own.uniform(*HOLD_S), own.random())
