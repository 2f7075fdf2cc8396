"""Names of connectors: what `connector.class` may say. Nothing is imported by a name from a config."""

from __future__ import annotations

from collections.abc import Sequence

from cdcworker.connectors.config import secret_names
from cdcworker.connectors.config.definition import nearest
from cdcworker.connectors.config.installed_plugins import RefusedPlugin
from cdcworker.connectors.config.refusals import SHOWN_CHARS_MAX
from cdcworker.connectors.registry.installed import of_this_process
from cdcworker.connectors.registry.plugin import Plugin
from cdcworker.connectors.registry.shipped import BY_NAME, PLUGINS
from cdcworker.connectors.telemetry.metric import Metric
from cdcworker.schemas.errors import CdcError, declare

UNKNOWN_CLASS = declare(
    "config.unknown_connector",
    "config",
    "connector.class names no connector of this worker",
    "Use one of the names that GET /connector-plugins lists.",
)
NO_SUCH_CLASS = "Failed to find any class that implements Connector and which name matches"
"""What Kafka Connect says, before the name."""


def refused() -> Sequence[RefusedPlugin]:
    """Returns the connectors and distributions that the operator allows and that cannot be used."""
    return of_this_process().refused


def _nearest(given: str) -> str | None:
    """Returns the known name whose last part is nearest. Packages are not compared: they are alike in all names of a
    vendor."""
    last = given.rpartition(".")[2]
    names = [*BY_NAME, *(plugin.name for plugin in of_this_process().found)]
    found = nearest(last, [name.rpartition(".")[2] for name in names])
    same = [name for name in names if name.rpartition(".")[2] == found]
    return next((name for name in same if ("." in name) == ("." in given)), same[0] if same else None)


def _remark(given: str) -> str:
    """Returns what the refusal of a name adds: the nearest name."""
    near = _nearest(given)
    return f"; did you mean {near}?" if near else ""


def plugins() -> Sequence[Plugin]:
    """Returns the connectors that this process knows: those that ship with the worker, then those of allowed distributions."""
    return (*PLUGINS, *of_this_process().found)


def metrics_of_connectors() -> Sequence[Metric]:
    """Returns the metrics that single connectors report, each once."""
    return list(dict.fromkeys(metric for plugin in PLUGINS for metric in plugin.own_metrics()))


def lookup(class_name: str) -> Plugin:
    """The plugin of a `connector.class` value; CdcError `config.unknown_connector` with the nearest name."""
    name = class_name.strip()
    plugin = BY_NAME.get(name) or next((known for known in of_this_process().found if known.name == name), None)
    if plugin is None:
        names = ", ".join(known.name for known in plugins())
        shown = secret_names.text(class_name.strip())[:SHOWN_CHARS_MAX]
        message = f"{NO_SUCH_CLASS} {shown}, available connectors are: {names}{_remark(class_name.strip())}"
        raise CdcError(UNKNOWN_CLASS, message, where={"key": "connector.class"})
    return plugin


def of_connection_string(text: str) -> Plugin:
    """The source that reads connection strings of this scheme; one without a scheme is libpq's `key=value` form, which the
    first such source reads. CdcError `config.invalid` without repeating the text."""
    scheme, sign, _ = text.strip().partition("://")
    readers = [plugin for plugin in PLUGINS if plugin.schemes]
    found = [plugin for plugin in readers if scheme in plugin.schemes] if sign else readers[:1]
    if not found:
        forms = ", ".join(f"{name}://…" for plugin in readers for name in plugin.schemes)
        raise CdcError("config.invalid", "the connection string cannot be read", hint=forms)
    return found[0]
