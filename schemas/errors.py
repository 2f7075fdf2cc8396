"""CdcError, the only error type that crosses packages, and the registry of its codes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal["transient", "config", "data", "fenced", "environment", "internal"]
"""The reaction that an error needs. `transient`: retry with back-off. `config`: an operator changes something. `data`:
quarantine or dead letter. `fenced`: another owner exists, stop quietly. `environment`: something is missing on this
machine. `internal`: halt."""

Where = Mapping[str, str | int]
"""The place of an error, such as a config path, table, position, topic, partition or offset."""


@dataclass(frozen=True, slots=True)
class ErrorCode:
    """A registered error code: its kind, and the hint that tells an operator what to do."""

    name: str
    kind: Kind
    title: str
    hint: str


CODES: dict[str, ErrorCode] = {}
"""All declared codes by name."""


def declare(name: str, kind: Kind, title: str, hint: str) -> str:
    """Registers a stable, dotted code at import and returns its name. Raises ValueError if it is declared
    differently."""
    code = ErrorCode(name, kind, title, hint)
    if CODES.setdefault(name, code) != code:
        raise ValueError(f"error code {name} is declared twice")
    return name


class CdcError(Exception):
    """An error that an operator or the supervisor acts on. Neither `message` nor `where` holds row values or secrets
    (INV-11).

    `where` names the place (config path, table, position, topic, partition, offset, line). `fix` is a change that can be
    applied automatically: `{"op": …, "path": …, "value": …}`.
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
        """The reaction that this error needs."""
        return CODES[self.code].kind

    @property
    def retriable(self) -> bool:
        """Tells whether the operation may succeed when it is repeated."""
        return self.kind == "transient"

    def __str__(self) -> str:
        place = " ".join(f"{name}={value}" for name, value in self.where.items())
        return f"[{self.code}] {self.message}" + (f" ({place})" if place else "")

    def to_dict(self) -> dict[str, Any]:
        """Returns the JSON form that is used between processes, in status records and in REST."""
        out: dict[str, Any] = {"code": self.code, "kind": self.kind, "message": self.message, "hint": self.hint}
        if self.where:
            out["where"] = self.where
        if self.fix:
            out["fix"] = self.fix
        return out


INTERNAL = declare(
    "internal.unexpected", "internal", "An error that the code did not foresee", "Report it with the log of the task."
)


def raised_at(error: BaseException) -> str:
    """Returns where an exception was raised, as module and line; empty where that is not known. Unlike its text, that holds no
    values."""
    frames = error.__traceback__
    while frames is not None and frames.tb_next is not None:
        frames = frames.tb_next
    return f"{frames.tb_frame.f_globals.get('__name__', '')}:{frames.tb_lineno}" if frames is not None else ""
