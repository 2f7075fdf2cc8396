"""The table of everything that is looked at on a source's server, for validation and for the doctor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

import psycopg
from cdcworker.connectors import checkup
from cdcworker.connectors.checkup import TIMEOUT_S, Check, Examined
from cdcworker.connectors.postgres import (
    doctor_publication,
    doctor_reach,
    doctor_risk,
    doctor_slots,
    doctor_tables,
    identity,
)
from cdcworker.connectors.postgres.config import Settings
from cdcworker.connectors.postgres.errors import translate
from cdcworker.connectors.postgres.patient import Patient
from cdcworker.schemas.change import JsonObject
from cdcworker.schemas.errors import CdcError

Subject = tuple[Patient, Sequence[Check]]
Positions = Mapping[int, JsonObject]
"""What each task has stored, as far as that is known."""
UNKNOWN: Final[Positions] = {}

CHECKS: tuple[Check, ...] = (
    *doctor_reach.CHECKS,
    *doctor_slots.CHECKS,
    *doctor_publication.CHECKS,
    *doctor_tables.CHECKS,
    *identity.CHECKS,
    *doctor_risk.CHECKS,
)


PER_SLOT: frozenset[str] = frozenset(
    check.name for check in CHECKS if check.name.startswith(("slot.", "publication.")) or check.name == "decoding.spill"
)
"""Asked of each of several slots."""


def foreign(exc: Exception) -> CdcError | None:
    return translate(exc) if isinstance(exc, psycopg.Error) else None


def patients(settings: Settings, positions: Positions = UNKNOWN, *, bounded: bool = True) -> Iterator[Subject]:
    """What is examined with which checks: the connector as a whole and, where it has several slots, each of them."""
    count = settings.raw["slot.count"]
    if count == 1:
        yield Patient(settings, positions.get(0), bounded=bounded), CHECKS
        return
    yield Patient(settings, bounded=bounded), [check for check in CHECKS if check.name not in PER_SLOT]
    own = [check for check in CHECKS if check.name in PER_SLOT]
    for number in range(count):
        yield Patient(settings.of_task(number), positions.get(number), bounded=bounded), own


def examine_all(settings: Settings, positions: Positions = UNKNOWN, *, deep: bool = False) -> Iterator[Examined]:
    for patient, checks in patients(settings, positions):
        for item in examine(patient, deep=deep, checks=checks):
            if patient.settings.filters.share.count > 1:
                measured = f"{patient.settings.slot}: {item.result.measured}"
                item = replace(item, result=replace(item.result, measured=measured))
            yield item


def examine(
    patient: Patient, *, deep: bool = False, timeout_s: float = TIMEOUT_S, checks: Sequence[Check] = CHECKS
) -> Iterator[Examined]:
    """Every check in turn, each for itself; changes nothing."""
    chosen = [check for check in checks if deep or not check.deep]
    try:
        yield from checkup.examine(chosen, patient, timeout_s=timeout_s, translate=foreign, abandon=patient.abandon)
    finally:
        patient.close()
