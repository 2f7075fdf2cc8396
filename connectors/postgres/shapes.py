"""`schema.change.policy`: what becomes of a table whose columns or key differ from those of its last records."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from cdcworker.connectors.postgres.config import Filters
from cdcworker.connectors.postgres.errors import SCHEMA_CHANGED, SCHEMA_PAUSED
from cdcworker.connectors.postgres.relations import Plan
from cdcworker.connectors.postgres.wire import Relation
from cdcworker.schemas.change import JsonObject
from cdcworker.schemas.errors import CdcError

EVOLVE, PAUSE, HALT = "evolve", "pause-table", "halt"
_FORM = "2:"
"""Before each fingerprint; what earlier versions have stored has none, and counts until its table is met."""


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
        known = str(self._shapes.get(name, now))
        if known == now or (not known.startswith(_FORM) and known == self._former(plan.relation)):
            self._shapes[name] = now
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
        return _FORM + _digest([relation.oid, taken, key])

    def _former(self, relation: Relation) -> str:
        """As earlier versions had it."""
        taken = [
            c for c in relation.columns if c.in_key or self._filters.column(relation.schema, relation.table, c.name)
        ]
        return _digest([relation.oid, relation.identity, [list(column) for column in taken]])


def _digest(shape: list[Any]) -> str:
    return hashlib.sha256(json.dumps(shape).encode()).hexdigest()[:12]
