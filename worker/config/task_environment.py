"""The environment of a worker's tasks and other children: a list of names, and what references may read."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Final

from cdcworker.connectors.config.inherited_variables import MACHINE, MORE, chosen, without_secrets
from cdcworker.connectors.config.installed_plugins import VARIABLE
from cdcworker.connectors.config.worker_logins import PROPERTY
from cdcworker.worker.config.config_providers import ENV_PATTERN, ENV_PATTERN_KEY
from cdcworker.worker.config.worker_properties import TASK_ENVIRONMENT, WorkerConfig

PYTHONS: Final = (
    # libpq's, and those of its libraries.
    *("PG*", "OPENSSL_*", "XDG_*", "OMP_*", "ARROW_*"),
    *("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"),
    *("CDC_LOG_LEVEL", "CDC_FAILPOINTS", "CDC_MAVEN_MIRRORS", VARIABLE),
)
"""What the worker's own children get besides, which are Python."""


def kept(environment: Mapping[str, str], config: WorkerConfig) -> dict[str, str]:
    """Returns the variables that children of the worker inherit."""
    more = config.values[TASK_ENVIRONMENT]
    found = without_secrets(environment, (*MACHINE, *PYTHONS)) | chosen(environment, more)
    if config.values[PROPERTY]:
        found |= chosen(environment, ("PGPASSWORD",))
    found |= {name: value for name, value in environment.items() if _may_be_named(name, config)}
    return {**found, MORE: ",".join(more)} if more else found


def _may_be_named(name: str, config: WorkerConfig) -> bool:
    """Whether a reference may read it."""
    try:
        return re.fullmatch(config.providers.get(ENV_PATTERN_KEY, ENV_PATTERN), name, re.ASCII) is not None
    except re.error:
        return False


def leave(config: WorkerConfig) -> None:
    """Takes everything else out of this process's environment, from which each child gets its own."""
    found = kept(os.environ, config)
    for name in [name for name in os.environ if name not in found]:
        del os.environ[name]
    os.environ.update(found)
