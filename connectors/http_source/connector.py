"""The source of a JSON API, as a connector made by the kit."""

from __future__ import annotations

from typing import Final

from cdcworker.connectors.api.kit import SourcePlugin
from cdcworker.connectors.capture.source_template import version
from cdcworker.connectors.http_source.config import KEYS, check
from cdcworker.connectors.http_source.source import HttpItems
from cdcworker.connectors.kit.connector_classes import source_class

PLUGIN: Final = SourcePlugin(HttpItems, keys=KEYS, check=check, title="Items of a JSON API")
HttpSource = source_class("http", version(), PLUGIN)
