"""Validation of connector configs: definitions first, then live checks of the outside in a child with a time limit."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from cdcworker.connectors.api.abilities import StandsAlone
from cdcworker.connectors.api.context import CheckFinding
from cdcworker.connectors.config import secret_names
from cdcworker.connectors.config.common_keys import control_characters
from cdcworker.connectors.config.definition import MASK, ConfigDef, ConfigValue, has_reference
from cdcworker.connectors.config.framework_keys import with_framework
from cdcworker.connectors.config.installed_plugins import RefusedPlugin
from cdcworker.connectors.registry import names as registry
from cdcworker.connectors.registry.plugin import Plugin
from cdcworker.schemas.errors import CODES, CdcError, declare
from cdcworker.schemas.topic_access import Exists, TopicAccess
from cdcworker.schemas.untrusted.json_text import JsonRefused, parse_message
from cdcworker.worker.children.call import ChildAnswer, call_child
from cdcworker.worker.validation.masked_configs import MaskedConfigs
from cdcworker.worker.validation.topic_names import cluster_topics, topic_findings

log = logging.getLogger(__name__)

CHECK_TIMEOUT_S = 8.0
"""Below the 10 s after which common REST clients give up."""
FINDINGS_MAX = 200
ANY_TOPIC = TopicAccess()
"""No topic is known to belong to the cluster, and none is bounded: only Kafka's own are closed."""
QUICK_CHARS_MAX = 16_384
"""Characters of a config that is judged at once: a larger one is judged by a thread, while other requests are answered."""

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
        "connection",
        "topic.prefix",
        "topic",
        "topics",
        "topics.regex",
        "slot.name",
        "publication.name",
        "database.server.name",
    }
)
UNKNOWN_KEYS = "config.unknown.keys"
"""The worker property that says what becomes of keys that no connector knows."""
HOW_TO_TAKE = f"Workers with {UNKNOWN_KEYS}=warn take keys that they do not know."
NO_REFERENCE = "must not hold a reference: it becomes a name that everybody sees"
Checks = Callable[[Mapping[str, str], float], Sequence[CheckFinding]]
Ask = Callable[[dict[str, Any], float], ChildAnswer]
CHILD = "cdcworker.worker.validation.child"
"""The module of the children that run live checks."""


