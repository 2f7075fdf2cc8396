"""The source of a query, as a connector made by the kit."""

from __future__ import annotations

from typing import Final

from cdcworker.connectors.api.kit import SourcePlugin
from cdcworker.connectors.capture.source_template import version
from cdcworker.connectors.kit.connector_classes import source_class
from cdcworker.connectors.query_source.config import KEYS, check
from cdcworker.connectors.query_source.source import QueryRows

PLUGIN: Final = SourcePlugin(QueryRows, keys=KEYS, check=check, title="Rows of a query, run again and again")
QuerySource = source_class("query", version(), PLUGIN)
