"""Metrics of the binary log of a MySQL or MariaDB source."""

from __future__ import annotations

from typing import Final

from cdcworker.connectors.telemetry.metric import TASK, Metric

METRICS: Final = (
    Metric("cdc_source_lag_transactions", "gauge", "Transactions in the database's log that the source has not read; of MySQL and MariaDB with GTIDs. Numbers that a domain of MariaDB leaves out count.", TASK, "lag_transactions"),
    Metric("cdc_binlog_bytes", "gauge", "The binary log of the source's MySQL or MariaDB server, in all its files.", TASK, "binlog_bytes"),
    Metric("cdc_binlog_expires_in_seconds", "gauge", "When the server may remove, by its age, binary log that the source has not read; absent while nothing waits, and where the server keeps its log.", TASK, "binlog_expires_in_s"),
)  # fmt: skip