class ConnectorCatalog:
    """The connectors of this worker and their definitions, loaded when first asked for."""

    def __init__(
        self,
        lookup: Callable[[str], Plugin] = registry.lookup,
        plugins: Callable[[], Sequence[Plugin]] = registry.plugins,
        refused: Callable[[], Sequence[RefusedPlugin]] = registry.refused,
    ) -> None:
        self.lookup = lookup
        self.plugins = plugins
        self.refused = refused
        self._definitions: dict[str, ConfigDef] = {}
        self._masked = MaskedConfigs()

    def definition(self, plugin: Plugin) -> ConfigDef:
        if plugin.name not in self._definitions:
            try:
                definition: ConfigDef = plugin.load().config_def
            except (ImportError, AttributeError) as exc:
                log.warning("connector cannot be loaded plugin=%s error=%s", plugin.name, exc)
                message = f"The connector {plugin.name} cannot be loaded on this worker"
                raise CdcError(UNAVAILABLE, message, where={"key": "connector.class"}) from exc
            self._definitions[plugin.name] = with_framework(definition, plugin.kind)
        return self._definitions[plugin.name]

    def plugin_of(self, config: Mapping[str, str | None]) -> Plugin:
        name = config.get("connector.class")
        if not name or not name.strip():
            raise CdcError(NO_CLASS, NO_CLASS_TEXT, where={"key": "connector.class"})
        return self.lookup(name)

    def has_live_checks(self, plugin: Plugin, config: Mapping[str, str]) -> bool:
        """Returns whether there is anything outside of the process that a live check could find wrong."""
        try:
            stands_alone = isinstance(plugin.load(), StandsAlone)
        except (ImportError, AttributeError):
            return True
        return not stands_alone or any(map(has_reference, config.values()))

    def mask(self, config: Mapping[str, str]) -> dict[str, str]:
        """The config as it may be shown; what cannot be looked up is masked by the sound of its names."""
        return self._masked.masked(config, lambda found: self._masker(found).mask(found))

    def is_quickly_masked(self, config: Mapping[str, str]) -> bool:
        """Returns whether masking costs next to nothing: it was done before, or the config is small and its class is
        loaded."""
        is_small = sum(map(len, config.values())) + sum(map(len, config)) <= QUICK_CHARS_MAX
        return (is_small and self._is_loaded(config)) or self._masked.holds(config)

    def _is_loaded(self, config: Mapping[str, str]) -> bool:
        try:
            return self.plugin_of(config).name in self._definitions
        except CdcError:
            return True

    def unmask(self, config: Mapping[str, str | None], stored: Mapping[str, str]) -> dict[str, str | None]:
        """Masked secrets replaced by the stored ones; CdcError when there is none to keep."""
        definition, known = self._masker(config), {shown: name for name, shown in secret_names.names(stored).items()}
        out: dict[str, str | None] = {}
        for shown, value in config.items():
            name = known.get(shown, shown)
            if secret_names.is_masked_name(name):
                raise _nothing_kept(shown)
            if value == MASK and definition.shown(name, "probe") == MASK:
                if name not in stored:
                    raise _nothing_kept(shown)
                value = stored[name]
            elif value is not None and secret_names.holds_mask(value):
                if name not in stored or definition.shown(name, stored[name]) != value:
                    raise _nothing_kept(shown)
                value = stored[name]
            out[name] = value
        return out

    def moved_destinations(self, config: Mapping[str, str | None], stored: Mapping[str, str]) -> list[str]:
        """The keys that differ between a config and the stored one and decide where secrets are sent, by the definition of
        either's connector. A stored key that nobody knows may be one; one that comes is validation's to refuse."""
        given = {name: value for name, value in config.items() if value is not None}
        definitions = [self._masker(one).of(one) for one in (given, stored)]

        def connects(name: str) -> bool:
            said = [known for one in definitions if (known := one.connects(name)) is not None]
            return any(said) if said else name in stored

        return [name for name in sorted({*given, *stored}) if given.get(name) != stored.get(name) and connects(name)]

    def _masker(self, config: Mapping[str, str | None]) -> ConfigDef:
        try:
            return self.definition(self.plugin_of(config))
        except CdcError:
            return ConfigDef(())


def _nothing_kept(name: str) -> CdcError:
    return CdcError(MASKED_VALUE, f"{name} is masked, and no value is stored for it", where={"key": name})


@dataclass(frozen=True)
class ValidationReport:
    """What validation found. `findings` holds errors of definitions and of live checks, warnings and notes."""

    plugin: Plugin
    definition: ConfigDef
    values: Sequence[ConfigValue]
    findings: Sequence[CheckFinding] = field(default_factory=tuple)

    @property
    def errors(self) -> list[CheckFinding]:
        return [finding for finding in self.findings if finding.severity == "error"]

    @property
    def remarks(self) -> list[CheckFinding]:
        return [finding for finding in self.findings if finding.severity != "error"]

    def shown(self, findings: Sequence[CheckFinding]) -> list[dict[str, Any]]:
        """Returns the findings as JSON, with what a machine can apply where that is known: a misspelt key is
        renamed."""
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

    def advice(self) -> str:
        """Returns what else can be done about the errors; empty: nothing."""
        unknown = {value.name for value in self.values if not value.known}
        return HOW_TO_TAKE if any(finding.key in unknown for finding in self.errors) else ""

    def config_infos(self) -> dict[str, Any]:
        """Kafka Connect's ConfigInfos. An unknown key has no definition; an accepted one is only a remark."""
        definitions = {item["name"]: item for item in self.definition.definitions()}
        wrong = {finding.key for finding in self.errors}
        shown = [value for value in self.values if value.name in definitions or value.name in wrong]
        lines: dict[str, list[str]] = {value.name: [] for value in shown}
        for finding in dict.fromkeys(self.errors):
            # What is no key's stands at the class of the connector.
            lines.get(finding.key, lines.get("connector.class", [])).append(error_line(finding))
        configs = [
            {"definition": definitions.get(value.name), "value": _value_info(value, lines[value.name])}
            for value in shown
        ]
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


