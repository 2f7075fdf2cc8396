"""Tables that are held back: one that cannot be handed on stops, all others go on.

A held table counts as not captured (so it leaves a publication that the source has made), and its rows are read anew when it comes
back: its first record then is a truncate, so that consumers start it again. It comes back when the connector's config
is changed, or when a snapshot of it is asked for.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from cdcworker.connectors.capture.config.filters import TableFilters
from cdcworker.connectors.capture.errors import CaptureErrors
from cdcworker.connectors.snapshot_jobs import REPAIR
from cdcworker.schemas.change import JsonObject
from cdcworker.schemas.errors import CdcError
from cdcworker.schemas.patterns import matches_any

log = logging.getLogger(__name__)

SNAPSHOT_JOB = "snapshot"
PLACE = "lsn"
"""The member of an error's place, and of what is stored of a held table, that names the position in the source's log."""
Jobs = Callable[[], Iterable[Mapping[str, Any]]]


def may_hold(raw: Mapping[str, Any], error: CdcError, errors: CaptureErrors) -> bool:
    """Returns whether a parsed configuration lets the table that an error names be held back."""
    if error.code == errors.schema_paused:
        return True
    return error.kind == "data" and raw["table.failure.policy"] == "quarantine"


class TableQuarantine:
    """`held`: by full table name, why and since when; a part of the stored position."""

    def __init__(self, stored: JsonObject | None, raw: Mapping[str, Any], jobs: Jobs) -> None:
        self.held: dict[str, JsonObject] = {str(name): dict(why) for name, why in (stored or {}).items()}
        self.changed = False
        self.lifted: list[str] = []
        """Tables that came back with this start."""
        self._config = digest(raw)
        self._jobs = jobs

    def hold(self, tables: Mapping[str, CdcError]) -> None:
        """Holds these tables back, each for its error."""
        for table, error in tables.items():
            why = {"code": error.code, "message": error.message, "since_ms": time.time_ns() // 1_000_000}
            if PLACE in error.where:
                why[PLACE] = error.where[PLACE]
            seen = sorted(str(job["id"]) for job in self._asked(table))
            self.held[table] = {**why, "config": self._config, "jobs": seen}
            self.changed = True
            log.warning("table is held back table=%s error=%s", table, error)

    def lift(self) -> None:
        """Called at a start. Releases the tables that have a reason to be tried again."""
        for table in [table for table in self.held if self._wanted(table)]:
            del self.held[table]
            self.lifted.append(table)
            self.changed = True
            log.info("table comes back and is read anew table=%s", table)

    @property
    def due(self) -> bool:
        """Returns whether a held table is asked for: the next start releases it."""
        return any(self._wanted(table) for table in self.held)

    def _wanted(self, table: str) -> bool:
        why = self.held[table]
        return why.get("config") != self._config or any(job["id"] not in why["jobs"] for job in self._asked(table))

    def _asked(self, table: str) -> list[Mapping[str, Any]]:
        """Snapshots that name this table. A repair reads some of its rows only, and its names are no patterns; a request that is
        cancelled asks for nothing any more."""
        return [
            job
            for job in self._jobs()
            if job.get("kind") == SNAPSHOT_JOB
            and job.get("wanted") != "CANCELLED"
            and REPAIR not in job.get("spec", {})
            and matches_any(job.get("spec", {}).get("tables", ()), table, ignore_case=True)
        ]

    def applied(self, filters: TableFilters) -> TableFilters:
        """The filters under which held tables are not captured."""
        return replace(filters, held=frozenset(self.held))

    def to_json(self) -> JsonObject | None:
        return dict(self.held) or None

    def report(self) -> list[JsonObject]:
        """Returns the held tables for the task's report: no values and no keys of rows."""
        names = ("code", "message", "since_ms", PLACE)
        return [{"table": table, **{n: why[n] for n in names if n in why}} for table, why in self.held.items()]


def digest(raw: Mapping[str, Any]) -> str:
    """Returns a hash by which a changed config is noticed. Secrets are no part of it, so that it helps nobody to guess them."""
    plain = {name: value for name, value in raw.items() if isinstance(value, str | int | float | list | None)}
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()[:16]
