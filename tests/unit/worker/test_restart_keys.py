"""The restart keys that connectors define are those that the herd reads, with the same defaults."""

from __future__ import annotations

from cdcworker.connectors.config.common_keys import TASK_KEYS
from cdcworker.connectors.registry.names import plugins
from cdcworker.coordinator.core import restart_policy as restarts
from cdcworker.coordinator.core.herd_state import HerdSettings
from cdcworker.coordinator.core.restart_policy import policy_of


def test_keys_and_defaults_agree():
    names = {value for name, value in vars(restarts).items() if name.isupper() and isinstance(value, str)}
    assert names - {restarts.TASK_QUARANTINED} <= {key.name for key in TASK_KEYS}
    given = {key.name: str(key.default) for key in TASK_KEYS}
    assert policy_of(given, HerdSettings()) == policy_of({}, HerdSettings())


def test_every_connector_takes_them():
    for plugin in plugins():
        assert {key.name for key in TASK_KEYS} <= plugin.load().config_def.keys.keys(), plugin.name
