"""The comparison: ranges by checksums in passes, what differs taken apart down to keys, and keys judged over rounds."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from cdcworker.connectors.verify.convergence import SuspectKey
from cdcworker.connectors.verify.databases import (
    ComparedSide,
    KeyState,
    LedgerGoal,
    SourceSide,
    SpanSum,
    TableFailed,
    TargetSide,
    VerifyLimits,
)
from cdcworker.connectors.verify.errors import TIMEOUT
from cdcworker.connectors.verify.plan import ComparisonPlan, Key
from cdcworker.connectors.verify.report import KeyRoom, TableVerdict, Tally
from cdcworker.connectors.verify.sql import KeySpan
from cdcworker.schemas.errors import CdcError

PASS_S: Final = 10.0
"""How long a snapshot of the source is held: as long it keeps vacuum from its work."""
PASS_SPANS: Final = 200
ROUNDS: Final = 12
COARSE_MAX: Final = 4096
SUSPECTS_MAX: Final = 10_000
"""Differences of one table; with so many it is not looked at row by row any further."""
LISTED_TIMES: Final = 10
"""For each of them so many rows are held in memory at once."""
CATCH_UP_S: Final = 180.0
NOTHING: Final = SpanSum(0, 0)


@dataclass(slots=True)
class ComparedSpan:
    """A span of one table with what the two sides show of it."""

    state: TableVerdict
    span: KeySpan
    chosen: Sequence[int] | None = None
    source: Mapping[int, SpanSum] = field(default_factory=dict)
    target: Mapping[int, SpanSum] = field(default_factory=dict)

    @property
    def differing(self) -> list[int]:
        parts = sorted({*self.source, *self.target})
        return [part for part in parts if self.source.get(part, NOTHING) != self.target.get(part, NOTHING)]


@dataclass
class CompareSettings:
    limits: VerifyLimits = field(default_factory=VerifyLimits)
    rounds: int = ROUNDS
    timeout_s: float = 3600.0
    catch_up_s: float = CATCH_UP_S
    kept: Callable[[ComparisonPlan], Collection[str]] = lambda plan: ()
    """Tells of a table the kinds of differences whose keys are kept for a repair."""
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


class Comparison:
    """`goal` makes of a position of the source what the warehouse has to have reached; it waits until it is known."""

    def __init__(
        self,
        source: SourceSide,
        target: TargetSide,
        goal: Callable[[int, float], LedgerGoal],
        settings: CompareSettings,
        progress: Callable[[Tally], None] = lambda _: None,
    ) -> None:
        self._source = source
        self._target = target
        self._goal = goal
        self._settings = settings
        self._progress = progress
        self.tally = Tally()
        self._end = settings.clock() + settings.timeout_s

    def run(self, plans: Sequence[ComparisonPlan]) -> Tally:
        room, kept = KeyRoom(), self._settings.kept
        self.tally.tables = [TableVerdict(plan, reason=plan.reason, kept=kept(plan), room=room) for plan in plans]
        units = self._units()
        while (passed := self._pass(units)) is not None:
            differing = [unit for unit in passed if unit.differing]
            for group in grouped(differing):
                self._descend(group)
            for unit in passed:
                unit.state.fold(unit.source, unit.target)
            self._progress(self.tally)
        return self.tally

    # -- ranges -------------------------------------------------------------------------------------------------------

    def _units(self) -> Iterator[ComparedSpan]:
        """Every span of every table; bounds are read in whatever snapshot of the source is open."""
        for state in self.tally.tables:
            if state.reason:
                state.done = True
                continue
            yield from self._ordered(state) if state.plan.is_ordered else self._hashed(state)
            state.done = True

    def _ordered(self, state: TableVerdict) -> Iterator[ComparedSpan]:
        low: Key | None = None
        while not state.reason:
            try:
                high = self._source.bound(state.plan, low, self._settings.limits.range_rows)
            except TableFailed as failed:
                state.reason = str(failed)
                return
            yield ComparedSpan(state, KeySpan(low, high))
            if high is None:
                return
            low = high

    def _hashed(self, state: TableVerdict) -> Iterator[ComparedSpan]:
        parts = -(-max(1, state.plan.source.rows) // self._settings.limits.range_rows)
        yield ComparedSpan(state, KeySpan(coarse=min(COARSE_MAX, parts)))

    def _pass(self, units: Iterator[ComparedSpan]) -> list[ComparedSpan] | None:
        """Compares as many spans as fit into one snapshot of the source with the same spans of the warehouse. Returns
        None when all are done."""
        began, position, taken = self._settings.clock(), self._source.begin(), list[ComparedSpan]()
        try:
            for unit in units:
                self._read(self._source, unit, "source")
                taken.append(unit)
                self._progress(self.tally)
                if len(taken) >= PASS_SPANS or self._settings.clock() - began > PASS_S:
                    break
        finally:
            self._source.end()
        if not taken:
            return None
        self._read_target(taken, position)
        return [unit for unit in taken if not unit.state.reason]

    def _read_target(self, units: Sequence[ComparedSpan], position: int) -> None:
        self._enter(position)
        try:
            for unit in units:
                self._read(self._target, unit, "target")
        finally:
            self._target.end()

    def _enter(self, position: int) -> None:
        self.tally.position = max(self.tally.position, position)
        deadline = min(self._end, self._settings.clock() + self._settings.catch_up_s)
        self._target.begin(self._goal(position, deadline), deadline)

    def _read(self, side: ComparedSide, unit: ComparedSpan, name: str) -> None:
        if unit.state.reason:
            return
        began = self._settings.clock()
        try:
            found = side.sums(unit.state.plan, unit.span, unit.chosen)
        except TableFailed as failed:
            unit.state.reason = str(failed)
            return
        setattr(unit, name, found)
        self._spent(sum(part.rows for part in found.values()), began)

    def _spent(self, rows: int, began: float) -> None:
        """Rows of either side count; whoever is faster than the limit waits."""
        self.tally.rows_read += rows
        rate, now = self._settings.limits.rows_per_s, self._settings.clock()
        if now > self._end:
            raise CdcError(TIMEOUT, f"not compared within {self._settings.timeout_s:g} s")
        if rate and rows / rate > now - began:
            self._settings.sleep(rows / rate - (now - began))

    # -- keys ---------------------------------------------------------------------------------------------------------

    def _descend(self, differing: Sequence[ComparedSpan]) -> None:
        """Goes from spans to finer parts of them, to keys, and to a verdict on each."""
        for unit in differing:
            unit.state.is_full |= unit.state.differences >= SUSPECTS_MAX
        finer = [ComparedSpan(unit.state, unit.span, unit.differing) for unit in differing if not unit.state.is_full]
        if not finer:
            return
        position = self._source.begin()
        try:
            for unit in finer:
                self._read(self._source, unit, "source")
        finally:
            self._source.end()
        self._read_target(finer, position)
        suspects = self._suspects([unit for unit in finer if unit.differing and not unit.state.reason])
        for _ in range(self._settings.rounds):
            if not suspects:
                return
            suspects = self._round(suspects)
            self._progress(self.tally)
        for state, keys in suspects:
            state.undecided += len(keys)

    def _suspects(self, units: Sequence[ComparedSpan]) -> list[tuple[TableVerdict, dict[Key, SuspectKey]]]:
        chosen = [(unit, _affordable(unit)) for unit in units]
        if not chosen:
            # The warehouse has come along since the look before: nobody waits for it once more.
            return []
        position = self._source.begin()
        try:
            left = [self._rows(self._source, unit, parts) for unit, parts in chosen]
        finally:
            self._source.end()
        self._enter(position)
        try:
            right = [self._rows(self._target, unit, parts) for unit, parts in chosen]
        finally:
            self._target.end()
        out: dict[int, tuple[TableVerdict, dict[Key, SuspectKey]]] = {}
        for (unit, _), ours, theirs in zip(chosen, left, right, strict=True):
            if unit.state.reason:
                continue
            found = {key: SuspectKey(ours.get(key), theirs.get(key)) for key in {*ours, *theirs}}
            known = out.setdefault(id(unit.state), (unit.state, {}))[1]
            known.update((key, suspect) for key, suspect in found.items() if not suspect.is_equal)
        return [entry for entry in out.values() if entry[1]]

    def _rows(self, side: ComparedSide, unit: ComparedSpan, parts: Sequence[int]) -> Mapping[Key, KeyState]:
        if unit.state.reason or not parts:
            return {}
        began = self._settings.clock()
        try:
            found = side.rows(unit.state.plan, unit.span, parts)
        except TableFailed as failed:
            unit.state.reason = str(failed)
            return {}
        self._spent(len(found), began)
        return found

    def _round(
        self, suspects: Sequence[tuple[TableVerdict, dict[Key, SuspectKey]]]
    ) -> list[tuple[TableVerdict, dict[Key, SuspectKey]]]:
        """Compares the suspects again and returns those that still differ."""
        position = self._source.begin()
        try:
            for state, keys in suspects:
                for key, row in self._looked_up(self._source, state, list(keys)):
                    if keys[key].see_source(row):
                        state.report(key, keys.pop(key))
        finally:
            self._source.end()
        left = [(state, keys) for state, keys in suspects if keys and not state.reason]
        if not left:
            return []
        self._enter(position)
        try:
            for state, keys in left:
                for key, row in self._looked_up(self._target, state, list(keys)):
                    if keys[key].see_target(row):
                        del keys[key]
        finally:
            self._target.end()
        return [(state, keys) for state, keys in left if keys and not state.reason]

    def _looked_up(
        self, side: ComparedSide, state: TableVerdict, keys: Sequence[Key]
    ) -> Iterator[tuple[Key, KeyState | None]]:
        for at in range(0, len(keys), side.keys_at_once):
            part = keys[at : at + side.keys_at_once]
            began = self._settings.clock()
            try:
                found = side.rows_of(state.plan, part)
            except TableFailed as failed:
                state.reason = str(failed)
                return
            self._spent(len(part), began)
            yield from ((key, found.get(key)) for key in part)


def _affordable(unit: ComparedSpan) -> list[int]:
    """The differing parts of a span, as far as their rows may be held at once; the rest only counts."""
    out, rows = list[int](), 0
    for part in unit.differing:
        rows += max(unit.source.get(part, NOTHING).rows, unit.target.get(part, NOTHING).rows)
        if out and rows > LISTED_TIMES * SUSPECTS_MAX:
            unit.state.is_full = True
            break
        out.append(part)
    return out


def grouped(units: Sequence[ComparedSpan]) -> Iterator[list[ComparedSpan]]:
    """So many at a time as may be held at once: what moves makes whole spans differ that are equal in the end."""
    group, rows = list[ComparedSpan](), 0
    for unit in units:
        size = max(sum(part.rows for part in side.values()) for side in (unit.source, unit.target))
        if group and rows + size > LISTED_TIMES * SUSPECTS_MAX:
            yield group
            group, rows = [], 0
        group.append(unit)
        rows += size
    if group:
        yield group
