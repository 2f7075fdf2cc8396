"""Java's stores of certificates under the names of Kafka's Java clients: read, handed on, or refused with the command."""

from __future__ import annotations

import hashlib
import struct
import sys

import pytest
from cdcworker.coordinator.kafka import errors as e
from cdcworker.coordinator.kafka.clients import connection, make_producer, producer_config
from cdcworker.schemas.errors import CdcError
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.serialization import pkcs12

from tests.certificates import Authority

BROKERS = {"bootstrap.servers": "kafka:9092", "security.protocol": "SSL"}
PASSWORD = "changeit"
PEM = serialization.Encoding.PEM
DER = serialization.Encoding.DER


@pytest.fixture(scope="module")
def pki(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pki")
    authority = Authority(folder, "ca")
    return authority, x509.load_pem_x509_certificate(authority.file.read_bytes()), authority.issue("client")


def text(value):
    return struct.pack(">H", len(value.encode())) + value.encode()


def jks(*entries, password=PASSWORD):
    content = struct.pack(">III", 0xFEEDFEED, 2, len(entries)) + b"".join(entries)
    return content + hashlib.sha1(password.encode("utf-16-be") + b"Mighty Aphrodite" + content).digest()


def certificate(der):
    return text("X.509") + struct.pack(">I", len(der)) + der


def trusted_entry(der):
    return struct.pack(">I", 2) + text("ca") + bytes(8) + certificate(der)


def key_entry(der):
    chain = struct.pack(">I", 1) + certificate(der)
    return struct.pack(">I", 1) + text("me") + bytes(8) + struct.pack(">I", 3) + b"key" + chain


def trust(path, **more):
    return connection({**BROKERS, "ssl.truststore.location": str(path), **more}, "admin")


def test_a_jks_trust_store_is_read(pki, tmp_path):
    _, known, _ = pki
    path = tmp_path / "kafka.client.truststore.jks"
    path.write_bytes(jks(key_entry(b"other"), trusted_entry(known.public_bytes(DER))))
    for more in ({}, {"ssl.truststore.password": PASSWORD}):
        found = trust(path, **more)
        assert x509.load_pem_x509_certificates(found["ssl.ca.pem"].encode()) == [known]
        assert not [name for name in found if "truststore" in name]
    make_producer(producer_config({**BROKERS, "ssl.truststore.location": str(path)}, client_id="x"))


def test_a_pkcs12_trust_store_is_read_where_the_library_is_there(pki, tmp_path, monkeypatch):
    _, known, _ = pki
    path = tmp_path / "trust.jks"
    sealed = serialization.BestAvailableEncryption(PASSWORD.encode())
    path.write_bytes(pkcs12.serialize_key_and_certificates(None, None, None, [known], sealed))
    found = trust(path, **{"ssl.truststore.password": PASSWORD})
    assert x509.load_pem_x509_certificates(found["ssl.ca.pem"].encode()) == [known]
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.serialization", None)
    with pytest.raises(CdcError, match="is no PEM file") as caught:
        trust(path, **{"ssl.truststore.password": PASSWORD})
    assert f"keytool -list -rfc -keystore {path}" in caught.value.hint


def test_a_pem_store_by_any_name_is_what_the_library_reads(pki, tmp_path):
    authority, _, client = pki
    assert trust(authority.file)["ssl.ca.location"] == str(authority.file)
    given = {**BROKERS, "ssl.keystore.type": "PEM", "ssl.keystore.location": str(client), "ssl.key.password": "x"}
    found = connection(given, "admin")
    names = ("ssl.certificate.location", "ssl.key.location", "ssl.key.password")
    assert [found[name] for name in names] == [str(client), str(client), "x"]
    assert "ssl.keystore.location" not in found
    make_producer(producer_config({**given, "ssl.key.password": ""}, client_id="x"))


def test_a_pkcs12_key_store_goes_to_the_library_as_it_is(pki, tmp_path):
    _, known, client = pki
    key = serialization.load_pem_private_key(client.read_bytes(), None)
    own = x509.load_pem_x509_certificate(client.read_bytes())
    path = tmp_path / "client.keystore.jks"
    sealed = serialization.BestAvailableEncryption(PASSWORD.encode())
    path.write_bytes(pkcs12.serialize_key_and_certificates(b"me", key, own, [known], sealed))
    given = {
        **BROKERS,
        "ssl.keystore.location": str(path),
        "ssl.keystore.password": PASSWORD,
        "ssl.keystore.type": "JKS",
    }
    assert connection(given, "admin")["ssl.keystore.location"] == str(path)
    make_producer(producer_config(given, client_id="x"))


@pytest.mark.parametrize(
    ("key", "content", "says", "command"),
    [
        ("keystore", jks(), "is a JKS store", "-deststoretype PKCS12"),
        ("keystore", b"\xce\xce\xce\xce", "is a JCEKS store", "-deststoretype PKCS12"),
        ("truststore", b"\xce\xce\xce\xce", "is a JCEKS store", "keytool -list -rfc"),
        ("truststore", jks(), "no trusted certificate", "keytool -importcert"),
        ("truststore", jks(password="other"), "password is another", "password"),
        ("truststore", jks(struct.pack(">I", 2) + text("ca")), "torn", "again"),
        ("truststore", b"nonsense", "is no store", "keytool -list -rfc"),
        ("truststore", None, "cannot be read: No such file", "may read"),
        ("keystore", None, "cannot be read: No such file", "may read"),
    ],
)
def test_what_cannot_be_read_is_told_with_the_way_out(tmp_path, key, content, says, command):
    path = tmp_path / "store.jks"
    if content is not None:
        path.write_bytes(content)
    given = {**BROKERS, f"ssl.{key}.location": str(path), f"ssl.{key}.password": PASSWORD}
    with pytest.raises(CdcError, match=says) as caught:
        connection(given, "consumer")
    assert (caught.value.code, caught.value.where["configPath"]) == (e.CLIENT_CONFIG, f"/ssl.{key}.location")
    assert command in caught.value.hint
    assert PASSWORD not in f"{caught.value} {caught.value.hint}"
