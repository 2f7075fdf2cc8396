"""Validation of connector configs: definitions first, then live checks of the outside in a child with a time limit."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from cdcworker.connectors import registry, veil
from cdcworker.connectors.api import Finding
from cdcworker.connectors.common import IDENTITY_KEYS
from cdcworker.connectors.config import MASK, ConfigDef, ConfigValue, has_reference
from cdcworker.connectors.registry import Plugin
from cdcworker.schemas.errors import CODES, CdcError, declare
from cdcworker.worker.asking import ask

log = logging.getLogger(__name__)

CHECK_TIMEOUT_S = 8.0
"""Below the 10 s after which common REST clients give up."""
FINDINGS_MAX = 200

NO_CLASS = declare(
    "config.no_connector_class",
    "config",
    "The configuration names no connector",
    "Set connector.class to one of the names that GET /connector-plugins lists.",
)
UNAVAILABLE = declare(
    "config.connector_unavailable",
    "environment",
    "The connector cannot be loaded on this worker",
    "Install what the connector needs on every worker; the worker's log names it.",
)
INVALID_VALUE = declare(
    "config.invalid_value", "config", "A value is missing or not allowed", "See the definition of the key."
)
MASKED_VALUE = declare(
    "config.masked_value",
    "config",
    "A masked secret was sent where none is stored",
    "Send the secret itself, or a reference such as ${env:NAME}.",
)
CHECK_INCOMPLETE = declare(
    "check.incomplete",
    "transient",
    "The live checks did not finish",
    "Validate again, or look at the connector's status after its start.",
)
SKIPPED = declare("config.key_without_effect", "config", "A key has no effect here", "It may be removed.")

NULL_VALUE = "Null value can not be supplied as the configuration value."
NO_CLASS_TEXT = "Connector config contains no connector type"

NAMES = frozenset(
    {
        "name",
        "connector.class",
        "topic.prefix",
        "topic",
        "topics",
        "topics.regex",
        "slot.name",
        "publication.name",
        "database.server.name",
    }
)
NO_REFERENCE = "must not hold a reference: it becomes a name that everybody sees"
Checks = Callable[[Mapping[str, str], float], Sequence[Finding]]


class Catalog:
    """The connectors of this worker and their definitions, loaded when first asked for."""

    def __init__(
        self,
        lookup: Callable[[str], Plugin] = registry.lookup,
        plugins: Callable[[], Sequence[Plugin]] = registry.plugins,
    ) -> None:
        self.lookup = lookup
        self.plugins = plugins
        self._definitions: dict[str, ConfigDef] = {}

    def definition(self, plugin: Plugin) -> ConfigDef:
        if plugin.name not in self._definitions:
            try:
                definition: ConfigDef = plugin.load().config_def
            except (ImportError, AttributeError) as exc:
                log.warning("connector cannot be loaded plugin=%s error=%s", plugin.name, exc)
                message = f"The connector {plugin.name} cannot be loaded on this worker"
                raise CdcError(UNAVAILABLE, message, where={"key": "connector.class"}) from exc
            self._definitions[plugin.name] = definition.headed(IDENTITY_KEYS)
        return self._definitions[plugin.name]

    def plugin_of(self, config: Mapping[str, str | None]) -> Plugin:
        name = config.get("connector.class")
        if not name or not name.strip():
            raise CdcError(NO_CLASS, NO_CLASS_TEXT, where={"key": "connector.class"})
        return self.lookup(name)

    def mask(self, config: Mapping[str, str]) -> dict[str, str]:
        """The config as it may be shown; what cannot be looked up is masked by the sound of its names."""
        return self._masker(config).mask(config)

    def unmask(self, config: Mapping[str, str | None], stored: Mapping[str, str]) -> dict[str, str | None]:
        """Masked secrets replaced by the stored ones; CdcError when there is none to keep."""
        definition, known = self._masker(config), {shown: name for name, shown in veil.names(stored).items()}
        out: dict[str, str | None] = {}
        for shown, value in config.items():
            name = known.get(shown, shown)
            if veil.is_masked_name(name):
                raise _nothing_kept(shown)
            if value == MASK and definition.shown(name, "probe") == MASK:
                if name not in stored:
                    raise _nothing_kept(shown)
                value = stored[name]
            elif value is not None and veil.holds_mask(value):
                if name not in stored or definition.shown(name, stored[name]) != value:
                    raise _nothing_kept(shown)
                value = stored[name]
            out[name] = value
        return out

    def _masker(self, config: Mapping[str, str | None]) -> ConfigDef:
        try:
            return self.definition(self.plugin_of(config))
        except CdcError:
            return ConfigDef(())


def _nothing_kept(name: str) -> CdcError:
    return CdcError(MASKED_VALUE, f"{name} is masked, and no value is stored for it", where={"key": name})


@dataclass(frozen=True)
class Report:
    """What validation found. `findings` holds errors of definitions and of live checks, warnings and notes."""

    plugin: Plugin
    definition: ConfigDef
    values: Sequence[ConfigValue]
    findings: Sequence[Finding] = field(default_factory=tuple)

    @property
    def errors(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.severity == "error"]

    @property
    def remarks(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.severity != "error"]

    def shown(self, findings: Sequence[Finding]) -> list[dict[str, Any]]:
        """As JSON, with what a machine can apply where that is known: a misspelt key is renamed."""
        meant = {value.name: value.nearest for value in self.values if value.nearest}
        out = []
        for finding in findings:
            item = finding_json(finding)
            if finding.severity == "error" and finding.key in meant:
                item["fix"] = {"op": "rename", "path": item["configPath"], "value": meant[finding.key]}
            out.append(item)
        return out

    def lines(self) -> list[str]:
        """One line per error, as Connect lists them; live findings carry their code and hint."""
        return [error_line(finding) for finding in self.errors]

    def config_infos(self) -> dict[str, Any]:
        """Kafka Connect's ConfigInfos. An unknown key has no definition; an accepted one is only a remark."""
        definitions = {item["name"]: item for item in self.definition.definitions()}
        home = {finding: finding.key for finding in self.errors}
        shown = [value for value in self.values if value.name in definitions or value.errors]
        names = {value.name for value in shown}
        configs = []
        for value in shown:
            errors = [
                error_line(finding)
                for finding, key in home.items()
                if key == value.name or (value.name == "connector.class" and key not in names)
            ]
            configs.append({"definition": definitions.get(value.name), "value": _value_info(value, errors)})
        groups = dict.fromkeys(item["group"] for item in definitions.values() if item["group"])
        return {
            "name": self.plugin.name,
            "error_count": len(self.errors),
            "groups": list(groups),
            "configs": configs,
            "findings": self.shown(self.findings),
        }


