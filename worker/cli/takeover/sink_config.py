"""A config of a sink of Kafka Connect as one of ours: its worker's converters come with it, and what is in the way."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from cdcworker.worker.cli.takeover.taken_config import KeyFinding, TakenConfig, inherited

TOPICS: Final = ("topics", "topics.regex")
GROUP: Final = "consumer.override.group.id"
_WITH_WORKER: Final = "is that of Kafka Connect's worker: name its file with --worker-config"


def taken_sink(config: Mapping[str, str], name: str, worker: Mapping[str, str]) -> TakenConfig:
    """Returns the config under a name. `worker`: the properties of Kafka Connect's worker, from which a connector without converters
    has them."""
    found = inherited(config, worker)
    own = {**config, **found, "name": name}
    findings = [KeyFinding(key, "set", "from the properties of Kafka Connect's worker") for key in found]
    if not any(config.get(key) for key in TOPICS):
        text = "is missing, so this is no sink: a source's position means something to its own connector alone"
        findings.append(KeyFinding(TOPICS[0], "refused", text))
    if "value.converter" not in own:
        findings.append(KeyFinding("value.converter", "refused", _WITH_WORKER))
    if own.pop(GROUP, None) is not None:
        findings.append(
            KeyFinding(GROUP, "set", "left out: a sink here has its offsets in its target, or in a group of its own")
        )
    return TakenConfig(own, tuple(findings), "sink")
