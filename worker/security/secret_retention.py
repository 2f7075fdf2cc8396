"""A stored secret is only sent where it was meant for: a caller who may change some connectors must not redirect it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, Protocol

from cdcworker.connectors.config.definition import MASK
from cdcworker.schemas.errors import CdcError, declare
from cdcworker.worker.security.access import caller_of

PLACE_CHANGED: Final = declare(
    "config.secret_for_another_place",
    "config",
    "A stored secret would be sent to another place than the one it was given for",
    "Send the secret itself with the change, or have an admin of the whole cluster make it.",
)


class Judge(Protocol):
    """Judges configs by the definitions of their connectors: how a config may be shown, and which keys decide where secrets go."""

    def mask(self, config: Mapping[str, str]) -> Mapping[str, str]:
        """Returns the config as it may be shown."""

    def moved_destinations(self, config: Mapping[str, str | None], stored: Mapping[str, str]) -> Sequence[str]:
        """Returns the keys that differ and decide where secrets are sent."""


def check(
    scope: Mapping[str, Any],
    judge: Judge,
    config: Mapping[str, str | None],
    stored: Mapping[str, str],
    sent: Collection[str],
) -> None:
    """CdcError `config.secret_for_another_place` if a stored secret is kept while its destination changes.

    `config` is complete with its secrets; `sent` names the keys whose values came with the request. Admins of the whole
    cluster may do it: they can read the config log as well.
    """
    if caller_of(scope).may("admin"):
        return
    shown = judge.mask({name: value for name, value in config.items() if value is not None})
    retained = sorted(name for name, value in shown.items() if MASK in value and name not in sent and name in stored)
    changed = judge.moved_destinations(config, stored) if retained else ()
    if changed:
        message = f"{retained[0]} is kept, but {changed[0]} changes"
        raise CdcError(PLACE_CHANGED, message, where={"key": retained[0]})