def _value_info(value: ConfigValue, errors: list[str]) -> dict[str, Any]:
    return {
        "name": value.name,
        "value": value.value,
        "recommended_values": list(value.recommended),
        "errors": errors,
        "visible": value.visible,
    }


def error_line(finding: Finding) -> str:
    if finding.code == INVALID_VALUE:
        return finding.message
    return f"[{finding.code}] {finding.message}" + (f" ({finding.hint})" if finding.hint else "")


def finding_json(finding: Finding) -> dict[str, Any]:
    key = finding.key.replace("~", "~0").replace("/", "~1")
    return {
        "severity": finding.severity,
        "code": finding.code,
        "message": finding.message,
        "configPath": f"/config/{key}" if key else None,
        "suggestion": finding.hint or None,
    }


def check_keys(catalog: Catalog, config: Mapping[str, str | None]) -> Report:
    """Validation without I/O; CdcError when `connector.class` is missing or unknown."""
    plugin = catalog.plugin_of(config)
    definition = catalog.definition(plugin)
    given = {name: value for name, value in config.items() if value is not None}
    values = definition.validate(given)
    whole = definition.of(given)
    return Report(plugin, whole, values, tuple(_key_findings(whole, values, config)))


def _key_findings(
    definition: ConfigDef, values: Sequence[ConfigValue], config: Mapping[str, str | None]
) -> Iterator[Finding]:
    nulls = {name for name, value in config.items() if value is None}
    hint = CODES[INVALID_VALUE].hint
    for value in values:
        if value.name not in nulls:
            for error in value.errors:
                yield Finding(value.name, "error", INVALID_VALUE, error, _suggestion(definition, value))
        if value.name in NAMES and has_reference(config.get(value.name) or ""):
            yield Finding(value.name, "error", INVALID_VALUE, f"{value.name} {NO_REFERENCE}", hint)
        if value.note:
            yield Finding(value.name, "note", SKIPPED, f"{value.name}: {value.note}")
    for name in sorted(map(veil.name, nulls)):
        yield Finding(name, "error", INVALID_VALUE, NULL_VALUE, hint)
    yield from _control_findings(config.get("name") or "", hint)


