"""The error codes of the demo."""

from __future__ import annotations

from cdcworker.schemas.errors import declare

LAGS = declare(
    "quickstart.lags",
    "environment",
    "The warehouse did not catch up in time",
    "The message names what lags; the workers' logs say why.",
)
LOAD_FAILED = declare(
    "quickstart.load_failed", "environment", "The load could not write to the source", "Look at PostgreSQL's log."
)
NOT_SUBMITTED = declare(
    "quickstart.not_submitted",
    "environment",
    "A connector was not accepted or did not start",
    "The message is the worker's answer; the workers' logs say more.",
)
NO_WORKER = declare(
    "quickstart.no_worker", "environment", "No worker answers", "Look at the workers' logs, their paths are printed."
)
