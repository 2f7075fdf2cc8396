"""The doctor's table for a source of MySQL or MariaDB: its server, and what each task has stored."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

from cdcworker.connectors.checks import CheckResult, DoctorCheck, ExaminedTarget, Repair, ok
from cdcworker.connectors.mysql import errors as e
from cdcworker.connectors.mysql.config.settings import MySqlSettings
from cdcworker.connectors.mysql.doctor import checks
from cdcworker.connectors.mysql.server.examined_server import ExaminedServer
from cdcworker.connectors.mysql.server.steady_connection import SteadyConnection, translated
from cdcworker.connectors.mysql.source import position_checks
from cdcworker.connectors.mysql.source.log_lag import LogLag, log_lag
from cdcworker.connectors.mysql.source.position import StoredPosition
from cdcworker.schemas.errors import CdcError

SOON: Final = 0.5
"""The part of the expiry for which a task may have read nothing before it is a warning."""
_FOUND: Final = DoctorCheck(
    "position.found", "What the server has removed, or never had, cannot be read.", lambda _: (), validates=False
)
_KEPT: Final = DoctorCheck(
    "position.kept", "An outage that is longer than the log is kept loses changes.", lambda _: (), validates=False
)
CHECKS: Final[tuple[DoctorCheck, ...]] = (*checks.CHECKS, _FOUND, _KEPT)


def examine(
    settings: MySqlSettings, positions: Mapping[int, Mapping[str, Any]], *, deep: bool
) -> Iterator[ExaminedTarget]:
    """Every check in turn. `positions` is what the task has stored, where that is known."""
    stored = positions.get(0)
    own = [
        DoctorCheck(item.name, item.why, partial(run, stored), validates=False)
        for item, run in ((_FOUND, _found), (_KEPT, _kept))
    ]
    yield from checks.examine(settings, (*checks.CHECKS, *own), deep=deep)


def _read(stored: Mapping[str, Any] | None) -> StoredPosition | None:
    return None if stored is None else StoredPosition.from_json(dict(stored))


def _found(stored: Mapping[str, Any] | None, examined: ExaminedServer) -> Iterator[CheckResult]:
    facts = examined.logging_facts()
    try:
        position = _read(stored)
        if position is None:
            yield ok("no position is stored")
            return
        # When a file was begun is read from the log itself, under the id of the task, whose stream the server would end.
        asked = replace(position, place=position.place._replace(made=0))
        with translated(), contextlib.closing(SteadyConnection(examined.settings)) as catalog:
            position_checks.check(examined.settings, asked, catalog, facts)
    except CdcError as error:
        yield CheckResult("error", "", error.message, error.code, hint=error.hint)
        return
    yield ok(_place(position))


def _place(position: StoredPosition) -> str:
    place = f"{position.place.file}:{position.place.position}" if position.place.file else ""
    return " at ".join(part for part in (position.gtids, place) if part)


def _kept(stored: Mapping[str, Any] | None, examined: ExaminedServer) -> Iterator[CheckResult]:
    facts = examined.logging_facts()
    try:
        position = _read(stored)
    except CdcError:
        position = None
    if position is None or not position.ts_ms:
        yield ok("no position is stored")
        return
    with translated(), contextlib.closing(SteadyConnection(examined.settings)) as catalog:
        lag = log_lag(catalog.get(), facts, position)
    yield _kept_of(lag, facts.expiry_s, examined)


def _kept_of(lag: LogLag, expiry_s: int, examined: ExaminedServer) -> CheckResult:
    if not lag.is_behind:
        return ok("everything has been read")
    measured = f"{lag.bytes} bytes" + ("" if lag.transactions is None else f" in {lag.transactions} transactions")
    left = lag.expires_in(expiry_s, time.time())
    if left is None or left > expiry_s * SOON:
        return ok(f"{measured} wait")
    fix = Repair(
        (examined.facts.set_global("binlog_expire_logs_seconds", str(4 * expiry_s)),),
        "Let the task read on, or keep the log longer until it has.",
    )
    text = f"the server may remove within {left:.0f} s log that the task has not read"
    return CheckResult("error" if left <= 0 else "warning", f"{measured} wait", text, e.LOG_EXPIRY, fix=fix)
