"""All that a plugin imports, in one place. What is not named here may change with any version of the product.

A source has `tables` and `read` (`SmallSource`), a sink has `write` (`RecordTarget`), a transform is a function, a converter two. Each
is declared as an entry point: `SourcePlugin` and `SinkPlugin` in the group `cdcworker.connectors`, `TransformPlugin` in
`cdcworker.connectors.transforms`, `ConverterPlugin` in `cdcworker.connectors.converters`.
"""

from cdcworker.connectors.api.context import CheckFinding
from cdcworker.connectors.api.opened import Checks, Closes
from cdcworker.connectors.api.plugin import API_VERSION, SinkPlugin, SourcePlugin
from cdcworker.connectors.api.plugin_errors import Misconfigured, RecordRefused, Unavailable
from cdcworker.connectors.api.record_target import (
    CancelsWrites,
    RecordBatch,
    RecordTarget,
    TargetPlace,
    TargetRecord,
)
from cdcworker.connectors.api.small_source import (
    SmallSource,
    SourceField,
    SourcePage,
    SourcePlace,
    SourceRecord,
    SourceTable,
)
from cdcworker.connectors.config.definition import ConfigKey, Secret, between, matches, non_empty, one_of
from cdcworker.connectors.formats.function_format import ConverterPlugin
from cdcworker.connectors.transforms.data import ConnectRecord, ConnectSchema, DataError, Field, Header, struct
from cdcworker.connectors.transforms.function_transform import TransformPlugin

__all__ = [
    "API_VERSION",
    "CancelsWrites",
    "CheckFinding",
    "Checks",
    "Closes",
    "ConfigKey",
    "ConnectRecord",
    "ConnectSchema",
    "ConverterPlugin",
    "DataError",
    "Field",
    "Header",
    "Misconfigured",
    "RecordBatch",
    "RecordRefused",
    "RecordTarget",
    "Secret",
    "SinkPlugin",
    "SmallSource",
    "SourceField",
    "SourcePage",
    "SourcePlace",
    "SourcePlugin",
    "SourceRecord",
    "SourceTable",
    "TargetPlace",
    "TargetRecord",
    "TransformPlugin",
    "Unavailable",
    "between",
    "matches",
    "non_empty",
    "one_of",
    "struct",
]
