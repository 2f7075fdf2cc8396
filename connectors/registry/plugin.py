"""What is known of a connector before anything of it is imported."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from cdcworker.connectors.config.installed_plugins import InstalledPlugin
from cdcworker.connectors.telemetry.metric import Metric


@dataclass(frozen=True, slots=True)
class Plugin:
    """One connector: `name` is ours, `aliases` are the class names that existing configs carry."""

    name: str
    kind: Literal["source", "sink"]
    target: str
    aliases: tuple[str, ...] = ()
    title: str = ""
    jobs: tuple[str, ...] = ()
    """Kinds of what its tasks can be asked to do beside their usual work."""
    schemes: tuple[str, ...] = ()
    """Schemes of the connection strings that it reads (`postgresql` of postgresql://…); it has `ReadsConnectionStrings`."""
    measures: bool = False
    """Whether it has `MeasuresLag`: nothing is loaded to learn it."""
    tls_key: str = "sslmode"
    """The key, behind its connection's prefix, that says how much TLS it has."""
    debezium_name: str = ""
    """What Debezium calls this source in record headers, where that is not `name`."""
    needs: tuple[str, ...] = ()
    """Modules without which its tasks cannot run; its configs are understood all the same."""
    metrics: str = ""
    """The module whose `METRICS` its tasks report besides those of all connectors; empty: there are none."""
    checks: tuple[str, ...] = ()
    """Modules that its live checks import late: a process that answers many checks imports them before."""
    origin: InstalledPlugin | None = None
    """The entry point that it comes from; None: it ships with the worker."""
    made: type | None = field(default=None, repr=False)
    """Its class, where that is no module's member."""

    def runs_here(self) -> bool:
        """Returns whether everything that its tasks need is installed; nothing is imported."""
        return all(importlib.util.find_spec(name) is not None for name in self.needs)

    def load(self) -> Any:
        """The connector class (SourceConnector or SinkConnector), imported now."""
        if self.made is not None:
            return self.made
        module, _, attribute = self.target.partition(":")
        return getattr(importlib.import_module(module), attribute)

    def own_metrics(self) -> Sequence[Metric]:
        """Returns what its tasks report besides what all connectors do."""
        found: Sequence[Metric] = importlib.import_module(self.metrics).METRICS if self.metrics else ()
        return found
