"""Warnings about connections to Kafka that are weaker than they could be, logged at each start."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

OFF: Final = ("none", "")
READABLE: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")


def in_clear(properties: Mapping[str, str]) -> Iterator[str]:
    """Yields a warning for each weak setting of the Kafka clients."""
    protocol = properties.get("security.protocol", "").upper()
    mechanism = properties.get("sasl.mechanism", properties.get("sasl.mechanisms", "")).upper()
    if protocol == "SASL_PLAINTEXT" and mechanism in READABLE:
        yield f"security.protocol=SASL_PLAINTEXT with {mechanism}: whoever listens can log in to Kafka; use SASL_SSL"
    # Certificates are always verified: the worker takes no property that says otherwise.
    if (
        protocol.endswith("SSL")
        and properties.get("ssl.endpoint.identification.algorithm", "https").strip().lower() in OFF
    ):
        yield "ssl.endpoint.identification.algorithm is off: any certificate of the authority can pass for Kafka"
