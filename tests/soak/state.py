"""What does a soak remember between its parts? One file in its folder, replaced as a whole after each step."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

VERSION: Final = 1
FILE: Final = "state.json"


class SoakError(Exception):
    """A soak that cannot begin or go on, with what to do."""


@dataclass(frozen=True, slots=True)
class Failure:
    """`kind` is lost, doubled, order, sum, ledger or stuck. `text` holds counts and keys, never values of rows."""

    kind: str
    fault: int
    text: str


@dataclass(frozen=True, slots=True)
class Part:
    """One call of the program. `ended` is false as long as it runs, and for one that was killed."""

    commit: str
    began: str
    seconds: float = 0.0
    ended: bool = False


@dataclass(frozen=True, slots=True)
class State:
    """`next_fault` is the number of the fault that comes next, `loaded` whether the targets have been equal once.
    `calm` counts comparisons row by row, `skipped` faults that found nobody to hit."""

    seed: int
    hours: float
    next_fault: int = 0
    loaded: bool = False
    calm: int = 0
    sums_read: int = 0
    records_read: int = 0
    transfers: int = 0
    unknown: int = 0
    faults: Mapping[str, int] = field(default_factory=dict)
    skipped: Mapping[str, int] = field(default_factory=dict)
    failures: tuple[Failure, ...] = ()
    parts: tuple[Part, ...] = ()

    @property
    def seconds(self) -> float:
        return sum(part.seconds for part in self.parts)

    @property
    def finished(self) -> bool:
        return self.seconds >= self.hours * 3600

    def begin(self, commit: str, began: str) -> State:
        return replace(self, parts=(*self.parts, Part(commit, began)))

    def passed(self, seconds: float, *, ended: bool = False) -> State:
        """The running part has taken so many seconds."""
        running = replace(self.parts[-1], seconds=seconds, ended=ended)
        return replace(self, parts=(*self.parts[:-1], running))

    def hit(self, kind: str, *, skipped: bool = False) -> State:
        """The next fault has happened, or was skipped since nobody was there."""
        counts = dict(self.skipped if skipped else self.faults)
        counts[kind] = counts.get(kind, 0) + 1
        return replace(self, next_fault=self.next_fault + 1, **{"skipped" if skipped else "faults": counts})

    def failed(self, kind: str, text: str) -> State:
        return replace(self, failures=(*self.failures, Failure(kind, self.next_fault, text)))


def to_json(state: State) -> dict[str, Any]:
    return {"version": VERSION, **asdict(state)}


def from_json(found: Mapping[str, Any]) -> State:
    """SoakError where it is none, or that of another version."""
    if not isinstance(found, dict) or found.get("version") != VERSION:
        raise SoakError(f"{FILE} is none of this version: choose another SOAK_DIR, or remove it")
    values = {name: value for name, value in found.items() if name != "version"}
    try:
        values["failures"] = tuple(Failure(**one) for one in values["failures"])
        values["parts"] = tuple(Part(**one) for one in values["parts"])
        return State(**values)
    except (KeyError, TypeError) as exc:
        raise SoakError(f"{FILE} cannot be read ({exc}): choose another SOAK_DIR, or remove it") from exc


def load(folder: Path, seed: int | None, hours: float) -> State:
    """Returns the state that the folder has, or that of a new soak. SoakError where the folder has another seed."""
    path = folder / FILE
    if not path.exists():
        return State(1 if seed is None else seed, hours)
    try:
        state = from_json(json.loads(path.read_text()))
    except json.JSONDecodeError as exc:
        raise SoakError(f"{path} cannot be read: choose another SOAK_DIR, or remove it") from exc
    if seed not in (None, state.seed):
        raise SoakError(
            f"{folder} holds a soak of seed {state.seed}, not {seed}: choose another SOAK_DIR, or remove it"
        )
    return replace(state, hours=hours)


def save(folder: Path, state: State) -> None:
    partial = folder / f"{FILE}.partial"
    partial.write_text(json.dumps(to_json(state), indent=1) + "\n")
    partial.replace(folder / FILE)
