"""`schema.change.policy`: what becomes of a table whose columns or key differ from those of its last records."""

from __future__ import annotations

import hashlib
import json

from cdcworker.connectors.postgres.config import Filters
from cdcworker.connectors.postgres.errors import SCHEMA_CHANGED, SCHEMA_PAUSED
from cdcworker.connectors.postgres.wire import Relation
from cdcworker.schemas.change import JsonObject
from cdcworker.schemas.errors import CdcError

EVOLVE, PAUSE, HALT = "evolve", "pause-table", "halt"


class ShapeGuard:
    """Remembers, as a part of the stored position, the shape in force of every table; with `evolve` nothing."""

    def __init__(self, policy: str, filters: Filters, stored: JsonObject | None) -> None:
        self._policy = policy
        self._filters = filters
        self._shapes: JsonObject = dict(stored or {}) if policy != EVOLVE else {}

    def check(self, relation: Relation) -> None:
        """CdcError when the policy does not allow the shape that the stream now describes, or a chunk of rows has."""
        if self._policy == EVOLVE:
            return
        name = f"{relation.schema}.{relation.table}"
        now = self._fingerprint(relation)
        if self._shapes.setdefault(name, now) == now:
            return
        code = SCHEMA_PAUSED if self._policy == PAUSE else SCHEMA_CHANGED
        raise CdcError(code, "the table's columns or key have changed", where={"table": name})

    def forget(self, table: str) -> None:
        self._shapes.pop(table, None)

    def to_json(self) -> JsonObject | None:
        return dict(self._shapes) or None

    def _fingerprint(self, relation: Relation) -> str:
        """Of what is captured: name, type, length and part in the key of each column."""
        taken = [
            c for c in relation.columns if c.in_key or self._filters.column(relation.schema, relation.table, c.name)
        ]
        text = json.dumps([relation.oid, relation.identity, [list(column) for column in taken]])
        return hashlib.sha256(text.encode()).hexdigest()[:12]
