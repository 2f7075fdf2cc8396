"""The worker's properties that have to do with security."""

from __future__ import annotations

from typing import Final

from cdcworker.connectors.config import ConfigKey, between, one_of
from cdcworker.connectors.hosts import parse_allowed
from cdcworker.connectors.spark.cluster import master_problem
from cdcworker.worker.security import reach
from cdcworker.worker.security.access import parse_grants

AUTH_FILE: Final = "rest.auth.file"
INSECURE_BIND: Final = "rest.insecure.bind"
HEALTH_OPEN: Final = "rest.auth.health.open"

AUTH_KEYS: Final = (
    ConfigKey(
        AUTH_FILE,
        importance="HIGH",
        doc="The file of users: tokens and passwords, hashed, and what each may do. `cdcworker auth` writes it; it is "
        "read again when it changes. With it every request needs a credential.",
    ),
    ConfigKey(
        HEALTH_OPEN,
        "BOOLEAN",
        default=True,
        doc="Let /health, /healthz and /readyz answer without a credential, for probes. /v1/live always does: workers "
        "look there whether a silent one has gone.",
    ),
    ConfigKey(
        INSECURE_BIND,
        "BOOLEAN",
        default=False,
        doc="Allow a listener that is not on the loopback interface although the REST API has no authentication.",
    ),
)
KEY_TTL: Final = "inter.worker.key.ttl.ms"
WORKER_KEYS: Final = (
    ConfigKey(
        KEY_TTL,
        "INT",
        default=3_600_000,
        doc="How long workers sign their requests to each other with one key (ms). The leader makes the next one; keys "
        "are in the config log, as Kafka Connect's are.",
        validator=between(60_000, 2_147_483_647),
    ),
)
CONVERT: Final = (
    "a PKCS12 store is converted with openssl pkcs12 -in STORE -nodes -out FILE.pem, a JKS store before that with "
    "keytool -importkeystore -srckeystore STORE -destkeystore STORE.p12 -deststoretype PKCS12"
)
_HTTPS: Final = "listeners.https.ssl."
CERTIFICATE: Final = _HTTPS + "certificate.location"
KEY: Final = _HTTPS + "key.location"
KEY_PASSWORD: Final = _HTTPS + "key.password"
KEYSTORE: Final = _HTTPS + "keystore.location"
KEYSTORE_TYPE: Final = _HTTPS + "keystore.type"
TRUSTSTORE: Final = _HTTPS + "truststore.location"
TRUSTSTORE_TYPE: Final = _HTTPS + "truststore.type"
CLIENT_AUTH: Final = _HTTPS + "client.auth"
PROTOCOLS: Final = _HTTPS + "enabled.protocols"
CERTIFICATE_GRANTS: Final = "rest.auth.certificate.grants"


def _pem(value: str) -> str | None:
    return None if value.upper() == "PEM" else f"expects PEM; {CONVERT}"


def _protocols(value: list[str]) -> str | None:
    return None if value and set(value) <= {"TLSv1.2", "TLSv1.3"} else "expects TLSv1.2, TLSv1.3 or both"


def _grants(value: list[str]) -> str | None:
    try:
        parse_grants(value)
    except ValueError as exc:
        return str(exc)
    return None


