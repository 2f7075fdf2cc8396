"""What a distribution declares as a connector: keys, and a function that makes the source or the target of their values.

The name under which configs know it is that of the entry point in the group `cdcworker.connectors`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from cdcworker.connectors.api.record_target import RecordTarget, TargetPlace
from cdcworker.connectors.api.small_source import SmallSource, SourcePlace
from cdcworker.connectors.config.definition import Check, ConfigKey

API_VERSION: Final = 1
"""The version of what `cdcworker.connectors.api.kit` names. It rises when a plugin that was written for it no longer runs."""


@dataclass(frozen=True, slots=True)
class SourcePlugin:
    """A source as a plugin. `open` opens nothing yet: that is for `tables` and `read`."""

    open: Callable[[SourcePlace], SmallSource]
    keys: tuple[ConfigKey, ...] = ()
    """Its own keys; the engine adds those that every source has."""
    check: Check | None = None
    """Looks at the parsed values of several keys together."""
    title: str = ""
    api: int = API_VERSION
    """The version of the interface that the plugin was written for."""


@dataclass(frozen=True, slots=True)
class SinkPlugin:
    """A sink as a plugin. `open` makes a target, which has `write`; several are made and work at the same time."""

    open: Callable[[TargetPlace], RecordTarget]
    keys: tuple[ConfigKey, ...] = ()
    """Its own keys; the engine adds those that every sink of records has."""
    check: Check | None = None
    """Looks at the parsed values of several keys together."""
    title: str = ""
    api: int = API_VERSION
    """The version of the interface that the plugin was written for."""
