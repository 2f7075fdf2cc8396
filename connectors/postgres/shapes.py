"""`schema.change.policy`: what becomes of a table whose columns or key differ from those of its last records."""

from __future__ import annotations

import hashlib
import json

from cdcworker.connectors.postgres.config import Filters
from cdcworker.connectors.postgres.errors import SCHEMA_CHANGED, SCHEMA_PAUSED
from cdcworker.connectors.postgres.relations import Plan
from cdcworker.schemas.change import JsonObject
from cdcworker.schemas.errors import CdcError

EVOLVE, PAUSE, HALT = "evolve", "pause-table", "halt"
_FORM = "2:"
"""Before each fingerprint. One of another form says nothing, and gives way to that of the shape that is met next."""


class ShapeGuard:
    """Remembers, as a part of the stored position, the shape in force of every table; with `evolve` nothing."""

    def __init__(self, policy: str, filters: Filters, stored: JsonObject | None) -> None:
        self._policy = policy
        self._filters = filters
        self._shapes: JsonObject = dict(stored or {}) if policy != EVOLVE else {}

    def check(self, plan: Plan) -> None:
        """CdcError when the policy does not allow the shape that the stream now describes, or a chunk of rows has."""
        if self._policy == EVOLVE:
            return
        name = ".".join(plan.table.path)
        now = self._fingerprint(plan)
        if not str(self._shapes.get(name, "")).startswith(_FORM):
            self._shapes[name] = now
        if self._shapes[name] == now:
            return
        code = SCHEMA_PAUSED if self._policy == PAUSE else SCHEMA_CHANGED
        raise CdcError(code, "the table's columns or key have changed", where={"table": name})

    def forget(self, table: str) -> None:
        self._shapes.pop(table, None)

    def to_json(self) -> JsonObject | None:
        return dict(self._shapes) or None

    def _fingerprint(self, plan: Plan) -> str:
        """Of what is captured: name, type and length of each column, and the key. What the server logs of old rows (the
        replica identity) is no part of it."""
        relation, key = plan.relation, sorted(column.name for column in plan.table.key_columns)
        taken = [
            [c.name, c.type_oid, c.typmod]
            for c in relation.columns
            if c.name in key or self._filters.column(relation.schema, relation.table, c.name)
        ]
        text = json.dumps([relation.oid, taken, key])
        return _FORM + hashlib.sha256(text.encode()).hexdigest()[:12]
