"""The table of everything that is looked at on a source's server, for validation and for the doctor."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from cdcworker.connectors.api.context import CheckFinding
from cdcworker.connectors.checks import TIMEOUT_S, DoctorCheck, ExaminedTarget
from cdcworker.connectors.checks import examine as examine_with_limits
from cdcworker.connectors.mysql.config.settings import MySqlSettings
from cdcworker.connectors.mysql.doctor import log, replication, tables
from cdcworker.connectors.mysql.server import checks as server
from cdcworker.connectors.mysql.server.connection import translate
from cdcworker.connectors.mysql.server.examined_server import ExaminedServer
from cdcworker.schemas.errors import CdcError

CHECKS: Final[tuple[DoctorCheck, ...]] = (*server.CHECKS, *log.CHECKS, *replication.CHECKS, *tables.CHECKS)


def check(settings: MySqlSettings) -> Iterator[CheckFinding]:
    """Yields the findings of those checks that validation asks."""
    return server.check(settings, CHECKS)


def examine(
    settings: MySqlSettings, checks: Sequence[DoctorCheck] = CHECKS, *, deep: bool = False, timeout_s: float = TIMEOUT_S
) -> Iterator[ExaminedTarget]:
    """Every check in turn, each for itself; changes nothing. Each result that is not ok names its config key."""
    examined = ExaminedServer(settings)
    chosen = [item for item in checks if deep or not item.deep]
    try:
        for item in examine_with_limits(
            chosen, examined, timeout_s=timeout_s, translate=_known, abandon=examined.abandon
        ):
            result = item.result
            yield item if result.status == "ok" else replace(item, result=replace(result, key=server.key_of(result)))
    finally:
        examined.close()


def _known(exc: Exception) -> CdcError | None:
    import pymysql

    return translate(exc) if isinstance(exc, pymysql.Error) else None
