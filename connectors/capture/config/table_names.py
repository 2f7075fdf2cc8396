"""Captured tables by number and name, and patterns of their full names."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cdcworker.schemas.patterns import matches_any

TableName = tuple[int, str, str]
"""The source's number of a table (PostgreSQL: its OID), what holds it (schema or database), and its name."""


def matching(tables: Iterable[TableName], patterns: Iterable[str]) -> list[TableName]:
    """Tables whose full name one of the patterns matches as a whole, as Debezium's."""
    wanted = tuple(patterns)
    return [table for table in tables if matches_any(wanted, f"{table[1]}.{table[2]}", ignore_case=True)]


def rows_wanted(full_name: str, *, mode: str, patterns: Sequence[str] | None, signals: str) -> bool:
    """Returns whether the rows of a captured table are read. `mode` and `patterns` are `snapshot.mode` and
    `snapshot.include.collection.list`, `signals` is the full name of the signal table."""
    if mode == "no_data" or full_name == signals:
        return False
    return not patterns or matches_any(patterns, full_name, ignore_case=True)
