"""The worker's properties that have to do with security."""

from __future__ import annotations

from typing import Final

from cdcworker.connectors.config import ConfigKey, between

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
SECURITY_KEYS: Final = (*AUTH_KEYS, *WORKER_KEYS)
