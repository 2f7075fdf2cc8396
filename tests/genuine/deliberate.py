"""What ours answers other than a genuine Kafka Connect on purpose, each with the reason. All else has to be the same."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

ANY = ""
PLUGIN = r"/connector-plugins/"
VALIDATE = r"/config/validate "
OWN_KEYS = "(file|topic|batch.size)"


@dataclass(frozen=True)
class Rule:
    """`row` is the first cell of the row of docs/migration/differences.md that tells of it; `request` and `line` are regular
    expressions that find the requests and the differences that are meant."""

    why: str
    row: str
    request: str
    line: str

    def allows(self, request: str, line: str) -> bool:
        return re.search(self.request, request) is not None and re.search(self.line, line) is not None


RULES = (
    Rule("Every answer with a body says what it is, and a 405 what is allowed.", "headers and bodies of answers", ANY, r"^headers/(content-type|allow) is ours alone$"),
    Rule("Allowed methods are told by a header alone.", "headers and bodies of answers", "^OPTIONS", r"^(headers/content-type is missing|/ is None, not 'HEAD)"),
    Rule("Its methods are in another order.", "headers and bodies of answers", "^OPTIONS", r"^headers/allow is 'GET, HEAD, OPTIONS, POST'"),
    Rule("A body without a content type is read as JSON.", "a body without a content type", "no content type$", r"^status 400, not 415"),
    Rule("Null is no value of any key.", "`null` as a value of a config", "null as a value$", r"^status 400"),
    Rule("Nothing was made with a null.", "`null` as a value of a config", "of null$", r"^status 404, not 204"),
    Rule("A config's values are not told in an error.", "errors about a config", "(no class|an empty object)$", r"^/message is 'Connector config contains no"),
    Rule("An empty class is none.", "errors about a config", "an empty class$", r"^/message is 'Connector config contains no"),
    Rule("A value that is no number is told once.", "errors about a config", ANY, r"(Value must be non-null|/errors/1 is missing$|^/error_count is 1, not 2$)"),
    Rule("A name in a config is that of its connector.", "`PATCH` of a config with another `name`", "^PATCH .* another name$", "^status 400, not 200"),
    Rule("`tasks-config` of earlier versions of Connect is still there.", "`GET /connectors/{connector}/tasks-config`", "/tasks-config$", ANY),
    Rule("A task has no class.", "`task.class` in `GET /connectors/{connector}/tasks`", "/tasks$", r"/config/task.class is missing$"),
    Rule("A stopped connector says so.", "restart of a task of a stopped connector", "tasks/0/restart stopped$", r"^/message is 'the connector is stopped'"),
    Rule("Files have to be named: nothing is read from the worker's own input.", "`file` of the file connectors", ANY, r"^/configs/file is ours alone$|/file(/definition)?/required is True"),
    Rule("A missing file is one error more.", "`file` of the file connectors", "nothing given$", r"^/error_count is (3, not 2|4, not 3)$"),
    Rule("A missing file is one error more.", "`file` of the file connectors", "no topics$", r"^/message is 'Connector .* 3 error"),
    Rule("An empty file is an error.", "`file` of the file connectors", "file=$", r"^/error_count is 1, not 0$"),
    Rule("Null is no value of any key.", "`null` as a value of a config", "(topic|topics)=None$", r"^/(error_count|configs/topic)"),
    Rule("Commas are no topics.", "values of a config", r"topics= , $", r"^/(error_count|configs/topics)"),
    Rule("Values are judged before a task starts.", "values of a config", "=(0|-2|40000|odd)$", r"^/(error_count is 1, not 0|configs/(batch.size|topic.creation[a-z.]*) is ours alone)$"),
    Rule("Connectors here deliver exactly once.", "`exactly.once.support=required` of the file source", "exactly.once.support=REQUIRED$", r"^/(error_count is 0, not 1|configs/exactly.once.support is missing)$"),
    Rule("No transforms are applied to lines of files.", "converters, transforms", "(transforms|predicates)=", r"^/(error_count is 1, not 2|configs/(transforms|predicates))"),
    Rule("Converters of keys and headers have no effect on lines of files.", "converters, transforms", "(key|header).converter=", r"^/(error_count is 0, not 1|configs/(key|header).converter is missing)$"),
    Rule("Each connector says which converters it has.", "definitions of keys", "value.converter=$", r"^/configs/value.converter/value/"),
    Rule("Values that may stand there are told.", "definitions of keys", VALIDATE, r"/recommended_values/\d+ is ours alone$"),
    Rule("There is one version of each part, which is not asked for.", "definitions of keys", PLUGIN, r"plugin.version/.*(default_value|value/value|recommended_values/0 is missing)"),
    Rule("Converters have no default of the worker.", "definitions of keys", PLUGIN, r"(key|value|header).converter/.*(default_value|value/value|recommended_values|documentation)"),
    Rule("Connectors have keys of their own, and show them in groups.", "definitions of keys", PLUGIN, rf"/{OWN_KEYS}(/definition)?/(group|order_in_group|width|importance|display_name) is "),
    Rule("Connectors have keys of their own.", "definitions of keys", f"{PLUGIN}.*(/config$|latest$|fine$)", r"^/(configs/)?[a-z.]+ is ours alone$|^/groups/\d"),
    Rule("A converter has the keys that it knows.", "definitions of keys", "JsonConverter/config$", ANY),
    Rule("The JsonConverter converts no headers.", "definitions of keys", "connectorsOnly", r"^/org.apache.kafka.connect.json.JsonConverter header_converter is missing$"),
)  # fmt: skip
OF_REAL_WORKERS = (
    Rule(
        "An offset is what the connector makes of it.",
        "offsets and topics of the file connectors",
        "GET .*/offsets",
        r"/offset/(filename|tail|v) is ours alone$",
    ),
    Rule(
        "A sink's topics are those that it was given.",
        "offsets and topics of the file connectors",
        "/stray/topics$",
        r"^/stray/topics/0 is ours alone$",
    ),
)
"""What tasks do that run."""


def unexpected(found: Mapping[str, list[str]]) -> dict[str, list[str]]:
    """The differences that no rule allows."""
    left = {
        request: [line for line in lines if not any(rule.allows(request, line) for rule in (*RULES, *OF_REAL_WORKERS))]
        for request, lines in found.items()
    }
    return {request: lines for request, lines in left.items() if lines}


def unused(found: Mapping[str, list[str]]) -> list[str]:
    """The reasons of rules that allow nothing of what was found: what they say is no longer so."""
    return [
        rule.why
        for rule in RULES
        if not any(rule.allows(request, line) for request, lines in found.items() for line in lines)
    ]
