"""TLS towards a MySQL warehouse: a server of its own with a certificate."""

from __future__ import annotations

from dataclasses import replace

import pytest
from cdcworker.connectors.warehouses.mysql.connection import opened, probe
from cdcworker.schemas.errors import CdcError

from tests.certificates import Authority
from tests.mariadb_server import MariaDbServer, find_programs

pytestmark = [pytest.mark.mysql, pytest.mark.long]
CIPHER = "show status like 'Ssl_cipher'"


@pytest.fixture(scope="module")
def secured(tmp_path_factory):
    """A server whose certificate is for 127.0.0.1, the file of its authority, and that of another one."""
    folder = tmp_path_factory.mktemp("tls")
    ours, other = Authority(folder, "ours"), Authority(folder, "other")
    issued = str(ours.issue("server"))
    settings = {"skip-ssl": None, "ssl-cert": issued, "ssl-key": issued, "ssl-ca": str(ours.file)}
    server = MariaDbServer(find_programs(), folder / "server", settings)
    server.start()
    try:
        yield server, str(ours.file), str(other.file)
    finally:
        server.remove()


@pytest.mark.parametrize("mode", ["prefer", "require", "verify-ca", "verify-full"])
def test_a_connection_is_encrypted(secured, mode):
    server, authority, _ = secured
    connection = opened(server.login(sslmode=mode, sslrootcert=authority))
    try:
        assert connection.one(CIPHER)[1]
    finally:
        connection.close()


def test_it_is_not_where_that_is_said(secured):
    connection = opened(secured[0].login(sslmode="disable"))
    try:
        assert not connection.one(CIPHER)[1]
    finally:
        connection.close()


@pytest.mark.parametrize("mode", ["require", "verify-ca", "verify-full"])
def test_a_server_of_another_authority_is_refused(secured, mode):
    server, _, other = secured
    with pytest.raises(CdcError) as caught:
        probe(server.login(sslmode=mode, sslrootcert=other))
    assert caught.value.code == "spark.target_certificate"


def test_a_server_of_another_name_is_refused_where_names_are_verified(secured):
    server, authority, _ = secured
    probe(replace(server.login(sslmode="verify-ca", sslrootcert=authority), hosts="localhost"))
    with pytest.raises(CdcError) as caught:
        probe(replace(server.login(sslmode="verify-full", sslrootcert=authority), hosts="localhost"))
    assert caught.value.code == "spark.target_certificate"
