"""`schema.change.policy`: what becomes of a table whose columns or key differ from those of its last records."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any

from cdcworker.connectors.capture.errors import CaptureErrors
from cdcworker.schemas.change import JsonObject
from cdcworker.schemas.errors import CdcError

EVOLVE, PAUSE, HALT = "evolve", "pause-table", "halt"
_FORM = "2:"
"""Stands before each fingerprint; what earlier versions have stored has none, and counts until its table is met."""

Shape = list[Any]
"""What the policy compares of a table, as JSON: its number, its captured columns with their types, and its key."""


class SchemaGuard:
    """Remembers, as a part of the stored position, the shape in force of every table; with `evolve` nothing."""

    def __init__(self, policy: str, stored: JsonObject | None, errors: CaptureErrors) -> None:
        self._policy = policy
        self._errors = errors
        self.shapes: JsonObject = dict(stored or {}) if policy != EVOLVE else {}
        """Fingerprints of the shapes in force, by the table's full name."""

    @property
    def compares(self) -> bool:
        """Returns whether the policy looks at shapes at all."""
        return self._policy != EVOLVE

    def check(self, table: str, shape: Shape, former: Callable[[], str]) -> None:
        """CdcError when the policy does not allow the shape that the stream now describes, or that a chunk of rows has.
        `table` is the full name; `former` returns the fingerprint that earlier versions stored."""
        if not self.compares:
            return
        now = _FORM + fingerprint(shape)
        known = str(self.shapes.get(table, now))
        if known == now or (not known.startswith(_FORM) and known == former()):
            self.shapes[table] = now
            return
        code = self._errors.schema_paused if self._policy == PAUSE else self._errors.schema_changed
        raise CdcError(code, "the table's columns or key have changed", where={"table": table})

    def forget(self, table: str) -> None:
        """The table has no shape that it must keep."""
        self.shapes.pop(table, None)

    def to_json(self) -> JsonObject | None:
        """The part of the stored position; None where there is none."""
        return dict(self.shapes) or None


def fingerprint(shape: Shape) -> str:
    """The short hash by which two shapes are compared."""
    return hashlib.sha256(json.dumps(shape).encode()).hexdigest()[:12]