TLS_KEYS: Final = (
    ConfigKey(
        CERTIFICATE, doc="PEM file with the certificate of an https listener, and those between it and the root."
    ),
    ConfigKey(KEY, doc="PEM file with its key, if that is not in the same file."),
    ConfigKey(KEY_PASSWORD, "PASSWORD", doc="Of the key, if it is encrypted."),
    ConfigKey(KEYSTORE, doc="Kafka Connect's name for a PEM file with certificate and key."),
    ConfigKey(KEYSTORE_TYPE, default="PEM", doc="PEM is the one type that there is.", validator=_pem),
    ConfigKey(
        TRUSTSTORE,
        doc="PEM file with the authorities that sign the certificates of clients and of the other workers. An authority "
        "that is taken out of it counts until the worker is restarted.",
    ),
    ConfigKey(TRUSTSTORE_TYPE, default="PEM", doc="PEM is the one type that there is.", validator=_pem),
    ConfigKey(
        CLIENT_AUTH,
        default="none",
        doc="Whether clients show a certificate: none, requested or required.",
        validator=one_of("none", "requested", "required"),
    ),
    ConfigKey(
        PROTOCOLS,
        "LIST",
        default=["TLSv1.2", "TLSv1.3"],
        doc="Versions of TLS that are spoken.",
        validator=_protocols,
    ),
    ConfigKey(
        CERTIFICATE_GRANTS,
        "LIST",
        default=["admin"],
        doc="What a client with a certificate may do when client.auth is required and there is no file of users; with "
        "one, the certificates that it lists count.",
        validator=_grants,
    ),
)
PER_SECOND: Final = "rest.requests.per.second"
BURST: Final = "rest.requests.burst"
CONNECTIONS: Final = "rest.connections.max"
CLIENT_CONNECTIONS: Final = "rest.connections.per.client.max"
BODY_BYTES: Final = "rest.body.bytes.max"
LIMIT_KEYS: Final = (
    ConfigKey(
        PER_SECOND,
        "INT",
        default=200,
        doc="Requests that one client may make each second in the long run: a user, or an address where nobody has to "
        "say who asks. More are answered with 429. 0: no limit.",
        validator=between(0, 1_000_000),
    ),
    ConfigKey(
        BURST,
        "INT",
        default=1_000,
        doc="Requests that a client may make at once after a pause.",
        validator=between(1, 1_000_000),
    ),
    ConfigKey(
        CONNECTIONS,
        "INT",
        default=1_000,
        doc="Open connections of the REST listener; requests above it are answered with 503.",
        validator=between(10, 100_000),
    ),
    ConfigKey(
        CLIENT_CONNECTIONS,
        "INT",
        default=200,
        doc="Open connections that one address may have; further ones are cut.",
        validator=between(1, 100_000),
    ),
    ConfigKey(
        BODY_BYTES,
        "INT",
        default=1 << 20,
        doc="Size of a request's body (bytes); larger ones are answered with 413.",
        validator=between(1_024, 1 << 26),
    ),
)


def _allowed(value: list[str]) -> str | None:
    try:
        parse_allowed(value)
    except ValueError as exc:
        return str(exc)
    return None


def _masters(value: list[str]) -> str | None:
    return next(filter(None, map(master_problem, value)), None)


REACH_KEYS: Final = (
    ConfigKey(
        reach.HOSTS,
        "LIST",
        default=[],
        doc="Hosts that connectors may open connections to: networks (10.1.0.0/16), names, .domain for all below it. "
        "Empty: all but addresses of the link, of metadata services and of no single machine, which are never allowed.",
        validator=_allowed,
    ),
    ConfigKey(
        reach.LOOPBACK,
        "BOOLEAN",
        doc="Whether connectors may connect to this machine itself. Default: if the REST API listens there only.",
    ),
    ConfigKey(
        reach.TLS_PATHS,
        "LIST",
        default=["/etc/ssl", "/etc/pki", "/etc/cdcworker", "/run/secrets", "/var/run/secrets/cdcworker"],
        doc="Folders in which the certificate files that connectors' configs name have to lie.",
    ),
    ConfigKey(
        reach.MASTERS,
        "LIST",
        default=[],
        doc="Masters of Spark that sinks may name with spark.launcher=client, as they stand in spark.master: "
        "spark://host:port, yarn, k8s://https://host:port. Empty: none, their tasks run on the workers.",
        validator=_masters,
    ),
    ConfigKey(
        reach.ARCHIVES,
        "LIST",
        default=[],
        doc="Archives that sinks may name in spark.archives, as they stand there before #name: absolute paths or URIs. "
        "Their drivers read them, executors run what is in them. Empty: none.",
    ),
    ConfigKey(
        reach.TLS,
        default="any",
        doc="What connectors' connections to other machines need: any takes each config's own sslmode, encrypted require "
        "or more, verified verify-full.",
        validator=one_of(*reach.MODES),
    ),
)
AUDIT_TOPIC: Final = "audit.topic"
AUDIT_KEYS: Final = (
    ConfigKey(
        AUDIT_TOPIC,
        doc="Topic for a record of every change over REST and of every denial: who, what, connector, from what to "
        "what, result, request id, never a secret. Empty: they are in the log only. It is made with a retention of a year.",
    ),
)
SECURITY_KEYS: Final = (*AUDIT_KEYS, *AUTH_KEYS, *LIMIT_KEYS, *REACH_KEYS, *TLS_KEYS, *WORKER_KEYS)
