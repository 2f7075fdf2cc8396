"""A stored secret stays where it was meant for: who may change some connectors only cannot have it sent elsewhere."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

from cdcworker.connectors.config import MASK
from cdcworker.schemas.errors import CdcError, declare
from cdcworker.worker.security.access import caller_of

PLACE_CHANGED: Final = declare(
    "config.secret_for_another_place",
    "config",
    "A stored secret would be sent to another place than the one it was given for",
    "Send the secret itself with the change, or have an admin of the whole cluster make it.",
)
PLACE: Final = re.compile(r"(.*\.)?(hostname|host|port|user|sslmode|sslrootcert|url)|connector\.class|spark\.master")
"""Where a secret goes, and whether whoever listens on the way can have it."""

Mask = Callable[[Mapping[str, str]], Mapping[str, str]]


def check(
    scope: Mapping[str, Any],
    mask: Mask,
    config: Mapping[str, str | None],
    stored: Mapping[str, str],
    sent: Collection[str],
) -> None:
    """`config` is complete, secrets included; `sent` names the keys whose values came with the request.

    Admins of everything are free: they could read the config log as well.
    """
    if caller_of(scope).may("admin"):
        return
    shown = mask({name: value for name, value in config.items() if value is not None})
    kept = sorted(name for name, value in shown.items() if MASK in value and name not in sent and name in stored)
    names = {*config, *stored}
    changed = sorted(name for name in names if PLACE.fullmatch(name) and config.get(name) != stored.get(name))
    if kept and changed:
        message = f"{kept[0]} is kept, but {changed[0]} changes"
        raise CdcError(PLACE_CHANGED, message, where={"key": kept[0]})
