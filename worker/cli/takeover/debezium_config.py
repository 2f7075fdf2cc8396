"""A config of Debezium's connector as one of ours: which keys stay, which are set, and what cannot be taken over."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from cdcworker.connectors.formats.registry_keys import URL
from cdcworker.worker.cli.takeover.taken_config import CONVERTERS, KeyFinding, TakenConfig, inherited

POSTGRES: Final = "io.debezium.connector.postgresql.PostgresConnector"
CLASSES: Final = (
    POSTGRES,
    "io.debezium.connector.mysql.MySqlConnector",
    "io.debezium.connector.mariadb.MariaDbConnector",
)
PREFIX: Final = "topic.prefix"
_DEFAULTS: Final = {"skipped.operations": "t", "extended.headers.enabled": "true"}
_POSTGRES_DEFAULTS: Final = {"publication.autocreate.mode": "disabled"}
_AVRO: Final = "avro"


def taken(config: Mapping[str, str], name: str, worker: Mapping[str, str], prefix: str = "") -> TakenConfig:
    """Returns the config under a name. `worker`: the properties of Kafka Connect's worker, from which a connector without converters
    has them; `prefix`: another topic.prefix."""
    own = {**config, "name": name}
    findings: list[KeyFinding] = []
    for key, value in inherited(config, worker).items():
        own[key] = value
        findings.append(KeyFinding(key, "set", "as Kafka Connect's worker has it"))
    is_postgres = config.get("connector.class") == POSTGRES
    for key, value in {**_DEFAULTS, **(_POSTGRES_DEFAULTS if is_postgres else {})}.items():
        if key not in own:
            own[key] = value
            findings.append(KeyFinding(key, "set", f"{value}, which changes nothing of what Debezium has"))
    if prefix and prefix != own.get(PREFIX):
        own[PREFIX] = prefix
        findings.append(KeyFinding(PREFIX, "set", f"{prefix}: readers of the former topics have to move"))
    findings += _in_the_way(config, own)
    return TakenConfig(own, tuple(findings))


def _in_the_way(config: Mapping[str, str], own: Mapping[str, str]) -> Iterator[KeyFinding]:
    """Yields what cannot be taken over, with what to do, and what readers should know."""
    kind = config.get("connector.class", "")
    if kind not in CLASSES:
        yield KeyFinding("connector.class", "refused", f"only {', '.join(CLASSES)} can be taken over")
    if not config.get(PREFIX):
        yield KeyFinding(
            PREFIX, "refused", "is missing: a config of Debezium 1 has to be brought up to Debezium 2 first"
        )
    for key in CONVERTERS:
        if key not in own:
            yield KeyFinding(key, "refused", "is that of Kafka Connect's worker: name its file with --worker-config")
    foreign = [key for key in CONVERTERS if _AVRO in own.get(key, "").lower() and not own.get(f"{key}.{URL}")]
    if foreign and own.get(PREFIX) == config.get(PREFIX):
        text = (
            "Avro records carry ids of another schema registry: name it by schema.registry.url of both converters, give"
            " --topic-prefix, or let readers come to the end first"
        )
        yield KeyFinding("value.converter", "note", text)
    if kind != POSTGRES:
        return
    if config.get("plugin.name", "decoderbufs").lower() != "pgoutput":
        text = "Debezium reads the slot with another plug-in; only one of pgoutput can be taken over"
        yield KeyFinding("plugin.name", "refused", text)
    if config.get("slot.drop.on.stop", "false").lower() == "true":
        text = "Debezium would drop the slot when it stops: set it to false in Kafka Connect first"
        yield KeyFinding("slot.drop.on.stop", "refused", text)
