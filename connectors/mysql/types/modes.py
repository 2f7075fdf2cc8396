"""How values are represented in records: the `*.handling.mode` keys and their kin."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HandlingModes:
    """The values of Debezium's keys of the same names."""

    decimal: str = "precise"
    time: str = "adaptive_time_microseconds"
    binary: str = "bytes"
    bigint_unsigned: str = "long"
