"""A transform that somebody else wrote as a function, as a transform of a chain."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from cdcworker.connectors.config.definition import ConfigKey
from cdcworker.connectors.transforms.data import ConnectRecord, DataError
from cdcworker.connectors.transforms.definitions import TransformDefinition
from cdcworker.schemas.errors import raised_at

TransformFunction = Callable[[ConnectRecord, Mapping[str, Any]], ConnectRecord | None]
"""Returns the record that takes the place of one, which stays as it is; None: there is none. It gets the parsed values of its keys.
It has no memory: after a crash records come again, and have to become the same."""


@dataclass(frozen=True, slots=True)
class TransformPlugin:
    """A transform as a plugin. A config names it by the name of its entry point, and its keys behind `transforms.<name>.`."""

    apply: TransformFunction
    keys: tuple[ConfigKey, ...] = ()
    title: str = ""
    api: int = 1
    """The version of the interface that the plugin was written for."""

    def definition(self, name: str) -> TransformDefinition:
        """Returns it as a transform that a config may name."""
        keys = tuple(replace(key, connects=bool(key.connects)) for key in self.keys)
        return TransformDefinition(name, keys, lambda config: _FunctionTransform(self.apply, config))


class _FunctionTransform:
    """Calls the function; what it raises is an error of the record, without its text, which may hold values."""

    def __init__(self, function: TransformFunction, config: Mapping[str, Any]) -> None:
        self._function = function
        self._config = config

    def apply(self, record: ConnectRecord) -> ConnectRecord | None:
        try:
            made = self._function(record, self._config)
        except DataError:
            raise
        except Exception as error:  # noqa: BLE001 - somebody else's code; its text may hold values
            raise DataError(f"The function failed with {type(error).__name__} at {raised_at(error)}") from None
        if made is not None and not isinstance(made, ConnectRecord):
            raise DataError(f"The function returned {type(made).__name__} in place of a record or None")
        return made
