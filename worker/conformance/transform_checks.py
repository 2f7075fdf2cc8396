"""Checks of a transform in this process: it has no memory, leaves what it is given as it is, and says what it cannot take."""

from __future__ import annotations

import copy
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from cdcworker.connectors.config.definition import ConfigDef
from cdcworker.connectors.transforms.data import ConnectRecord, ConnectSchema, DataError
from cdcworker.connectors.transforms.function_transform import TransformPlugin
from cdcworker.worker.conformance.findings import Check, Problem, limited, require
from cdcworker.worker.conformance.harness import TransformHarness
from cdcworker.worker.conformance.source_checks import STRANGE, check_config, check_keys

SECOND: Final = 1.0
_TEXT: Final = ConnectSchema("string", optional=True)


class TransformChecks:
    """Checks of one transform with the records of its harness."""

    def __init__(self, plugin: TransformPlugin, harness: TransformHarness) -> None:
        self._plugin = plugin
        self._harness = harness
        self._definition = ConfigDef(plugin.keys)
        self._config: Mapping[str, Any] = self._definition.parse(harness.config)

    def all(self) -> Sequence[Check]:
        return (
            Check("a config is judged, and its keys say what they are", self.config),
            Check("the same record becomes the same, whatever came between", self.same),
            Check("a record that is given stays as it is", self.untouched),
            Check("a record of any kind becomes another one, none, or an error of its own", self.strange),
            Check("a record is done within a second", self.quick),
        )

    def apply(self, record: ConnectRecord) -> ConnectRecord | None:
        made = limited(lambda: self._plugin.apply(record, self._config), "the function", 10.0)
        require(made is None or isinstance(made, ConnectRecord), f"it returned {type(made).__name__}")
        found: ConnectRecord | None = made
        return found

    def config(self) -> None:
        if self._harness.unfit is not None:
            check_config(self._definition, self._harness.config, self._harness.unfit)
        check_keys(self._plugin.keys)

    def same(self) -> None:
        first = [copy.deepcopy(self.apply(copy.deepcopy(record))) for record in self._harness.records]
        again = [self.apply(copy.deepcopy(record)) for record in reversed(self._harness.records)]
        require(first == again[::-1], "a record became another one the second time: after a crash records come again")

    def untouched(self) -> None:
        for record in self._harness.records:
            before = copy.deepcopy(record)
            self.apply(record)
            require(record == before, "it changed the record that it was given: return another one (`with_value`)")

    def strange(self) -> None:
        for record in (*self._harness.records, ConnectRecord("t")):
            self._take(record.with_value(record.value_schema, None))
            self._take(record.with_value(None, 7).with_key(None, None))
            for text in STRANGE:
                self._take(record.with_value(_TEXT, text))

    def _take(self, record: ConnectRecord) -> None:
        try:
            self.apply(record)
        except (DataError, Problem) as error:
            if isinstance(error, Problem):
                raise
        except Exception as error:
            kind = "a tombstone" if record.value is None else f"a {type(record.value).__name__} as value"
            raise Problem(f"{type(error).__name__} for {kind}: raise DataError, which names no value") from error

    def quick(self) -> None:
        for record in self._harness.records:
            began = time.monotonic()
            self.apply(copy.deepcopy(record))
            require(time.monotonic() - began < SECOND, "one record takes longer than a second")
