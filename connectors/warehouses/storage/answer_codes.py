"""What object stores answer, as errors of the sink: what their codes and the status of HTTP say."""

from __future__ import annotations

import errno
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from cdcworker.connectors.sink_errors import TARGET_BUCKET, TARGET_FAILED, TARGET_RIGHTS, TARGET_UNREACHABLE
from cdcworker.connectors.warehouses.storage.files import Where
from cdcworker.connectors.warehouses.storage.object_store import Conflict
from cdcworker.schemas.errors import CdcError

_CODE: Final = re.compile(r"[A-Za-z0-9]{1,64}")


@dataclass(frozen=True, slots=True)
class AnswerCodes:
    """The codes of a kind of store: those of errors with their texts, of a store that is busy, and of an object that is missing."""

    errors: Mapping[str, tuple[str, str]]
    busy: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    conflicts: tuple[str, ...] = ()
    """Of a put whose condition does not hold, besides the status 412."""

    def error(self, answer: str, status: int, where: Where) -> Exception:
        """Returns the error for the code and the status of an answer. Texts of the store may hold anything and are left out."""
        code = answer if _CODE.fullmatch(answer) else ""
        shown = code if code == str(status) else f"{code} {status}".strip()
        if code in self.errors:
            which, text = self.errors[code]
            return CdcError(which, f"{text} ({shown})", where=where)
        if code in self.busy or is_passing(status):
            return CdcError(TARGET_UNREACHABLE, f"the object store could not do it now ({shown})", where=where)
        if status == 412 or code in self.conflicts:
            return Conflict(shown)
        if status == 416:
            return EOFError("a range behind the end of an object")
        if status == 404 and code in self.missing:
            return FileNotFoundError(errno.ENOENT, "no such object")
        if status in (301, 307):
            text = f"the bucket is in another region or at another endpoint ({shown})"
            return CdcError(TARGET_BUCKET, text, where=where)
        if status in (401, 403):
            return CdcError(TARGET_RIGHTS, f"the object store refused it ({shown})", where=where)
        return CdcError(TARGET_FAILED, f"the object store refused it ({shown})", where=where)


def is_passing(status: int) -> bool:
    """Returns whether a status of HTTP says that the same request may be done later."""
    return status in (408, 429) or status >= 500


def mine(exc: Exception, handled: BaseException | None) -> CdcError | None:
    """Returns the error of the worker's own that a client of a store has wrapped; None: there is none. `handled` is what the caller
    was handling already when it sent the request."""
    for each in (exc, exc.__cause__, exc.__context__, *exc.args):
        if isinstance(each, CdcError) and each is not handled:
            return each
    return None
