"""The worker's Kafka client properties as Java's client takes them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

_JVM_KEYS = {
    "bootstrap.servers": "bootstrap.servers",
    "security.protocol": "security.protocol",
    "sasl.mechanism": "sasl.mechanism",
    "sasl.mechanisms": "sasl.mechanism",
    "client.id": "client.id",
    "ssl.key.password": "ssl.key.password",
}


def jvm_settings(kafka: Mapping[str, str]) -> dict[str, str]:
    """Returns the properties of the connection for Java's client; those of other kinds are left out."""
    out = {_JVM_KEYS[name]: value for name, value in kafka.items() if name in _JVM_KEYS}
    user, password = kafka.get("sasl.username"), kafka.get("sasl.password")
    if user is not None and password is not None:
        scram = kafka.get("sasl.mechanism", kafka.get("sasl.mechanisms", "PLAIN")).startswith("SCRAM")
        module = "scram.ScramLoginModule" if scram else "plain.PlainLoginModule"
        quoted = (text.replace("\\", "\\\\").replace('"', '\\"') for text in (user, password))
        out["sasl.jaas.config"] = (
            f'org.apache.kafka.common.security.{module} required username="%s" password="%s";' % tuple(quoted)
        )
    out |= _jvm_stores(kafka)
    if kafka.get("ssl.endpoint.identification.algorithm") == "none":
        out["ssl.endpoint.identification.algorithm"] = ""
    return out


def _jvm_stores(kafka: Mapping[str, str]) -> dict[str, str]:
    """PEM goes over as text; a PKCS12 store of the client is one for Java too."""
    out: dict[str, str] = {}
    if "ssl.ca.location" in kafka:
        out |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": kafka["ssl.ca.location"]}
    elif "ssl.ca.pem" in kafka:
        out |= {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": kafka["ssl.ca.pem"]}
    if "ssl.keystore.location" in kafka:
        out |= {"ssl.keystore.type": "PKCS12", "ssl.keystore.location": kafka["ssl.keystore.location"]}
        out["ssl.keystore.password"] = kafka.get("ssl.keystore.password", "")
        return out
    chain, key = (_pem(kafka, f"ssl.{part}") for part in ("certificate", "key"))
    if chain and key:
        out |= {"ssl.keystore.type": "PEM", "ssl.keystore.certificate.chain": chain, "ssl.keystore.key": key}
    return out


def _pem(kafka: Mapping[str, str], name: str) -> str:
    """The certificates or the key alone, of a file that may hold both."""
    text = kafka.get(f"{name}.pem") or (
        Path(kafka[f"{name}.location"]).read_text(encoding="utf-8") if f"{name}.location" in kafka else ""
    )
    wanted = r"CERTIFICATE" if name == "ssl.certificate" else r"[A-Z ]*PRIVATE KEY"
    return "".join(
        f"{block[0]}\n" for block in re.finditer(rf"-----BEGIN ({wanted})-----.*?-----END \1-----", text, re.S)
    )
