"""What has each client committed? It notes a transfer before it begins and how it ended; the source settles what is unknown."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal

Outcome = Literal["ok", "fail", "unknown"]
LINES_MAX: Final = 5_000


@dataclass(frozen=True, slots=True)
class Transfer:
    """`amount` goes from one account to another. `id` is the client's own."""

    id: str
    source: int
    target: int
    amount: int


@dataclass(frozen=True, slots=True)
class Ledger:
    """`moved` is by how much the balance of each account has changed by committed transfers. `open` is the transfer
    whose end is not known."""

    invoked: int = 0
    ok: int = 0
    failed: int = 0
    unknown: int = 0
    open: Transfer | None = None
    moved: Mapping[int, int] = field(default_factory=dict)

    def invoke(self, transfer: Transfer) -> Ledger:
        """ValueError while the end of another is unknown: it has to be settled first."""
        if self.open is not None:
            raise ValueError(f"the end of transfer {self.open.id} is not known")
        return replace(self, invoked=self.invoked + 1, open=transfer)

    def end(self, outcome: Outcome) -> Ledger:
        """Notes how the open transfer ended. One whose end is unknown stays open."""
        if self.open is None:
            raise ValueError("no transfer is open")
        if outcome == "unknown":
            return replace(self, unknown=self.unknown + 1)
        if outcome == "fail":
            return replace(self, failed=self.failed + 1, open=None)
        moved, one = dict(self.moved), self.open
        moved[one.source] = moved.get(one.source, 0) - one.amount
        moved[one.target] = moved.get(one.target, 0) + one.amount
        return replace(self, ok=self.ok + 1, open=None, moved=moved)

    def settle(self, committed: bool) -> Ledger:
        """Notes what the source says of the open transfer."""
        return self.end("ok" if committed else "fail")


def to_json(ledger: Ledger) -> dict[str, Any]:
    return {**asdict(ledger), "moved": {str(account): moved for account, moved in ledger.moved.items()}}


def from_json(found: Mapping[str, Any]) -> Ledger:
    one = found["open"]
    moved = {int(account): int(amount) for account, amount in found["moved"].items()}
    return Ledger(**{**found, "open": Transfer(**one) if one else None, "moved": moved})


def replay(lines: Iterable[str]) -> Ledger:
    """Returns the ledger that the lines of its file make. A last line that was cut off had no consequence yet: a transfer
    begins after its line, and one without an end is settled."""
    ledger = Ledger()
    for line in lines:
        if not line.endswith("\n"):
            break
        event = json.loads(line)
        if "ledger" in event:
            ledger = from_json(event["ledger"])
        elif "invoke" in event:
            ledger = ledger.invoke(Transfer(*event["invoke"]))
        else:
            ledger = ledger.end(event["end"])
    return ledger


class LedgerFile:
    """A ledger whose every step is in a file before it counts. It outlives the process."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self.ledger = replay(path.read_text().splitlines(keepends=True)) if path.exists() else Ledger()
        self._shorten()

    def invoke(self, transfer: Transfer) -> None:
        self.ledger = self.ledger.invoke(transfer)
        self._append({"invoke": [transfer.id, transfer.source, transfer.target, transfer.amount]})

    def end(self, outcome: Outcome) -> None:
        self.ledger = self.ledger.end(outcome)
        self._append({"end": outcome})

    def settle(self, committed: bool) -> None:
        self.end("ok" if committed else "fail")

    def close(self) -> None:
        self._file.close()

    def _append(self, event: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(event) + "\n")
        self._file.flush()
        self._lines += 1
        if self._lines > LINES_MAX:
            self._file.close()
            self._shorten()

    def _shorten(self) -> None:
        """Makes one line of all, by a file that takes the place of the old one."""
        partial = self._path.with_suffix(".partial")
        partial.write_text(json.dumps({"ledger": to_json(self.ledger)}) + "\n")
        partial.replace(self._path)
        self._file = self._path.open("a")
        self._lines = 1
