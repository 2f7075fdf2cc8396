"""The worker property of quotas."""

from __future__ import annotations

from typing import Final

from cdcworker.connectors.config.definition import ConfigKey

QUOTAS_FILE: Final = "quotas.file"
QUOTA_KEYS: Final = (
    ConfigKey(
        QUOTAS_FILE,
        doc="A YAML file that says how many connectors, and how many tasks, may have one value of a label. All workers have it, "
        "since each may become the leader. It is read again when it changes. Empty: any number.",
    ),
)
