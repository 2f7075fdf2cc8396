"""What a comparison has found: per table, and as the JSON that people and machines read."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from cdcworker.connectors.verify.convergence import SuspectKey, differing_columns
from cdcworker.connectors.verify.databases import MODULUS, SpanSum
from cdcworker.connectors.verify.plan import ComparisonPlan, Key

Verdict = Literal["equal", "different", "undecided", "impossible"]
SHOWN_MAX: Final = 100
"""Differing keys that are told of one by one, for each table."""
KEPT_MAX: Final = 10_000
"""Differing keys of one table that are kept for a repair; the next two hold for one comparison. # INV-10"""
ROWS_MAX: Final = 50_000
CHARS_MAX: Final = 4 << 20
KINDS: Final = ("missing", "extra", "different", "duplicate")


@dataclass(frozen=True, slots=True)
class FoundDifference:
    """A difference of one key as it is reported."""

    key: Key
    kind: str
    columns: tuple[str, ...] = ()


@dataclass(slots=True)
class KeyRoom:
    """The room that the keys of differing rows still have in one comparison. What does not fit is found again by the next one."""

    rows: int = ROWS_MAX
    chars: int = CHARS_MAX

    def take(self, key: Key) -> bool:
        """Returns whether there was room for the key, which is counted then."""
        chars = sum(len(part or "") for part in key)
        if not self.rows or chars > self.chars:
            return False
        self.rows, self.chars = self.rows - 1, self.chars - chars
        return True


@dataclass(slots=True)
class TableVerdict:
    plan: ComparisonPlan
    reason: str = ""
    """Why it could not be compared, or not to the end."""
    done: bool = False
    is_full: bool = False
    """Too many differences: not every one has been looked at."""
    undecided: int = 0
    source_rows: int = 0
    target_rows: int = 0
    source_sum: int = 0
    target_sum: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    found: list[FoundDifference] = field(default_factory=list)
    kept: Collection[str] = ()
    """Kinds of differences whose keys are kept for a repair, as far as there is room."""
    room: KeyRoom = field(default_factory=KeyRoom)
    keys: list[tuple[str, Key]] = field(default_factory=list)
    """Kind and key of each."""
    left_keys: int = 0
    """Differences of these kinds for which there was no room."""

    def fold(self, source: Mapping[int, SpanSum], target: Mapping[int, SpanSum]) -> None:
        self.source_rows += sum(part.rows for part in source.values())
        self.target_rows += sum(part.rows for part in target.values())
        self.source_sum = (self.source_sum + sum(part.hash for part in source.values())) % MODULUS
        self.target_sum = (self.target_sum + sum(part.hash for part in target.values())) % MODULUS

    def report(self, key: Key, suspect: SuspectKey) -> None:
        self.counts[suspect.kind] += 1
        if suspect.kind in self.kept:
            self._keep(suspect.kind, key)
        if len(self.found) < SHOWN_MAX:
            names = tuple(item.name for item in self.plan.columns)
            self.found.append(
                FoundDifference(key, suspect.kind, differing_columns(suspect.source, suspect.target, names))
            )

    def _keep(self, kind: str, key: Key) -> None:
        if len(self.keys) < KEPT_MAX and self.room.take(key):
            self.keys.append((kind, key))
        else:
            self.left_keys += 1

    @property
    def differences(self) -> int:
        return sum(self.counts.values())

    @property
    def verdict(self) -> Verdict:
        if self.plan.is_held:
            return "impossible"
        if self.differences or self.plan.lacking:
            return "different"
        if self.plan.target is None:
            return "different" if self.plan.source.rows else "equal"
        if self.reason:
            return "impossible"
        return "undecided" if self.undecided or self.is_full else "equal"


@dataclass(slots=True)
class Tally:
    """The whole comparison as far as it has come."""

    tables: list[TableVerdict] = field(default_factory=list)
    rows_read: int = 0
    position: int = 0
    notes: list[str] = field(default_factory=list)

    @property
    def verdict(self) -> Verdict:
        found = {state.verdict for state in self.tables}
        for verdict in ("different", "undecided", "impossible"):
            if verdict in found:
                return verdict
        return "equal" if found else "impossible"

    @property
    def progress(self) -> dict[str, int]:
        expected = sum(state.plan.source.rows for state in self.tables if not state.plan.reason)
        done = sum(state.done for state in self.tables)
        # Every row is read on both sides.
        return {"tables": len(self.tables), "tables_done": done, "rows": self.rows_read // 2, "rows_expected": expected}


def result(tally: Tally, salt: bytes, position_text: Callable[[int], str] = str) -> dict[str, Any]:
    """Returns the result of a comparison without keys: each is a salted hash that means something within this result only.
    `position_text` writes a position as the source's database does."""
    return {
        "verdict": tally.verdict,
        "position": position_text(tally.position),
        "differences": sum(state.differences for state in tally.tables),
        "undecided": sum(state.undecided for state in tally.tables),
        "notes": tally.notes,
        "tables": [_table(state, salt) for state in tally.tables],
    }


def _table(state: TableVerdict, salt: bytes) -> dict[str, Any]:
    return {
        "table": state.plan.name,
        "verdict": state.verdict,
        "reason": state.reason or None,
        "rows": {"source": state.source_rows, "warehouse": state.target_rows},
        "checksum": {"source": f"{state.source_sum:016x}", "warehouse": f"{state.target_sum:016x}"},
        "differences": {kind: state.counts[kind] for kind in KINDS},
        "complete": not state.is_full,
        "undecided": state.undecided,
        "columns": len(state.plan.columns),
        "missing_columns": list(state.plan.lacking),
        "left_out": [{"column": name, "why": why} for name, why in state.plan.left_out],
        "found": [
            {"key": hashed(found.key, salt), "kind": found.kind, "columns": list(found.columns)}
            for found in state.found
        ],
    }


def keys(tally: Tally, salt: bytes) -> dict[str, list[str | None]]:
    """Hash → key: row values, which only leave the process that compared when somebody asks for them."""
    return {hashed(found.key, salt): list(found.key) for state in tally.tables for found in state.found}


def hashed(key: Key, salt: bytes) -> str:
    text = "".join("~" if part is None else f"{len(part)}:{part}" for part in key)
    return hashlib.blake2b(text.encode(), key=salt, digest_size=8).hexdigest()
