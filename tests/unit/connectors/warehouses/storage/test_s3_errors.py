"""What a store that speaks S3 answers, as errors of the sink."""

from __future__ import annotations

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError, ParamValidationError, ReadTimeoutError
from cdcworker.connectors.warehouses.storage.object_store import Conflict
from cdcworker.connectors.warehouses.storage.s3_errors import translated
from cdcworker.schemas.errors import CdcError

WHERE = {"bucket": "b"}


def answer(code, status):
    said = {"Error": {"Code": code, "Message": "canary"}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return ClientError(said, "PutObject")


@pytest.mark.parametrize(
    ("exc", "code"),
    [
        (answer("NoSuchBucket", 404), "spark.target_bucket"),
        (answer("PermanentRedirect", 301), "spark.target_bucket"),
        (answer("307", 307), "spark.target_bucket"),
        (answer("AuthorizationHeaderMalformed", 400), "spark.target_bucket"),
        (answer("InvalidAccessKeyId", 403), "spark.target_auth"),
        (answer("SignatureDoesNotMatch", 403), "spark.target_auth"),
        (answer("ExpiredToken", 400), "spark.target_auth"),
        (answer("AccessDenied", 403), "spark.target_rights"),
        (answer("403", 403), "spark.target_rights"),
        (answer("RequestTimeTooSkewed", 403), "spark.target_clock"),
        (answer("NotImplemented", 501), "spark.target_store_unfit"),
        (answer("SlowDown", 503), "spark.target_unreachable"),
        (answer("", 502), "spark.target_unreachable"),
        (answer("TooManyRequests", 429), "spark.target_unreachable"),
        (answer("ConditionalRequestConflict", 409), "spark.target_unreachable"),
        (answer("InvalidArgument", 400), "spark.target_failed"),
        (answer("canary of <any> kind", 400), "spark.target_failed"),
        (EndpointConnectionError(endpoint_url="http://canary"), "spark.target_unreachable"),
        (ReadTimeoutError(endpoint_url="http://canary"), "spark.target_unreachable"),
        (ParamValidationError(report="canary"), "spark.target_failed"),
        (ConnectionResetError(104, "canary"), "spark.target_unreachable"),
    ],
)
def test_an_answer_has_a_code_and_nothing_of_the_stores_text(exc, code):
    error = translated(exc, WHERE)
    assert isinstance(error, CdcError)
    assert (error.code, dict(error.where)) == (code, WHERE)
    assert "canary" not in str(error)


@pytest.mark.parametrize(
    ("exc", "kind"),
    [
        (answer("NoSuchKey", 404), FileNotFoundError),
        (answer("404", 404), FileNotFoundError),
        (answer("PreconditionFailed", 412), Conflict),
        (answer("412", 412), Conflict),
    ],
)
def test_what_is_missing_or_there_already_is_told_apart(exc, kind):
    assert isinstance(translated(exc, WHERE), kind)


def test_an_error_that_is_not_the_stores_stays_as_it_is():
    mine, other = CdcError("spark.fenced", "x"), KeyError("x")
    assert translated(mine, WHERE) is mine
    assert translated(other, WHERE) is other


def test_what_the_caller_was_handling_is_not_taken_for_the_stores_answer():
    mine = CdcError("spark.ledger_moved", "moved")
    try:
        try:
            raise mine
        except CdcError:
            raise OSError("network") from None
    except OSError as exc:
        found = exc
    assert found.__context__ is mine
    assert translated(found, {}, mine).code == "spark.target_unreachable"
    assert translated(found, {}) is mine
