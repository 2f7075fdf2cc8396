"""What an error of NATS or of its client means: not now, never this record, or never anything."""

from __future__ import annotations

from typing import Final

from cdcworker.connectors.api.record_target import TargetUnavailable
from cdcworker.connectors.network.sockets import name_of
from cdcworker.connectors.record_sink.errors import RECORD_REFUSED, TARGET_REFUSES, TARGET_UNAVAILABLE
from cdcworker.schemas.errors import CdcError
from nats import errors
from nats.js.errors import APIError

_FULL: Final = frozenset({10_023, 10_047, 10_077, 10_167})
"""The stream or the account has no room: for messages, bytes, memory or storage."""
_MISMATCH: Final = frozenset({10_059, 10_060, 10_065, 10_052})
"""The stream is not there, is another one, or cannot be made so."""
_LOGIN: Final = (errors.AuthorizationError,)


def error_of(found: BaseException) -> CdcError:
    """Returns the error that a target raises. The server's text may hold a subject, and with it values: it is not told."""
    if isinstance(found, CdcError):
        return found
    if isinstance(found, _LOGIN) or "authorization" in str(found).lower() or "permissions" in str(found).lower():
        return CdcError(TARGET_REFUSES, "NATS refuses the login, or the user may not do this")
    if isinstance(found, errors.MaxPayloadError):
        return CdcError(RECORD_REFUSED, "the message is larger than the server takes")
    if isinstance(found, errors.BadSubjectError):
        return CdcError(RECORD_REFUSED, "the record makes no subject")
    if isinstance(found, APIError):
        return of_code(found.code or 0, found.err_code or 0)
    what = name_of(found) if isinstance(found, Exception) else "the write was broken off"
    return TargetUnavailable(TARGET_UNAVAILABLE, f"NATS does not answer ({what})")


def of_code(status: int, code: int) -> CdcError:
    """Returns the error that a status and a code of JetStream stand for."""
    if status >= 500 or code in _FULL:
        return TargetUnavailable(TARGET_UNAVAILABLE, f"JetStream takes no messages now ({code or status})")
    if status in (401, 403, 404) or code in _MISMATCH:
        return CdcError(TARGET_REFUSES, f"JetStream does not have the stream as the config says ({code or status})")
    return CdcError(RECORD_REFUSED, f"JetStream refuses the message ({code or status})")
