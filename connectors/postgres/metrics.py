"""Metrics of the slot of a PostgreSQL source."""

from __future__ import annotations

from typing import Final

from cdcworker.connectors.telemetry.metric import TASK, Metric

METRICS: Final = (
    Metric("cdc_slot_retained_bytes", "gauge", "Log that the database keeps for the slot.", TASK, "slot_retained_bytes"),
    Metric("cdc_slot_safe_bytes", "gauge", "Log that may still be written before the slot is lost; absent without a limit.", TASK, "slot_safe_wal_bytes"),
    Metric("cdc_slot_lost_in_seconds", "gauge", "When the slot will be lost if what it keeps goes on growing as it does; absent while it does not.", TASK, "slot_lost_in_s"),
    Metric("cdc_slot_failover_ready", "gauge", "1: what the slot hands on is on standbys that are named in synchronized_standby_slots and connected, and those are told to keep the slot; whether one has its copy already only that one knows. Absent before PostgreSQL 17.", TASK, "slot_failover_ready"),
)  # fmt: skip
