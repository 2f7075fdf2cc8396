"""The one error type that crosses rooms, and the register of its codes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal["transient", "config", "data", "fenced", "environment", "internal"]
"""What an error calls for: `transient` retry with back-off, `config` a person changes something, `data` quarantine or
dead letter, `fenced` another owner exists: stop quietly, `environment` a part is missing here, `internal` halt."""

Where = Mapping[str, str | int]


@dataclass(frozen=True, slots=True)
class Code:
    """One registered error code: its kind and what an operator does about it."""

    name: str
    kind: Kind
    title: str
    hint: str


CODES: dict[str, Code] = {}


def declare(name: str, kind: Kind, title: str, hint: str) -> str:
    """Register a stable, dotted code at import time and return it; a name declared twice differently is a bug."""
    code = Code(name, kind, title, hint)
    if CODES.setdefault(name, code) != code:
        raise ValueError(f"error code {name} is declared twice")
    return name


class CdcError(Exception):
    """An error that a person or the supervisor acts on. `message` never holds row values or secrets.

    `where` names the place (config path, table, lsn, topic, partition, offset, line); `fix` is what a machine can
    apply: `{"op": …, "path": …, "value": …}`.
    """

    def __init__(
        self,
        code: str,
        message: str,
        *,
        where: Where | None = None,
        hint: str | None = None,
        fix: Mapping[str, Any] | None = None,
    ) -> None:
        if code not in CODES:
            raise ValueError(f"error code {code} is not declared")
        super().__init__(message)
        self.code = code
        self.message = message
        self.where = dict(where or {})
        self.hint = CODES[code].hint if hint is None else hint
        self.fix = dict(fix) if fix else None

    @property
    def kind(self) -> Kind:
        return CODES[self.code].kind

    @property
    def retriable(self) -> bool:
        return self.kind == "transient"

    def __str__(self) -> str:
        place = " ".join(f"{name}={value}" for name, value in self.where.items())
        return f"[{self.code}] {self.message}" + (f" ({place})" if place else "")

    def to_dict(self) -> dict[str, Any]:
        """The JSON form used between processes, in status records and over REST."""
        out: dict[str, Any] = {"code": self.code, "kind": self.kind, "message": self.message, "hint": self.hint}
        if self.where:
            out["where"] = self.where
        if self.fix:
            out["fix"] = self.fix
        return out


INTERNAL = declare(
    "internal.unexpected", "internal", "An error that the code did not foresee", "Report it with the log of the task."
)
