"""Makes connector classes of plugins: the engine's keys around a plugin's own, and what the worker asks of a connector."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from cdcworker.connectors.api.context import CheckFinding, Config, TaskContext
from cdcworker.connectors.api.opened import Checks, Closes
from cdcworker.connectors.api.plugin import SinkPlugin, SourcePlugin
from cdcworker.connectors.api.plugin_errors import failed
from cdcworker.connectors.api.record_target import RecordTarget, TargetPlace
from cdcworker.connectors.api.small_source import SourcePlace
from cdcworker.connectors.api.source import SourceTask
from cdcworker.connectors.config import converters
from cdcworker.connectors.config.common_keys import ACCEPTED, SOURCE_KEYS, TASKS_MAX
from cdcworker.connectors.config.definition import (
    PARSERS,
    Check,
    ConfigDef,
    ConfigKey,
    Validator,
    between,
    matches,
)
from cdcworker.connectors.config.topic_creation import group_keys
from cdcworker.connectors.converters.config import converter_keys
from cdcworker.connectors.kit.source_block import source_schema
from cdcworker.connectors.kit.source_task import SmallSourceTask, SourceIdentity, namespace_of, read_position
from cdcworker.connectors.record_sink.config import config_def
from cdcworker.connectors.record_sink.connector import RecordSink
from cdcworker.connectors.transform_chain.config import PREDICATES_KEY, TRANSFORMS_KEY, transform_checks, transform_keys
from cdcworker.schemas.change import JsonObject
from cdcworker.schemas.errors import CdcError

INTERVAL = "poll.interval.ms"


def _engine_keys() -> Sequence[ConfigKey]:
    return (
        ConfigKey(
            "topic.prefix", required=True, importance="HIGH", group="Topics", topics="prefix",
            validator=matches(r"[A-Za-z0-9._\-]{1,200}", "letters, digits, dot, hyphen and underscore"),
            doc="First part of every topic; a table's topic is `<topic.prefix>.<plugin>.<table>`.",
        ),
        ConfigKey(
            INTERVAL, "INT", 1_000, group="Polling", validator=between(0, 86_400_000),
            doc="Pause (ms) after the source had nothing more, unless it says itself when it is to be asked again.",
        ),
    )  # fmt: skip


def _own(keys: Sequence[ConfigKey], group: str) -> list[ConfigKey]:
    keys = list(keys)
    for key in keys:
        if not key.name or key.type not in PARSERS:
            raise ValueError(f"config key {key.name!r} needs a name and a type that there is")
    return [replace(key, group=key.group or group, validator=_judging(key.validator)) for key in keys]


def _judging(validator: Validator | None) -> Validator | None:
    """Returns the plugin's function with its errors as `plugin.failed`: their texts may hold the value that it judges."""
    if validator is None:
        return None

    def judged(value: Any) -> str | None:
        try:
            return validator(value)
        except CdcError:
            raise
        except Exception as error:  # noqa: BLE001 - somebody else's code
            raise failed(error) from None

    return judged


def _checking(check: Check | None) -> Check | None:
    """The same for a function that looks at several keys."""
    if check is None:
        return None

    def checked(config: Mapping[str, Any]) -> Sequence[tuple[str, str]]:
        try:
            return [(key, problem) for key, problem in check(config)]
        except CdcError:
            raise
        except Exception as error:  # noqa: BLE001 - somebody else's code
            raise failed(error) from None

    return checked


def _source_definition(name: str, plugin: SourcePlugin) -> ConfigDef:
    block = source_schema(namespace_of(name))
    shared = transform_checks(field["name"] for field in block["fields"])
    own = _checking(plugin.check)

    def check(config: Mapping[str, Any]) -> Any:
        yield from shared(config)
        yield from own(config) if own else ()

    return ConfigDef(
        [
            *_own(plugin.keys, plugin.title or name),
            *_engine_keys(),
            TASKS_MAX,
            *converter_keys(),
            TRANSFORMS_KEY,
            PREDICATES_KEY,
            *SOURCE_KEYS,
        ],
        accepted={
            **{name: note for name, note in ACCEPTED.items() if not name.startswith(("key.conv", "value.conv"))},
            **converters.ACCEPTED,
            "name": "",
            "connector.class": "",
            **{key.former: f"Counts as {key.name}." for key in plugin.keys if key.former},
            "errors.tolerance": "A record that cannot be written halts the task.",
        },
        check=check,
        more=lambda config: (*transform_keys(config), *group_keys(config)),
    )


class KitSource:
    """A small source as a connector: one task. A subclass names the plugin."""

    config_def: ClassVar[ConfigDef]
    plugin: ClassVar[SourcePlugin]
    name: ClassVar[str]
    version: ClassVar[str]

    def __init__(self, config: Config) -> None:
        self._config = dict(config)

    def split(self, tasks_max: int) -> Sequence[Config]:
        del tasks_max
        return [self._config]

    def task(self, share: Config, context: TaskContext) -> SourceTask:
        parsed = self.config_def.parse(share)
        place = SourcePlace(parsed, context.file_roots, context.state_dir, context.stopping)
        identity = SourceIdentity(self.name, self.version, parsed["topic.prefix"])
        return SmallSourceTask(lambda: self.plugin.open(place), identity, parsed[INTERVAL] / 1000, context)

    def check_position(self, position: JsonObject) -> None:
        read_position(position)

    def without_keys(self, position: JsonObject) -> JsonObject:
        """A cursor may hold keys of rows: nobody but the plugin knows."""
        return {**position, "cursor": None} if "cursor" in position else position

    def check(self) -> Sequence[CheckFinding]:
        source = self.plugin.open(SourcePlace(self.config_def.parse(self._config)))
        try:
            return source.check() if isinstance(source, Checks) else []
        finally:
            if isinstance(source, Closes):
                source.close()


class KitSink(RecordSink):
    """A target of records as a connector. A subclass names the plugin."""

    plugin: ClassVar[SinkPlugin]

    def open_target(self, place: TargetPlace) -> RecordTarget:
        return self.plugin.open(place)


def source_class(name: str, version: str, plugin: SourcePlugin) -> type[KitSource]:
    """Returns the connector class of a source. ValueError for keys that the engine has itself."""
    members = {"config_def": _source_definition(name, plugin), "plugin": plugin, "name": name, "version": version}
    return type("PluginSource", (KitSource,), members)


def sink_class(name: str, plugin: SinkPlugin) -> type[KitSink]:
    """Returns the connector class of a sink. ValueError for keys that the engine has itself."""
    definition = config_def(_own(plugin.keys, plugin.title or name), {}, _checking(plugin.check))
    return type("PluginSink", (KitSink,), {"config_def": definition, "plugin": plugin})
