"""The cluster that is written to: how its clients are set up, and that only hosts are connected to that connectors may reach."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from cdcworker.connectors.api.record_target import TargetUnavailable
from cdcworker.connectors.config import allowed_hosts, tls_policy
from cdcworker.connectors.config.tls_policy import PLAIN, VERIFIED
from cdcworker.connectors.record_sink.errors import TARGET_UNAVAILABLE
from cdcworker.connectors.targets.kafka.config import PROTOCOL, SERVERS, hosts_of, is_secure
from cdcworker.connectors.targets.kafka.errors import LOGIN, error_of
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

ANSWER_S: Final = 5.0
_PEM: Final = {
    "truststore.certificates": "ssl.ca.pem",
    "keystore.certificate.chain": "ssl.certificate.pem",
    "keystore.key": "ssl.key.pem",
}


def settings_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the connection of every client. CdcError where the worker asks for more TLS."""
    level = VERIFIED if is_secure(config) else PLAIN
    tls_policy.check(PROTOCOL, config[PROTOCOL], level, hosts_of(config))
    settings = {
        "bootstrap.servers": ",".join(config[SERVERS]),
        "security.protocol": config[PROTOCOL],
        "client.id": "cdcworker-mirror",
        "socket.timeout.ms": 10_000,
        "socket.connection.setup.timeout.ms": 5_000,
        "socket.keepalive.enable": True,
        "socket.nagle.disable": True,
        "reconnect.backoff.ms": 50,
        "reconnect.backoff.max.ms": 1_000,
        "log_level": 2,
    }
    if config["target.sasl.password"]:
        settings["sasl.mechanism"] = config["target.sasl.mechanism"]
        settings["sasl.username"] = config["target.sasl.username"]
        settings["sasl.password"] = config["target.sasl.password"].reveal().strip()
    for name, own in _PEM.items():
        if config[f"target.ssl.{name}"]:
            settings[own] = config[f"target.ssl.{name}"].reveal()
    return settings


class TargetCluster:
    """Where copies go. `connect` first; it is one thread's."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.settings = settings_of(config)
        self._hosts = hosts_of(config)
        self._refused: list[Any] = []

    def connect(self) -> tuple[AdminClient, str]:
        """Returns a client of a cluster that answers, and the cluster's id. Raises CdcError."""
        _judge(self._hosts)
        self._refused.clear()
        doing = "the target cluster does not answer"
        try:
            admin = AdminClient({**self.settings, "error_cb": self._note})
        except KafkaException as exc:
            raise error_of(exc.args[0], "a client of the target cluster cannot be made") from exc
        try:
            found = admin.list_topics(timeout=ANSWER_S)
        except KafkaException as exc:
            # A login that fails is told beside the request, which is not answered.
            admin.poll(0)
            raise error_of(self._refused[0] if self._refused else exc.args[0], doing) from exc
        _judge(broker.host for broker in found.brokers.values())
        return admin, found.cluster_id or ""

    def _note(self, error: Any) -> None:
        if error.code() in LOGIN:
            self._refused.append(error)


def _judge(hosts: Iterable[str]) -> None:
    """CdcError for a host that connectors may not reach; the client looks names up again when it connects."""
    for host in hosts:
        try:
            allowed_hosts.judge(host, SERVERS)
        except allowed_hosts.UnknownHost:
            allowed_hosts.require_named(host, SERVERS)
            raise TargetUnavailable(TARGET_UNAVAILABLE, f"a host of {SERVERS} leads to no address") from None