def error_line(finding: CheckFinding) -> str:
    if finding.code == INVALID_VALUE:
        return finding.message
    return f"[{finding.code}] {finding.message}" + (f" ({finding.hint})" if finding.hint else "")


def finding_json(finding: CheckFinding) -> dict[str, Any]:
    key = finding.key.replace("~", "~0").replace("/", "~1")
    return {
        "severity": finding.severity,
        "code": finding.code,
        "message": finding.message,
        "configPath": f"/config/{key}" if key else None,
        "suggestion": finding.hint or None,
    }


def check_keys(
    catalog: ConnectorCatalog,
    config: Mapping[str, str | None],
    access: TopicAccess = ANY_TOPIC,
    *,
    takes_unknown: bool = False,
) -> ValidationReport:
    """Validation without I/O; CdcError when `connector.class` is missing or unknown. `access`: the connector's topics.
    `takes_unknown`: a key that is not known is a warning, and no error."""
    plugin = catalog.plugin_of(config)
    definition = catalog.definition(plugin)
    given = {name: value for name, value in config.items() if value is not None}
    values = definition.validate(given)
    whole = definition.of(given)
    unknown = _unknown_findings(whole, values, taken=takes_unknown)
    findings = (*_key_findings(whole, values, config), *unknown, *topic_findings(whole, config, plugin.kind, access))
    return ValidationReport(plugin, whole, values, findings)


def _key_findings(
    definition: ConfigDef, values: Sequence[ConfigValue], config: Mapping[str, str | None]
) -> Iterator[CheckFinding]:
    nulls = {name for name, value in config.items() if value is None}
    hint = CODES[INVALID_VALUE].hint
    for value in values:
        if value.name not in nulls and value.known:
            for error in value.errors:
                yield CheckFinding(value.name, "error", INVALID_VALUE, error, _suggestion(definition, value))
        if value.name in NAMES and has_reference(config.get(value.name) or ""):
            yield CheckFinding(value.name, "error", INVALID_VALUE, f"{value.name} {NO_REFERENCE}", hint)
        if value.note:
            yield CheckFinding(value.name, "note", SKIPPED, f"{value.name}: {value.note}")
    for name in sorted(map(secret_names.name, nulls)):
        yield CheckFinding(name, "error", INVALID_VALUE, NULL_VALUE, hint)
    yield from _control_findings(config.get("name") or "", hint)


def _unknown_findings(definition: ConfigDef, values: Sequence[ConfigValue], *, taken: bool) -> Iterator[CheckFinding]:
    """Keys that neither the connector nor Kafka Connect has."""
    for value in values:
        if value.known:
            continue
        for text in value.errors:
            hint = _suggestion(definition, value)
            if taken:
                yield CheckFinding(value.name, "warning", SKIPPED, text, hint)
            else:
                # What looks like a slip is not to be taken, but corrected.
                more = "" if value.nearest else f" {HOW_TO_TAKE}"
                yield CheckFinding(value.name, "error", INVALID_VALUE, text, hint + more)


def _suggestion(definition: ConfigDef, value: ConfigValue) -> str:
    """Returns what the key is for, or what to do about an unknown one."""
    if value.nearest:
        return f"Rename it to {value.nearest}."
    key = definition.keys.get(value.name)
    if key is None:
        return "Take it out, or correct its name: `cdcworker plugins CLASS` lists the keys."
    return key.doc or CODES[INVALID_VALUE].hint


def _control_findings(name: str, hint: str) -> Iterator[CheckFinding]:
    """Control characters beyond ASCII, which Connect refuses too."""
    found = [ord(char) for char in name if 0x7F < ord(char) < 0xA0]
    if found:
        yield CheckFinding("name", "error", INVALID_VALUE, control_characters(found).sentence("name", name), hint)


