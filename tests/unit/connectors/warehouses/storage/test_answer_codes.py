"""What Google's and Azure's stores answer, as errors of the sink."""

from __future__ import annotations

import pytest
from cdcworker.connectors.warehouses.storage import azure_container, gcs_bucket
from cdcworker.connectors.warehouses.storage.object_store import Conflict
from cdcworker.schemas.errors import CdcError

AZURE, GCS = azure_container.CODES, gcs_bucket.CODES


@pytest.mark.parametrize(
    ("codes", "answer", "status", "code"),
    [
        (AZURE, "AuthenticationFailed", 403, "spark.target_auth"),
        (AZURE, "AuthorizationPermissionMismatch", 403, "spark.target_rights"),
        (AZURE, "ContainerNotFound", 404, "spark.target_bucket"),
        (AZURE, "ServerBusy", 503, "spark.target_unreachable"),
        (AZURE, "", 500, "spark.target_unreachable"),
        (AZURE, "InvalidHeaderValue", 400, "spark.target_failed"),
        (GCS, "401", 401, "spark.target_auth"),
        (GCS, "403", 403, "spark.target_rights"),
        (GCS, "bucket", 404, "spark.target_bucket"),
        (GCS, "429", 429, "spark.target_unreachable"),
        (GCS, "503", 503, "spark.target_unreachable"),
        (GCS, "a text with a value", 400, "spark.target_failed"),
    ],
)
def test_an_answer_is_an_error_with_a_code_and_without_its_text(codes, answer, status, code):
    error = codes.error(answer, status, {})
    assert isinstance(error, CdcError)
    assert error.code == code
    assert "a text" not in str(error)


@pytest.mark.parametrize(
    ("codes", "answer", "status", "kind"),
    [
        (AZURE, "BlobNotFound", 404, FileNotFoundError),
        (AZURE, "BlobAlreadyExists", 409, Conflict),
        (AZURE, "ConditionNotMet", 412, Conflict),
        (AZURE, "InvalidRange", 416, EOFError),
        (GCS, "404", 404, FileNotFoundError),
        (GCS, "412", 412, Conflict),
        (GCS, "416", 416, EOFError),
    ],
)
def test_what_a_writer_waits_for_is_no_error_of_the_sink(codes, answer, status, kind):
    assert isinstance(codes.error(answer, status, {}), kind)
