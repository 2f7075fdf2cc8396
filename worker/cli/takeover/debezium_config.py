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
"""Stands in the class names of all converters of Avro."""


def taken(config: Mapping[str, str], name: str, worker: Mapping[str, str], prefix: str = "") -> TakenConfig:
    """Returns the config under a name. `worker`: the properties of Kafka Connect's worker, from which a connector without converters
    has them; `prefix`: another topic.prefix."""
    converted = {**config, "name": name}
    findings: list[KeyFinding] = []
    for key, value in inherited(config, worker).items():
        converted[key] = value
        findings.append(KeyFinding(key, "set", "from the properties of Kafka Connect's worker"))
    is_postgres = config.get("connector.class") == POSTGRES
    for key, value in {**_DEFAULTS, **(_POSTGRES_DEFAULTS if is_postgres else {})}.items():
        if key not in converted:
            converted[key] = value
            findings.append(KeyFinding(key, "set", f"{value}, which is what Debezium does"))
    if prefix and prefix != converted.get(PREFIX):
        converted[PREFIX] = prefix
        findings.append(KeyFinding(PREFIX, "set", f"{prefix}: readers must switch to the new topics"))
    findings += _refusals_and_notes(config, converted)
    return TakenConfig(converted, tuple(findings))


def _refusals_and_notes(config: Mapping[str, str], converted: Mapping[str, str]) -> Iterator[KeyFinding]:
    """Yields what cannot be taken over, with what to do, and what readers should know."""
    kind = config.get("connector.class", "")
    if kind not in CLASSES:
        yield KeyFinding(
            "connector.class", "refused", f"{kind or 'no class'} cannot be taken over: only {', '.join(CLASSES)} can"
        )
    if not config.get(PREFIX):
        yield KeyFinding(
            PREFIX, "refused", "is missing: a config of Debezium 1 has to be brought up to Debezium 2 first"
        )
    for key in CONVERTERS:
        if key not in converted:
            yield KeyFinding(
                key, "refused", "is not in the config: name the file of Kafka Connect's worker with --worker-config"
            )
    foreign = [
        key for key in CONVERTERS if _AVRO in converted.get(key, "").lower() and not converted.get(f"{key}.{URL}")
    ]
    if foreign and converted.get(PREFIX) == config.get(PREFIX):
        text = (
            "Avro records carry ids of another schema registry: name it by schema.registry.url of both converters, give"
            " --topic-prefix, or let readers consume the old topics to their end first"
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
