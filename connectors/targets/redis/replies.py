"""What an error of Redis or of its client means: not now, never this record, or never anything."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

from cdcworker.connectors.api.record_target import TargetUnavailable
from cdcworker.connectors.record_sink.errors import RECORD_REFUSED, TARGET_REFUSES, TARGET_UNAVAILABLE
from cdcworker.schemas.errors import CdcError
from redis import exceptions

_NOT_NOW: Final = (
    "BUSY", "CLUSTERDOWN", "LOADING", "MASTERDOWN", "MISCONF", "NOREPLICAS", "OOM", "READONLY", "TRYAGAIN", "UNBLOCKED",
)  # fmt: skip
_LOGIN: Final = ("NOAUTH", "NOPERM", "WRONGPASS")
_WORD: Final = re.compile(r"\b[A-Z]{3,}\b")
"""Codes of errors are upper-case words; only those that stand here are told."""
_TOLD: Final = frozenset({*_NOT_NOW, *_LOGIN, "WRONGTYPE"})
_REFUSED: Final = (
    exceptions.AuthenticationError,
    exceptions.AuthenticationWrongNumberOfArgsError,
    exceptions.AuthorizationError,
    exceptions.NoPermissionError,
)
_AWAY: Final = (
    exceptions.ConnectionError,
    exceptions.TimeoutError,
    exceptions.ClusterError,
    exceptions.RedisClusterException,
    exceptions.OutOfMemoryError,
    exceptions.ReadOnlyError,
)


def error_of(found: exceptions.RedisError) -> CdcError:
    """Returns the error that a target raises. The server's own text may hold values, so only its first word is told."""
    text = str(found)
    if isinstance(found, _REFUSED):
        return CdcError(TARGET_REFUSES, "Redis refuses the login, or the user may not do this")
    if isinstance(found, _AWAY):
        return TargetUnavailable(TARGET_UNAVAILABLE, f"Redis does not answer ({type(found).__name__})")
    if re.match(r"(ERR )?unknown command|.*Unknown Redis command", text):
        return CdcError(TARGET_REFUSES, "the server does not know a command: redis.type=JSON needs its JSON module")
    word = next((found for found in _WORD.findall(text) if found in _TOLD), "")
    if word in _LOGIN:
        return CdcError(TARGET_REFUSES, f"Redis refuses the login, or the user may not do this ({word})")
    if word in _NOT_NOW:
        return TargetUnavailable(TARGET_UNAVAILABLE, f"Redis takes no writes now ({word})")
    return CdcError(RECORD_REFUSED, f"Redis refuses the record ({word or type(found).__name__})")


def worst_of(replies: Iterable[Any]) -> CdcError | None:
    """Returns the error by which a batch ends: one that says something of a record only if no other is there."""
    found = [error_of(one) for one in replies if isinstance(one, exceptions.RedisError)]
    return next((one for one in found if one.kind != "data"), found[0] if found else None)
