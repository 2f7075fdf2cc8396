"""Tables that are held back: one that cannot be handed on stops, all others go on.

A held table counts as not captured, so it leaves the publication that is ours, and its rows are read anew when it comes
back: its first record then is a truncate, so that consumers start it again. It comes back when the connector's config
is changed, or when a snapshot of it is asked for.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from cdcworker.connectors.postgres.config import Settings
from cdcworker.connectors.postgres.errors import SCHEMA_PAUSED
from cdcworker.schemas.change import JsonObject
from cdcworker.schemas.errors import CdcError

log = logging.getLogger(__name__)

SNAPSHOT_JOB = "snapshot"
Jobs = Callable[[], Iterable[Mapping[str, Any]]]


def may_hold(settings: Settings, error: CdcError) -> bool:
    """Whether the config lets the table that an error names be held back."""
    if error.code == SCHEMA_PAUSED:
        return True
    return error.kind == "data" and settings.raw["table.failure.policy"] == "quarantine"


class Quarantine:
    """`held`: by full table name, why and since when; a part of the stored position."""

    def __init__(self, stored: JsonObject | None, settings: Settings, jobs: Jobs) -> None:
        self.held: dict[str, JsonObject] = {str(name): dict(why) for name, why in (stored or {}).items()}
        self.changed = False
        self.lifted: list[str] = []
        """Tables that came back with this start."""
        self._config = digest(settings.raw)
        self._jobs = jobs

    def hold(self, troubles: Mapping[str, CdcError]) -> None:
        for table, error in troubles.items():
            why = {"code": error.code, "message": error.message, "since_ms": time.time_ns() // 1_000_000}
            if "lsn" in error.where:
                why["lsn"] = error.where["lsn"]
            seen = sorted(str(job["id"]) for job in self._asked(table))
            self.held[table] = {**why, "config": self._config, "jobs": seen}
            self.changed = True
            log.warning("table is held back table=%s error=%s", table, error)

    def lift(self) -> None:
        """At a start: whatever has a reason to be tried again."""
        for table in [table for table in self.held if self._wanted(table)]:
            del self.held[table]
            self.lifted.append(table)
            self.changed = True
            log.info("table comes back and is read anew table=%s", table)

    @property
    def due(self) -> bool:
        """Something asks for a held table: a new start lifts it."""
        return any(self._wanted(table) for table in self.held)

    def _wanted(self, table: str) -> bool:
        why = self.held[table]
        return why.get("config") != self._config or any(job["id"] not in why["jobs"] for job in self._asked(table))

    def _asked(self, table: str) -> list[Mapping[str, Any]]:
        """Snapshots that name this table."""
        return [
            job
            for job in self._jobs()
            if job.get("kind") == SNAPSHOT_JOB
            and any(re.fullmatch(pattern, table, re.I) for pattern in job.get("spec", {}).get("tables", ()))
        ]

    def applied(self, settings: Settings) -> Settings:
        """The settings under which held tables are not captured."""
        filters = replace(settings.filters, held=frozenset(self.held))
        return replace(settings, filters=filters)

    def to_json(self) -> JsonObject | None:
        return dict(self.held) or None

    def report(self) -> list[JsonObject]:
        """For the task's numbers: no values, no keys."""
        names = ("code", "message", "since_ms", "lsn")
        return [{"table": table, **{n: why[n] for n in names if n in why}} for table, why in self.held.items()]


def digest(raw: Mapping[str, Any]) -> str:
    """Tells one config from another; of no use to whoever would guess its secrets."""
    plain = {name: value for name, value in raw.items() if isinstance(value, str | int | float | list | None)}
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()[:16]
