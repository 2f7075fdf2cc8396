"""The last known keys of tables with REPLICA IDENTITY FULL, whose descriptions in the stream mark no key.

Only the catalog knows such a key, and it may be ahead of the stream: a key that it has no more is kept until the stream has
come to where the log ended when the catalog was looked at, the key of a table that is gone for good.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from cdcworker.connectors.postgres.catalog import TableInfo
from cdcworker.connectors.postgres.wire import Relation
from cdcworker.schemas.change import JsonObject

Key = tuple[str, ...]

TABLES_MAX: Final = 500
"""Of which the stored position holds the key; beyond, the one that was described longest ago goes first. # INV-10"""


class LastKeys:
    """A part of the stored position: names of key columns by OID."""

    def __init__(self, stored: JsonObject | None, log_end: Callable[[], int]) -> None:
        self._keys: dict[int, Key] = {int(oid): tuple(names) for oid, names in (stored or {}).items()}
        self._log_end = log_end
        self._until: dict[int, int] = {}

    @property
    def waiting(self) -> bool:
        """Whether any is kept that the catalog has no more."""
        return bool(self._until)

    def of(self, relation: Relation) -> Key:
        """Empty: nothing is known of it."""
        key = self._keys.get(relation.oid, ())
        return key if {column.name for column in relation.columns}.issuperset(key) else ()

    def note(self, relation: Relation, info: TableInfo | None, key: Key) -> None:
        """The key in force under this description, by which the catalog was looked at."""
        oid = relation.oid
        known = self._keys.pop(oid, ())
        if relation.identity == "f" and key:
            self._put(oid, key)
        if known and key and info and not info.key:
            self._until.setdefault(oid, self._log_end())
        else:
            self._until.pop(oid, None)

    def seen(self, relation: Relation, key: Key) -> None:
        """Rows were read under this key, beside the stream, which may be far behind."""
        if relation.identity == "f" and key:
            self._put(relation.oid, self._keys.get(relation.oid, key))

    def _put(self, oid: int, key: Key) -> None:
        self._keys[oid] = key
        while len(self._keys) > TABLES_MAX:
            del self._keys[next(iter(self._keys))]

    def expired(self, lsn: int) -> list[int]:
        """Tables whose keys were kept and are forgotten now: the transaction that ends at `lsn` has the catalog's."""
        found = [oid for oid, until in self._until.items() if lsn > until]
        for oid in found:
            del self._until[oid]
            self._keys.pop(oid, None)
        return found

    def to_json(self) -> JsonObject | None:
        return {str(oid): list(key) for oid, key in self._keys.items()} or None
