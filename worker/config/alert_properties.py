"""The worker properties of alerts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from cdcworker.connectors.config.definition import ConfigKey

ALERTS_FILE: Final = "alerts.file"
ALERTS_TOPIC: Final = "alerts.topic"
ALERT_KEYS: Final = (
    ConfigKey(
        ALERTS_FILE,
        doc="A YAML file with the receivers that are told of incidents of connectors (web hooks, Slack, PagerDuty) and with how "
        "fresh connectors have to be. All workers have it, since each may become the leader. It is read again when it changes. Empty: "
        "nobody is told.",
    ),
    ConfigKey(ALERTS_TOPIC, doc="Topic of the incidents, while alerts.file is set (default: <group.id>.alerts)."),
)


def alerts_topic(values: Mapping[str, Any], group_id: str) -> str:
    """Returns the topic of incidents; empty when nobody is told of them. `values` are the parsed worker properties."""
    return (values[ALERTS_TOPIC] or f"{group_id}.alerts") if values[ALERTS_FILE] else ""
