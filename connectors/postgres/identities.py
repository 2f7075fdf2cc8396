"""`replica.identity.autoset.values` as it is written: which tables are to have which replica identity."""

from __future__ import annotations

import re
from dataclasses import dataclass

KEY = "replica.identity.autoset.values"
_ITEM = re.compile(r"\s*([^;]+)\s*:\s*(DEFAULT|FULL|NOTHING|INDEX\s+(\S+))\s*", re.I)


@dataclass(frozen=True, slots=True)
class Identities:
    """(pattern of full table names, `DEFAULT`, `FULL`, `NOTHING` or `INDEX name`); the first that matches counts."""

    items: tuple[tuple[str, str], ...] = ()

    @classmethod
    def parse(cls, text: str) -> Identities:
        """`pattern:value,…`, as Debezium's. ValueError for another form."""
        items = []
        for part in filter(str.strip, text.split(",")):
            found = _ITEM.fullmatch(part)
            if found is None:
                raise ValueError(f"expects table:DEFAULT, FULL, NOTHING or INDEX name, not {part.strip()}")
            try:
                re.compile(found.group(1))
            except re.error as exc:
                raise ValueError(f"is not a regular expression: {exc.msg}") from exc
            items.append((found.group(1), f"INDEX {found.group(3)}" if found.group(3) else found.group(2).upper()))
        return cls(tuple(items))

    def of(self, schema: str, table: str) -> str | None:
        name = f"{schema}.{table}"
        return next((value for pattern, value in self.items if re.fullmatch(pattern, name, re.I)), None)


def identities(value: str) -> str | None:
    """The validator of the key."""
    try:
        Identities.parse(value)
    except ValueError as exc:
        return str(exc)
    return None
