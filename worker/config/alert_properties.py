"""The worker properties of alerts."""

from __future__ import annotations

from typing import Final

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
