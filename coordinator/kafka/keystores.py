"""Java's trust and key stores, as Kafka Connect's worker properties name them, translated for librdkafka.

PEM files and PKCS12 key stores are passed on, JKS and PKCS12 trust stores are read here, other stores have to be
converted by the operator.
"""

from __future__ import annotations

import base64
import hashlib
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from cdcworker.coordinator.kafka import errors as e
from cdcworker.schemas.errors import CdcError

TRUST: Final = "ssl.truststore.location"
KEYS: Final = "ssl.keystore.location"
JKS: Final = b"\xfe\xed\xfe\xed"
JCEKS: Final = b"\xce\xce\xce\xce"
SALT: Final = b"Mighty Aphrodite"
"""Java puts these bytes between password and content when it computes the digest at the end of a JKS store."""
DIGEST_BYTES: Final = 20
STORE_BYTES_MAX: Final = 16 << 20
Config = dict[str, Any]


def trust_store_config(properties: Mapping[str, str]) -> Config:
    """Returns `ssl.ca.location` or `ssl.ca.pem` for the trust store that the properties name; empty without one.

    Raises CdcError `kafka.client_config` for a store that cannot be read.
    """
    name = properties.get(TRUST)
    if not name:
        return {}
    data = _read(TRUST, name)
    if _is_pem(data):
        return {"ssl.ca.location": name}
    password = properties.get("ssl.truststore.password", "")
    if data.startswith(JKS):
        certificates = list(_certificates(data, password, name))
    elif data.startswith(JCEKS):
        raise _unreadable(TRUST, name, "is a JCEKS store", _TRUST_COMMAND)
    else:
        certificates = _from_pkcs12(data, password, name)
    if not certificates:
        raise _unreadable(TRUST, name, "holds no trusted certificate", "keytool -importcert -trustcacerts adds one.")
    return {"ssl.ca.pem": "".join(map(_pem, certificates))}


def key_store_config(properties: Mapping[str, str]) -> Config:
    """Returns librdkafka's properties for the client's certificate and key; empty without a key store.

    librdkafka reads PKCS12 itself, and PEM under other names. Raises CdcError `kafka.client_config` for other stores.
    """
    name = properties.get(KEYS)
    if not name:
        return {}
    data = _read(KEYS, name)
    if _is_pem(data):
        config: Config = {"ssl.certificate.location": name, "ssl.key.location": name}
        password = properties.get("ssl.key.password")
        return {**config, "ssl.key.password": password} if password else config
    if data.startswith((JKS, JCEKS)):
        kind = "JKS" if data.startswith(JKS) else "JCEKS"
        raise _unreadable(KEYS, name, f"is a {kind} store", _KEYS_COMMAND)
    return {KEYS: name, "ssl.keystore.password": properties.get("ssl.keystore.password", "")}


_TRUST_COMMAND: Final = (
    "Export it: keytool -list -rfc -keystore {file} > ca.pem, and name ca.pem in ssl.truststore.location."
)
_KEYS_COMMAND: Final = (
    "Convert it: keytool -importkeystore -srckeystore {file} -destkeystore client.p12 -deststoretype PKCS12, and name "
    "client.p12 in ssl.keystore.location."
)


def _read(key: str, name: str) -> bytes:
    try:
        with Path(name).open("rb") as file:
            data = file.read(STORE_BYTES_MAX + 1)
    except OSError as exc:
        raise _unreadable(
            key, name, f"cannot be read: {exc.strerror}", "Name a file that the worker's user may read."
        ) from None
    if len(data) > STORE_BYTES_MAX:
        raise _unreadable(key, name, f"is larger than {STORE_BYTES_MAX} bytes", "Name a store of certificates.")
    return data


def _is_pem(data: bytes) -> bool:
    return b"-----BEGIN " in data


def _unreadable(key: str, name: str, why: str, hint: str) -> CdcError:
    where = {"configPath": f"/{key}", "file": name}
    return CdcError(e.CLIENT_CONFIG, f"{key} {why}", where=where, hint=hint.format(file=name))


def _pem(certificate: bytes) -> str:
    text = base64.encodebytes(certificate).decode().replace("\n", "")
    lines = "\n".join(text[at : at + 64] for at in range(0, len(text), 64))
    return f"-----BEGIN CERTIFICATE-----\n{lines}\n-----END CERTIFICATE-----\n"


# --- JKS ------------------------------------------------------------------------------------------------------------


def _certificates(data: bytes, password: str, name: str) -> Iterator[bytes]:
    """Yields the trusted certificates of a JKS store in DER. With a password the store's digest has to match, as in
    Java."""
    content, digest = data[:-DIGEST_BYTES], data[-DIGEST_BYTES:]
    if password:
        expected = hashlib.sha1(password.encode("utf-16-be") + SALT + content, usedforsecurity=False).digest()
        if expected != digest:
            raise _unreadable(TRUST, name, "was altered, or its password is another one", "Correct the password.")
    try:
        yield from _entries(content)
    except (struct.error, UnicodeDecodeError, IndexError):
        raise _unreadable(TRUST, name, "is a torn JKS store", "Copy it again.") from None


def _entries(content: bytes) -> Iterator[bytes]:
    _, version, count = struct.unpack_from(">4sII", content)
    at = 12
    for _ in range(count):
        (tag,) = struct.unpack_from(">I", content, at)
        at = _after_text(content, at + 4) + 8  # the alias and the date
        if tag == 1:
            at = _after_key(content, at, version)
            continue
        at, certificate = _certificate(content, at, version)
        yield certificate


def _after_key(content: bytes, at: int, version: int) -> int:
    (length,) = struct.unpack_from(">I", content, at)
    at += 4 + length
    (chain,) = struct.unpack_from(">I", content, at)
    at += 4
    for _ in range(chain):
        at, _ = _certificate(content, at, version)
    return at


def _certificate(content: bytes, at: int, version: int) -> tuple[int, bytes]:
    if version == 2:
        at = _after_text(content, at)
    (length,) = struct.unpack_from(">I", content, at)
    at += 4
    if at + length > len(content):
        raise IndexError
    return at + length, content[at : at + length]


def _after_text(content: bytes, at: int) -> int:
    (length,) = struct.unpack_from(">H", content, at)
    return int(at + 2 + length)


# --- PKCS12 ---------------------------------------------------------------------------------------------------------


def _from_pkcs12(data: bytes, password: str, name: str) -> list[bytes]:
    """Reads a PKCS12 trust store by the `cryptography` library if it is installed; the worker does not require it."""
    try:
        from cryptography.hazmat.primitives.serialization import Encoding, pkcs12
    except ImportError:
        raise _unreadable(TRUST, name, "is no PEM file", _TRUST_COMMAND) from None
    try:
        store = pkcs12.load_pkcs12(data, password.encode() or None)
    except ValueError:
        raise _unreadable(TRUST, name, "is no store, or its password is another one", _TRUST_COMMAND) from None
    return [item.certificate.public_bytes(Encoding.DER) for item in store.additional_certs]
