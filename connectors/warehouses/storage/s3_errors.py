"""What a store that speaks S3 answers, as errors of the sink."""

from __future__ import annotations

import errno
import re
from typing import Final

from cdcworker.connectors.sink_errors import (
    TARGET_AUTH,
    TARGET_BUCKET,
    TARGET_CLOCK,
    TARGET_FAILED,
    TARGET_RIGHTS,
    TARGET_STORE_UNFIT,
    TARGET_UNREACHABLE,
)
from cdcworker.connectors.warehouses.storage.files import Where
from cdcworker.schemas.errors import CdcError

_MISSING: Final = ("", "404", "NoSuchKey", "NotFound")
_CODE: Final = re.compile(r"[A-Za-z0-9]{1,64}")
_LOGIN: Final = (
    *("InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken", "ExpiredToken", "TokenRefreshRequired"),
    # Of versitygw.
    "XAdminUserNotFound",
)
_REGION: Final = ("AuthorizationHeaderMalformed", "PermanentRedirect", "IllegalLocationConstraintException")
_BUSY: Final = ("ConditionalRequestConflict", "OperationAborted", "RequestTimeout", "SlowDown")
_BY_CODE: Final = {
    "NoSuchBucket": (TARGET_BUCKET, "the bucket is not there"),
    "NotImplemented": (TARGET_STORE_UNFIT, "the object store does not do what it was asked for"),
    **dict.fromkeys(_LOGIN, (TARGET_AUTH, "the object store refused the credentials")),
    **dict.fromkeys(_REGION, (TARGET_BUCKET, "the bucket is in another region or at another endpoint")),
    **dict.fromkeys(("RequestTimeTooSkewed", "RequestExpired"), (TARGET_CLOCK, "this machine's clock is wrong")),
}


class Conflict(Exception):
    """The condition of a put does not hold."""


def translated(exc: Exception, where: Where, handled: BaseException | None = None) -> Exception:
    """Returns the error for what botocore raised: FileNotFoundError, EOFError, `Conflict`, CdcError; what is not the store's comes
    back as it is. Texts of the store may hold anything and are left out. `handled` is what the caller was handling already when it
    sent the request."""
    said = getattr(exc, "response", None)
    # botocore wraps what is raised while it connects.
    for mine in (exc, exc.__context__):
        if isinstance(mine, CdcError) and mine is not handled:
            return mine
    if not isinstance(said, dict):
        return _of_the_network(exc, where)
    status = int(said.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    return answered(str(said.get("Error", {}).get("Code", "")), status, where)


def answered(answer: str, status: int, where: Where) -> Exception:
    """Returns the error for the code and the status of an answer."""
    code = answer if _CODE.fullmatch(answer) else ""
    shown = code if code == str(status) else f"{code} {status}".strip()
    if code in _BY_CODE:
        which, text = _BY_CODE[code]
        return CdcError(which, f"{text} ({shown})", where=where)
    if code in _BUSY or status == 429 or status >= 500:
        return CdcError(TARGET_UNREACHABLE, f"the object store could not do it now ({shown})", where=where)
    if status == 412:
        return Conflict(shown)
    if status == 416:
        return EOFError("a range behind the end of an object")
    if status == 404 and code in _MISSING:
        return FileNotFoundError(errno.ENOENT, "no such object")
    if status in (301, 307):
        return CdcError(TARGET_BUCKET, f"the bucket is in another region or at another endpoint ({shown})", where=where)
    if status in (401, 403):
        return CdcError(TARGET_RIGHTS, f"the object store refused it ({shown})", where=where)
    return CdcError(TARGET_FAILED, f"the object store refused it ({shown})", where=where)


def _of_the_network(exc: Exception, where: Where) -> Exception:
    from botocore.exceptions import BotoCoreError, ParamValidationError  # type: ignore[import-untyped]

    name = type(exc).__name__
    if isinstance(exc, ParamValidationError):
        return CdcError(TARGET_FAILED, f"the client of the object store refused it ({name})", where=where)
    if isinstance(exc, (BotoCoreError, OSError)) or type(exc).__module__.startswith("urllib3."):
        return CdcError(TARGET_UNREACHABLE, f"the object store does not answer ({name})", where=where)
    return exc
