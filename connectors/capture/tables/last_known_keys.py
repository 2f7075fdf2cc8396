"""The last known keys of tables whose descriptions in the stream mark no key (PostgreSQL: REPLICA IDENTITY FULL).

Only the catalog knows such a key, and it may be ahead of the stream: a key that it has no more is kept until the stream has
come to where the log ended when the catalog was looked at, the key of a table that is gone for good.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

from cdcworker.schemas.change import JsonObject

Key = tuple[str, ...]

TABLES_MAX: Final = 500
"""Tables of which the stored position holds the key; beyond, the one that was described longest ago is forgotten first. # INV-10"""


class LastKnownKeys:
    """A part of the stored position: names of key columns by the source's number of the table. `log_end` returns the
    position at which the server's log ends now."""

    def __init__(self, stored: JsonObject | None, log_end: Callable[[], int]) -> None:
        self.keys: dict[int, Key] = {int(table): tuple(names) for table, names in (stored or {}).items()}
        self._log_end = log_end
        self.until: dict[int, int] = {}
        """Tables of which a key is kept that the catalog has no more, and until which position of the stream."""

    def of(self, table: int, columns: Collection[str]) -> Key:
        """The last known key of a table that has these columns now; empty where none is known of them."""
        key = self.keys.get(table, ())
        return key if set(columns).issuperset(key) else ()

    def note(self, table: int, key: Key, *, unmarked: bool, dropped: bool) -> None:
        """Remembers the key in force under a description of the stream. `unmarked`: the description marks no key.
        `dropped`: the catalog knows the table, without a key."""
        known = self.keys.pop(table, ())
        if unmarked and key:
            self._put(table, key)
        if known and key and dropped:
            self.until.setdefault(table, self._log_end())
        else:
            self.until.pop(table, None)

    def seen(self, table: int, key: Key, *, unmarked: bool) -> None:
        """Remembers the key under which rows were read beside the stream, which may be far behind."""
        if unmarked and key:
            self._put(table, self.keys.get(table, key))

    def _put(self, table: int, key: Key) -> None:
        self.keys[table] = key
        while len(self.keys) > TABLES_MAX:
            del self.keys[next(iter(self.keys))]

    def expired(self, position: int) -> list[int]:
        """Forgets the keys that were kept for tables of which the stream has come to the catalog's look, and returns the
        tables. `position` is where the transaction that now ends was committed."""
        found = [table for table, until in self.until.items() if position > until]
        for table in found:
            del self.until[table]
            self.keys.pop(table, None)
        return found

    def to_json(self) -> JsonObject | None:
        """The part of the stored position; None where nothing is known."""
        return {str(table): list(key) for table, key in self.keys.items()} or None