def check_live(
    report: ValidationReport, config: Mapping[str, str], checks: Checks, timeout_s: float = CHECK_TIMEOUT_S
) -> ValidationReport:
    """The report with the findings of the outside; secrets are cut out of whatever the checks say."""
    secrets = telling(config, report.definition.secrets)
    found = [redacted(finding, secrets) for finding in checks(config, timeout_s)]
    return replace(report, findings=(*report.findings, *found[:FINDINGS_MAX]))


def check_clusters(
    report: ValidationReport, config: Mapping[str, str], access: TopicAccess, exists: Exists
) -> ValidationReport:
    """The report with an error for each key that names a topic of another cluster, as Kafka knows its topics. Kafka is
    asked only about names that look so; where it does not answer, the task asks again before it uses the topic."""
    asked = cluster_topics(report.definition, config)
    if not asked:
        return report
    try:
        there = exists(asked)
    except CdcError as error:
        text = f"Kafka did not tell whether topics belong to another cluster: [{error.code}] {error.message}"
        return replace(report, findings=(*report.findings, CheckFinding("", "note", CHECK_INCOMPLETE, text)))
    found = topic_findings(report.definition, config, report.plugin.kind, access, there)
    return replace(report, findings=(*report.findings, *found))


def telling(config: Mapping[str, str], secrets: Collection[str]) -> list[str]:
    """The secrets to be cut out of texts: not those of one or two characters, which would cut up every word, nor those
    that another key tells everybody, which would cut up what is said about that one."""
    told = {value for name, value in config.items() if name not in secrets}
    plain = [config[name] for name in secrets if len(config.get(name, "")) > 2 and config[name] not in told]
    judge = ConfigDef(()).shown
    shown = [judge(name, value) for name, value in config.items() if name not in secrets]
    return plain + [secret for secret in secret_names.untold(config, shown) if len(secret) > 2]


def unchecked(report: ValidationReport) -> ValidationReport:
    """The report when no checker became free in time."""
    text = "The live checks did not run: too many run at this moment"
    return replace(report, findings=(*report.findings, CheckFinding("", "note", CHECK_INCOMPLETE, text)))


def redacted(finding: CheckFinding, secrets: Sequence[str]) -> CheckFinding:
    """The finding without the secrets."""
    message, hint = finding.message, finding.hint
    for secret in secrets:
        message, hint = message.replace(secret, MASK), hint.replace(secret, MASK)
    return replace(finding, message=message, hint=hint)


def start_child(question: Mapping[str, Any], timeout_s: float) -> ChildAnswer:
    """Asks a child that is started for this question."""
    return call_child((sys.executable, "-m", CHILD), dict(question), timeout_s)


def run_checks(
    config: Mapping[str, str],
    timeout_s: float = CHECK_TIMEOUT_S,
    providers: Mapping[str, str] | None = None,
    call: Ask = start_child,
) -> list[CheckFinding]:
    """`check()` of the connector in a child process. Too slow or broken checks give a note, never an error.

    `providers` are the worker's `config.providers.*` properties; references are resolved in the child alone. `call` asks a
    child.
    """
    answer = call({"config": dict(config), "providers": dict(providers or {})}, timeout_s)
    ending = "The live checks ended unexpectedly" + (f" (exit code {answer.code})" if answer.code else "")
    if answer.code is None:
        ending = f"The live checks did not finish within {timeout_s:g} s; what they found until then is listed"
    findings, complete = read_findings(answer.out)
    if not complete:
        findings.append(CheckFinding("", "note", CHECK_INCOMPLETE, ending, CODES[CHECK_INCOMPLETE].hint))
    return findings


def read_findings(out: bytes) -> tuple[list[CheckFinding], bool]:
    """Findings of the child's output, and whether it came to its end with every line whole; broken lines are left out."""
    findings: list[CheckFinding] = []
    is_whole = True
    for line in out.splitlines():
        try:
            item = parse_message(line)
            if item.get("done"):
                return findings, is_whole
            severity = item["severity"]
            if severity not in ("error", "warning", "note"):
                raise JsonRefused("no severity")
            texts = (str(item[name]) for name in ("key", "code", "message"))
            key, code, message = texts
        except (JsonRefused, KeyError):
            is_whole = False
            continue
        findings.append(CheckFinding(key, severity, code, message, str(item.get("hint", ""))))
    return findings, False
