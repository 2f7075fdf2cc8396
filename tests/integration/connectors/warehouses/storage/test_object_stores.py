"""The contract of object stores on real servers of S3, of Google Cloud Storage and of Azure's Blob Storage."""

from __future__ import annotations

import base64
import uuid

import pytest

from tests import s3_server
from tests.contract import object_stores as contract
from tests.object_stores import azure_server, gcs_server
from tests.s3_faults import FaultProxy

TOKEN = b'{"access_token": "a", "token_type": "Bearer", "expires_in": 3600}'
REFUSED = b'{"error": "invalid_grant"}'


@pytest.mark.s3
class TestS3(contract.Contract):
    @pytest.fixture
    def proxy(self, s3):
        with FaultProxy(s3_server.HOST, s3.port) as proxy:
            yield proxy

    @pytest.fixture
    def open_store(self, proxy):
        home = uuid.uuid4().hex
        return lambda prefix="own", **config: s3_server.bucket_at(proxy.endpoint, f"{home}/{prefix}", **config)

    @pytest.fixture
    def wrong(self):
        return {
            "spark.target_bucket": {"warehouse.path": "s3://not-there/x"},
            "spark.target_auth": {"warehouse.s3.secret.key": "this is wrong"},
        }


@pytest.mark.gcs
class TestGcs(contract.Contract):
    @pytest.fixture
    def proxy(self, gcs):
        with FaultProxy(gcs_server.HOST, gcs.port) as proxy:
            proxy.own = {"/token": (200, TOKEN), "/refused": (400, REFUSED)}
            yield proxy

    @pytest.fixture
    def open_store(self, proxy):
        home = uuid.uuid4().hex
        return lambda prefix="own", **config: gcs_server.store_at(proxy.endpoint, f"{home}/{prefix}", **config)

    @pytest.fixture
    def wrong(self, proxy):
        return {
            "spark.target_bucket": {"warehouse.path": "gs://not-there/x"},
            "spark.target_auth": {"warehouse.gcs.credentials": gcs_server.account(f"{proxy.endpoint}/refused")},
        }

    @pytest.mark.parametrize("answer", [(503, b"{}"), (502, b"<html>"), (200, b"<html>"), (200, b"[]")])
    def test_a_server_of_tokens_that_is_down_is_waited_for(self, open_store, proxy, answer):
        proxy.own["/token"] = answer
        store = open_store()
        error = contract.refused(store.probe)
        assert (error.code, error.kind) == ("spark.target_unreachable", "transient")
        proxy.own["/token"] = (200, TOKEN)
        store.probe()

    def test_a_request_that_took_the_server_too_long_is_sent_again(self, open_store, proxy):
        proxy.plan("slow", contract.write_of("x"))
        open_store().create("x", b"1")


@pytest.mark.azure
class TestAzure(contract.Contract):
    @pytest.fixture
    def proxy(self, azure):
        with FaultProxy(azure_server.HOST, azure.port) as proxy:
            yield proxy

    @pytest.fixture
    def open_store(self, proxy):
        home = uuid.uuid4().hex
        return lambda prefix="own", **config: azure_server.store_at(proxy.endpoint, f"{home}/{prefix}", **config)

    @pytest.fixture
    def wrong(self):
        place = azure_server.PLACE.replace(azure_server.CONTAINER, "not-there", 1)
        return {
            "spark.target_bucket": {"warehouse.path": f"{place}/x"},
            # Azure itself says AuthenticationFailed, which is spark.target_auth; Azurite says AuthorizationFailure.
            "spark.target_rights": {"warehouse.azure.account.key": base64.b64encode(b"another one").decode()},
        }