def _suggestion(definition: ConfigDef, value: ConfigValue) -> str:
    """What the key is for, or what to do about one that is not known."""
    if value.nearest:
        return f"Rename it to {value.nearest}."
    key = definition.keys.get(value.name)
    if key is None:
        return "Take it out, or correct its name: `cdcworker plugins CLASS` lists the keys."
    return key.doc or CODES[INVALID_VALUE].hint


def _control_findings(name: str, hint: str) -> Iterator[Finding]:
    """Control characters beyond ASCII, which Connect refuses too."""
    found = [ord(char) for char in name if 0x7F < ord(char) < 0xA0]
    if found:
        text = f"name may not contain control sequences but had the following chars: {found}"
        yield Finding("name", "error", INVALID_VALUE, text, hint)


def check_live(report: Report, config: Mapping[str, str], checks: Checks, timeout_s: float = CHECK_TIMEOUT_S) -> Report:
    """The report with the findings of the outside; secrets are cut out of whatever the checks say."""
    secrets = telling(config, report.definition.secrets)
    found = [redacted(finding, secrets) for finding in checks(config, timeout_s)]
    return replace(report, findings=(*report.findings, *found[:FINDINGS_MAX]))


def telling(config: Mapping[str, str], secrets: Collection[str]) -> list[str]:
    """The secrets to be cut out of texts: not those of one or two characters, which would cut up every word, nor those
    that another key tells everybody, which would cut up what is said about that one."""
    told = {value for name, value in config.items() if name not in secrets}
    plain = [config[name] for name in secrets if len(config.get(name, "")) > 2 and config[name] not in told]
    judge = ConfigDef(()).shown
    shown = [judge(name, value) for name, value in config.items() if name not in secrets]
    return plain + [secret for secret in veil.untold(config, shown) if len(secret) > 2]


def unchecked(report: Report) -> Report:
    """The report when no checker became free in time."""
    text = "The live checks did not run: too many run at this moment"
    return replace(report, findings=(*report.findings, Finding("", "note", CHECK_INCOMPLETE, text)))


def redacted(finding: Finding, secrets: Sequence[str]) -> Finding:
    """The finding without the secrets."""
    message, hint = finding.message, finding.hint
    for secret in secrets:
        message, hint = message.replace(secret, MASK), hint.replace(secret, MASK)
    return replace(finding, message=message, hint=hint)


def run_checks(
    config: Mapping[str, str], timeout_s: float = CHECK_TIMEOUT_S, providers: Mapping[str, str] | None = None
) -> list[Finding]:
    """`check()` of the connector in a child process. Too slow or broken checks give a note, never an error.

    `providers` are the worker's `config.providers.*` properties; references are resolved in the child alone.
    """
    question = {"config": dict(config), "providers": dict(providers or {})}
    answer = ask((sys.executable, "-m", "cdcworker.worker.check_main"), question, timeout_s)
    ending = f"The live checks ended unexpectedly (exit code {answer.code})"
    if answer.code is None:
        ending = f"The live checks did not finish within {timeout_s:g} s; what they found until then is listed"
    findings, complete = read_findings(answer.out)
    if not complete:
        findings.append(Finding("", "note", CHECK_INCOMPLETE, ending, CODES[CHECK_INCOMPLETE].hint))
    return findings


def read_findings(out: bytes) -> tuple[list[Finding], bool]:
    """Findings of the child's output, and whether it came to its end; a torn last line is ignored."""
    findings: list[Finding] = []
    for line in out.splitlines():
        try:
            item = json.loads(line)
        except ValueError:
            continue
        if item.get("done"):
            return findings, True
        findings.append(Finding(item["key"], item["severity"], item["code"], item["message"], item.get("hint", "")))
    return findings, False
