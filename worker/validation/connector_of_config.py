"""A child's connector: made from a config whose references are resolved, and the secrets in it kept out of what the child says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cdcworker.connectors.registry.names import lookup
from cdcworker.worker.config.config_providers import resolve
from cdcworker.worker.validation.validate import telling


def connector_of(config: Mapping[str, str], providers: Mapping[str, str], secrets: list[str]) -> Any:
    """Returns the connector, and adds to `secrets` what has to be cut out of texts: before the connector is made, whose errors
    may hold it. CdcError when the config names no connector or a reference cannot be resolved."""
    connector_class = lookup(config.get("connector.class", "")).load()
    resolved = resolve(config, providers)
    secrets += telling(resolved, connector_class.config_def.secrets)
    return connector_class(resolved)
