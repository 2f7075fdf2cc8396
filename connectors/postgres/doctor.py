"""The table of everything that is looked at on a source's server, for validation and for the doctor."""

from __future__ import annotations

from collections.abc import Iterator

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
from cdcworker.connectors.postgres.errors import translate
from cdcworker.connectors.postgres.patient import Patient
from cdcworker.schemas.errors import CdcError

CHECKS: tuple[Check, ...] = (
    *doctor_reach.CHECKS,
    *doctor_slots.CHECKS,
    *doctor_publication.CHECKS,
    *doctor_tables.CHECKS,
    *identity.CHECKS,
    *doctor_risk.CHECKS,
)


def foreign(exc: Exception) -> CdcError | None:
    return translate(exc) if isinstance(exc, psycopg.Error) else None


def examine(patient: Patient, *, deep: bool = False, timeout_s: float = TIMEOUT_S) -> Iterator[Examined]:
    """Every check in turn, each for itself; changes nothing."""
    chosen = [check for check in CHECKS if deep or not check.deep]
    try:
        yield from checkup.examine(chosen, patient, timeout_s=timeout_s, translate=foreign, abandon=patient.abandon)
    finally:
        patient.close()
