"""The Parquet warehouse in the stores of Google and of Azure: what every warehouse has to do, on real servers."""

from __future__ import annotations

import uuid

import pytest

from tests.contract import dead_letters, warehouses
from tests.integration.connectors.warehouses.lake.test_writer import long_but_for
from tests.object_stores import azure_server, gcs_server
from tests.s3_faults import FaultProxy

from . import test_s3_contract as s3

TOKEN = b'{"access_token": "a", "token_type": "Bearer", "expires_in": 3600}'
QUICK = ("test_rows_are_inserted_updated_and_deleted", "test_the_same_batch_twice_changes_nothing")


@pytest.fixture
def gcs_files(gcs):
    """By way of a proxy that gives tokens."""
    with FaultProxy(gcs_server.HOST, gcs.port) as proxy:
        proxy.own["/token"] = (200, TOKEN)
        yield gcs_server.store_at(proxy.endpoint, uuid.uuid4().hex)


@pytest.fixture
def azure_files(azure):
    return azure_server.store_at(azure.endpoint, uuid.uuid4().hex)


@pytest.mark.gcs
@long_but_for(QUICK, warehouses.Contract)
class TestGcs(s3.TestWarehouse):
    @pytest.fixture
    def files(self, gcs_files):
        return gcs_files


@pytest.mark.azure
@long_but_for(QUICK, warehouses.Contract)
class TestAzure(s3.TestWarehouse):
    @pytest.fixture
    def files(self, azure_files):
        return azure_files


class Letters(dead_letters.Contract):
    @pytest.fixture
    def open_sink(self, files):
        return lambda **output: s3.Sink(files, **output)


@pytest.mark.gcs
@long_but_for((), dead_letters.Rows, dead_letters.Contract)
class TestGcsLetters(Letters):
    @pytest.fixture
    def files(self, gcs_files):
        return gcs_files


@pytest.mark.azure
@long_but_for((), dead_letters.Rows, dead_letters.Contract)
class TestAzureLetters(Letters):
    @pytest.fixture
    def files(self, azure_files):
        return azure_files
