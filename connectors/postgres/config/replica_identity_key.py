"""`replica.identity.autoset.values` as it is written: which tables are to have which replica identity."""

from __future__ import annotations

import re
from dataclasses import dataclass

from cdcworker.schemas import patterns

KEY = "replica.identity.autoset.values"
_IDENTITY = re.compile(r"DEFAULT|FULL|NOTHING|INDEX\s+(\S+)", re.I)
_IDENTITY_MAX = 200
"""Characters of an identity with its index's name."""


@dataclass(frozen=True, slots=True)
class ReplicaIdentities:
    """(pattern of full table names, `DEFAULT`, `FULL`, `NOTHING` or `INDEX name`); the first that matches counts."""

    items: tuple[tuple[str, str], ...] = ()

    @classmethod
    def parse(cls, text: str) -> ReplicaIdentities:
        """`pattern:value,…`, as Debezium's. ValueError for another form."""
        items = []
        for part in filter(str.strip, text.split(",")):
            pattern, identity = _split(part)
            if not pattern or not identity or ";" in pattern:
                raise ValueError(f"expects table:DEFAULT, FULL, NOTHING or INDEX name, not {part.strip()}")
            items.append((pattern, identity))
        if problem := patterns.list_problem([pattern for pattern, _ in items]):
            raise ValueError(problem)
        return cls(tuple(items))

    def of(self, schema: str, table: str) -> str | None:
        name = f"{schema}.{table}"
        return next((value for text, value in self.items if patterns.matches(text, name, ignore_case=True)), None)


def _split(part: str) -> tuple[str, str]:
    """Pattern and identity of an item, both empty for another form. The name of an index may hold colons."""
    at = part.rfind(":")
    while at >= 0 and len(identity := part[at + 1 :].strip()) <= _IDENTITY_MAX:
        if found := _IDENTITY.fullmatch(identity):
            return part[:at].strip(), f"INDEX {found[1]}" if found[1] else identity.upper()
        at = part.rfind(":", 0, at)
    return "", ""


def identities(value: str) -> str | None:
    """The validator of the key."""
    try:
        ReplicaIdentities.parse(value)
    except ValueError as exc:
        return str(exc)
    return None
