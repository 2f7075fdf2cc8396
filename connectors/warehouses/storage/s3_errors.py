"""What a store that speaks S3 answers, as errors of the sink."""

from __future__ import annotations

from typing import Final

from cdcworker.connectors.sink_errors import (
    TARGET_AUTH,
    TARGET_BUCKET,
    TARGET_CLOCK,
    TARGET_FAILED,
    TARGET_STORE_UNFIT,
    TARGET_UNREACHABLE,
)
from cdcworker.connectors.warehouses.storage.answer_codes import AnswerCodes, mine
from cdcworker.connectors.warehouses.storage.files import Where
from cdcworker.schemas.errors import CdcError

_MISSING: Final = ("", "404", "NoSuchKey", "NotFound")
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
CODES: Final = AnswerCodes(_BY_CODE, _BUSY, _MISSING)


def translated(exc: Exception, where: Where, handled: BaseException | None = None) -> Exception:
    """Returns the error for what botocore raised: FileNotFoundError, EOFError, `object_store.Conflict`, CdcError; what is not the store's comes
    back as it is. Texts of the store may hold anything and are left out. `handled` is what the caller was handling already when it
    sent the request."""
    said = getattr(exc, "response", None)
    # botocore wraps what is raised while it connects.
    own = mine(exc, handled)
    if own is not None:
        return own
    if not isinstance(said, dict):
        return _of_the_network(exc, where)
    status = int(said.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    return answered(str(said.get("Error", {}).get("Code", "")), status, where)


def answered(answer: str, status: int, where: Where) -> Exception:
    """Returns the error for the code and the status of an answer."""
    return CODES.error(answer, status, where)


def _of_the_network(exc: Exception, where: Where) -> Exception:
    from botocore.exceptions import BotoCoreError, ParamValidationError  # type: ignore[import-untyped]

    name = type(exc).__name__
    if isinstance(exc, ParamValidationError):
        return CdcError(TARGET_FAILED, f"the client of the object store refused it ({name})", where=where)
    if isinstance(exc, (BotoCoreError, OSError)) or type(exc).__module__.startswith("urllib3."):
        return CdcError(TARGET_UNREACHABLE, f"the object store does not answer ({name})", where=where)
    return exc
