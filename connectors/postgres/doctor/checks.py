"""The table of everything that is looked at on a source's server, for validation and for the doctor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

import psycopg
from cdcworker.connectors.checks import TIMEOUT_S, DoctorCheck, ExaminedTarget
from cdcworker.connectors.checks import examine as examine_with_limits
from cdcworker.connectors.postgres.config.settings import PostgresSettings
from cdcworker.connectors.postgres.doctor import publication, reachability, replica_identity, risks, slots, tables
from cdcworker.connectors.postgres.doctor.examined_server import ExaminedServer
from cdcworker.connectors.postgres.errors import translate
from cdcworker.schemas.change import JsonObject
from cdcworker.schemas.errors import CdcError

Subject = tuple[ExaminedServer, Sequence[DoctorCheck]]
Positions = Mapping[int, JsonObject]
"""What each task has stored, as far as that is known."""
UNKNOWN: Final[Positions] = {}

CHECKS: tuple[DoctorCheck, ...] = (
    *reachability.CHECKS,
    *slots.CHECKS,
    *publication.CHECKS,
    *tables.CHECKS,
    *replica_identity.CHECKS,
    *risks.CHECKS,
)


PER_SLOT: frozenset[str] = frozenset(
    check.name
    for check in CHECKS
    if check.name.startswith(("slot.", "publication.")) or check.name in ("decoding.spill", "tables.key_values")
)
"""Asked of each of several slots."""


def foreign(exc: Exception) -> CdcError | None:
    return translate(exc) if isinstance(exc, psycopg.Error) else None


def examined_servers(
    settings: PostgresSettings, positions: Positions = UNKNOWN, *, bounded: bool = True
) -> Iterator[Subject]:
    """Yields what is examined, with its checks: the connector as a whole and, where it has several slots, each of
    them."""
    count = settings.raw["slot.count"]
    if count == 1:
        yield ExaminedServer(settings, positions.get(0), bounded=bounded), CHECKS
        return
    yield ExaminedServer(settings, bounded=bounded), [check for check in CHECKS if check.name not in PER_SLOT]
    own = [check for check in CHECKS if check.name in PER_SLOT]
    for number in range(count):
        yield ExaminedServer(settings.of_task(number), positions.get(number), bounded=bounded), own


def examine_all(
    settings: PostgresSettings, positions: Positions = UNKNOWN, *, deep: bool = False
) -> Iterator[ExaminedTarget]:
    for examined, checks in examined_servers(settings, positions):
        for item in examine(examined, deep=deep, checks=checks):
            if examined.settings.filters.share.count > 1:
                measured = f"{examined.settings.slot}: {item.result.measured}"
                item = replace(item, result=replace(item.result, measured=measured))
            yield item


def examine(
    examined: ExaminedServer,
    *,
    deep: bool = False,
    timeout_s: float = TIMEOUT_S,
    checks: Sequence[DoctorCheck] = CHECKS,
) -> Iterator[ExaminedTarget]:
    """Every check in turn, each for itself; changes nothing."""
    chosen = [check for check in checks if deep or not check.deep]
    try:
        yield from examine_with_limits(
            chosen, examined, timeout_s=timeout_s, translate=foreign, abandon=examined.abandon
        )
    finally:
        examined.close()
