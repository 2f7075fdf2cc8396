"""The worker's properties for security."""

from __future__ import annotations

from typing import Final

from cdcworker.connectors.config import server_authentication, tls_policy
from cdcworker.connectors.config.allowed_hosts import parse_allowed
from cdcworker.connectors.config.definition import ConfigKey, between, one_of
from cdcworker.connectors.spark.runtime.cluster import master_problem
from cdcworker.worker.security import allowed_targets
from cdcworker.worker.security.access import parse_grants
from cdcworker.worker.security.topic_rules import TOPIC_KEYS

AUTH_FILE: Final = "rest.auth.file"
OIDC_ISSUER: Final = "rest.oidc.issuer"
INSECURE_BIND: Final = "rest.insecure.bind"
HEALTH_OPEN: Final = "rest.auth.health.open"
CONFIGS_AS_WRITTEN: Final = "rest.configs.as.written"

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
    ConfigKey(
        CONFIGS_AS_WRITTEN,
        default="nobody",
        validator=one_of("nobody", "admin"),
        doc="Who reads the configs of connectors as they were written, with their secrets. admin: users with the role "
        "admin on the connector, for tools that compare what they wrote with what they read; the audit tells of every "
        "such answer. All others get secrets masked, and so does everybody without authentication.",
    ),
)
KEY_TTL: Final = "inter.worker.key.ttl.ms"
SECRET_FILE: Final = "inter.worker.secret.file"  # noqa: S105  the name of a property
PLAIN_KEY: Final = "inter.worker.plain.key.accepted"
WORKER_CERTIFICATES: Final = "inter.worker.certificates"
WORKER_KEYS: Final = (
    ConfigKey(
        SECRET_FILE,
        importance="HIGH",
        doc="A file that all workers have, with a secret of 32 characters or more in each line. Requests between workers "
        "are signed with keys made of it and of the key in the config log. All its secrets count, so that they can be "
        "changed one worker after the other. It is read again when it changes. Without it whoever can read the config "
        "topic can pass for a worker.",
    ),
    ConfigKey(
        PLAIN_KEY,
        "BOOLEAN",
        default=False,
        doc="Also sign with, and take, the key in the config log by itself although there is a file of secrets: as long as "
        "some workers have not got the file yet.",
    ),
    ConfigKey(
        WORKER_CERTIFICATES,
        "LIST",
        default=[],
        doc="Common names of the workers' certificates. If set, signed requests count only on connections with one of "
        "them; it needs an https listener with client.auth requested or required.",
    ),
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
    ConfigKey(KEY_PASSWORD, "PASSWORD", doc="Password of the key, if it is encrypted."),
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
        default=[],
        doc="What every client with a certificate of an authority in the truststore may do when client.auth is required "
        "and there is no file of users; with one, the certificates that it lists count. Empty: nothing.",
        validator=_grants,
    ),
)
PER_SECOND: Final = "rest.requests.per.second"
BURST: Final = "rest.requests.burst"
CONNECTIONS: Final = "rest.connections.max"
CLIENT_CONNECTIONS: Final = "rest.connections.per.client.max"
USER_CONNECTIONS: Final = "rest.connections.per.user.max"
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
        doc="Open connections that one address may have; over further ones only health endpoints answer.",
        validator=between(1, 100_000),
    ),
    ConfigKey(
        USER_CONNECTIONS,
        "INT",
        default=200,
        doc="Open connections that one user may have, from all addresses together; requests over further ones are "
        "answered with 429.",
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
        allowed_targets.HOSTS,
        "LIST",
        default=[],
        doc="Hosts that connectors may open connections to: networks (10.1.0.0/16), names, .domain for all below it. "
        "Empty: all but addresses of the link, of metadata services and of no single machine, which are never allowed.",
        validator=_allowed,
    ),
    ConfigKey(
        allowed_targets.LOOPBACK,
        "BOOLEAN",
        doc="Whether connectors may connect to this machine itself. Default: if the REST API listens there only.",
    ),
    ConfigKey(
        allowed_targets.LAKE_HOSTS,
        "LIST",
        default=[],
        doc="Hosts that Java's clients of lakes may connect to besides, as in connector.hosts.allowed, closed addresses"
        " included: the metadata service by which a store's client gets the machine's credentials, for example. Every"
        " connector with a lake can use them.",
        validator=_allowed,
    ),
    ConfigKey(
        allowed_targets.TLS_PATHS,
        "LIST",
        default=["/etc/ssl", "/etc/pki", "/etc/cdcworker", "/run/secrets", "/var/run/secrets/cdcworker"],
        doc="Folders in which the certificate files that connectors' configs name have to lie.",
    ),
    ConfigKey(
        allowed_targets.MASTERS,
        "LIST",
        default=[],
        doc="Masters of Spark that sinks may name with spark.launcher=client, as they stand in spark.master: "
        "spark://host:port, yarn, k8s://https://host:port. Empty: none, their tasks run on the workers.",
        validator=_masters,
    ),
    ConfigKey(
        allowed_targets.ARCHIVES,
        "LIST",
        default=[],
        doc="Archives that sinks may name in spark.archives, as they stand there before #name: absolute paths or URIs. "
        "Their drivers read them, executors run what is in them. So are the values that spark.properties may give to "
        "spark.yarn.archive, spark.yarn.jars and spark.kubernetes.container.image. Empty: none.",
    ),
    ConfigKey(
        allowed_targets.TLS,
        default="any",
        doc="What connectors' connections to other machines need: any takes each config's own sslmode, encrypted require "
        "or more, verified verify-full. Both take https for http in addresses of lakes, and a metastore of Hive only with "
        "TLS, which never counts as verified.",
        validator=one_of(*tls_policy.LEVELS),
    ),
    ConfigKey(
        allowed_targets.WEAKEST_AUTH,
        default=server_authentication.METHODS[0],
        doc="The weakest way in which connectors log in to a PostgreSQL server that TLS does not verify (sslmode below "
        "verify-ca): scram-sha-256 tells it nothing of the password, md5 a hash that can be used and guessed, password "
        "the password itself. The last two are for networks that are trusted. Only with password does the JDBC driver of a "
        "lake's catalog get a password for a database that TLS does not verify.",
        validator=one_of(*server_authentication.METHODS),
    ),
    ConfigKey(
        allowed_targets.LIBPQ_DEFAULTS,
        "BOOLEAN",
        default=False,
        doc="Connectors to PostgreSQL without a login in their configs take what libpq finds by itself: PGPASSWORD, the "
        "password file (~/.pgpass) and the client certificate in ~/.postgresql of the user that runs the worker. Whoever may "
        "create connectors can log in with these to a server that he names.",
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
SECURITY_KEYS: Final = (*AUDIT_KEYS, *AUTH_KEYS, *LIMIT_KEYS, *REACH_KEYS, *TLS_KEYS, *TOPIC_KEYS, *WORKER_KEYS)
