"""Live findings before a connector starts: those checks of the doctor's table that validation asks. Changes nothing."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
from cdcworker.connectors.api.context import CheckFinding
from cdcworker.connectors.checks import CheckResult, CheckSkipped, DoctorCheck, hint_of
from cdcworker.connectors.config.server_authentication import WEAK_LOGIN
from cdcworker.connectors.postgres import errors as e
from cdcworker.connectors.postgres.config.settings import PostgresSettings
from cdcworker.connectors.postgres.doctor.checks import examined_servers
from cdcworker.connectors.postgres.doctor.examined_server import ExaminedServer
from cdcworker.schemas.errors import CdcError

_KEYS = {
    e.AUTHENTICATION: "database.password",
    e.TLS: "database.sslmode",
    WEAK_LOGIN: "database.sslmode",
    e.DATABASE_MISSING: "database.dbname",
    e.NO_REPLICATION_RIGHT: "database.user",
    e.PERMISSION: "database.user",
    e.PUBLICATION: "publication.name",
    e.TABLE_MISSING: "table.include.list",
    e.SLOT_UNFIT: "slot.name",
    e.SLOTS_CHANGED: "slot.count",
    e.SLOT_IN_USE: "slot.name",
    e.SLOT_LOST: "slot.name",
    e.NO_FREE_SLOT: "slot.name",
}


def key_of(code: str, key: str = "") -> str:
    """The key that an error is about, where the check does not say it."""
    return key or _KEYS.get(code, "database.hostname")


def check(settings: PostgresSettings) -> Iterator[CheckFinding]:
    """Findings as they are made; without a connection the first one is all."""
    for examined, checks in examined_servers(settings, bounded=False):
        try:
            for item in checks:
                if item.validates:
                    yield from _findings(item, examined)
        finally:
            examined.close()
        if examined.refused:
            return


def _findings(item: DoctorCheck, examined: ExaminedServer) -> Iterator[CheckFinding]:
    try:
        for result in item.run(examined):
            if result.status in ("error", "warning", "note"):
                yield _finding(result)
    except CheckSkipped:
        return
    except (CdcError, psycopg.Error) as exc:
        error = e.translate(exc)
        yield CheckFinding(key_of(error.code), "error", error.code, error.message, error.hint)


def _finding(result: CheckResult) -> CheckFinding:
    assert result.status in ("error", "warning", "note")
    key = key_of(result.code, result.key)
    return CheckFinding(key, result.status, result.code, result.message, hint_of(result))
