"""What a sink task reports of the maintenance of its tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

MAINTENANCE_FAILED: Final = "spark.maintenance_failed"
_SUMS: Final = ("expired_snapshots", "removed_files", "conflicts")


@dataclass(slots=True)
class MaintenanceMetrics:
    """Sums of all runs of the task, and the files of its tables after the last one."""

    runs: int = 0
    seconds: float = 0.0
    sums: Counter[str] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)
    """By the code of the error."""
    last: Mapping[str, Any] = field(default_factory=dict)
    jobs: list[dict[str, Any]] = field(default_factory=list)
    """Runs that somebody has asked for, as they are reported."""

    def add(self, done: Mapping[str, Any]) -> None:
        """Takes what a run has done."""
        self.runs += 1
        self.seconds += done["took_s"]
        self.sums.update({name: done[name] for name in _SUMS})
        self.sums.update({f"rewritten_{name}": number for name, number in done["rewritten"].items()})
        self.sums.update({f"written_{name}": number for name, number in done["written"].items()})
        self.failures.update(done["errors"].values())
        self.last = done

    def failed(self, code: str) -> None:
        """Takes a run that has ended by an error."""
        self.failures[code] += 1

    def numbers(self) -> dict[str, Any]:
        """Returns what the task reports; nothing before anything has happened."""
        out: dict[str, Any] = {"jobs": self.jobs} if self.jobs else {}
        if self.failures:
            out["maintenance_failures"] = dict(self.failures)
        if not self.runs:
            return out
        tables = self.last["tables"]
        return {
            **out,
            "maintenance_runs": self.runs,
            "maintenance_s": round(self.seconds, 3),
            **{f"maintenance_{name}": self.sums[name] for name in (*_SUMS, "rewritten_files", "rewritten_bytes")},
            "table_files": {name: size["files"] for name, size in tables.items()},
            "table_file_bytes": {name: size["bytes"] for name, size in tables.items()},
            "table_delete_files": {name: size["deletes"] for name, size in tables.items()},
            "maintenance": {name: value for name, value in self.last.items() if name != "tables"},
        }
