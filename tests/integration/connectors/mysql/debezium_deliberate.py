"""What records of ours have other than Debezium's on purpose, each with the reason. All else has to be the same."""

from __future__ import annotations

from tests.genuine.deliberate import ANY, Rule

SOURCE = r"/value/payload/source/"
SCHEMA = r"/value/schema/fields/"
ROW = r"/value/schema/fields/(before|after)/fields/"
RULES = (
    Rule("Ours has a version of its own.", "the `source` block", ANY, rf"{SOURCE}version is "),
    Rule("The position is part of the block.", "the `source` block", ANY, r"/source/(fields/)?(commit_lsn|tx_index|tx_sub) is ours alone$|/source/order is "),
    Rule("Chunks are read beside the stream.", "`snapshot`, `file` and `pos` in `source` of rows of a snapshot of MySQL", ANY, rf"{SOURCE}(snapshot is 'true', not '(first|last)|file is '', not|pos is 0, not)"),
    Rule("Each event has its own place.", "`pos` in `source` inside a transaction of MariaDB", ANY, rf"{SOURCE}pos is \d+, not \d+$"),
    Rule("The session is known.", "schema change events of `CREATE INDEX` and `RENAME TABLE`, and their `thread`", ANY, rf"{SOURCE}thread is \d+, not None$"),
    Rule("A default that is computed is not what the server writes, and the text of a moment depends on a zone.", "the default of a `timestamp`", ANY, rf"{ROW}(at|made)/default is missing$"),
    Rule("MariaDB's JSON is JSON.", "`json` of MariaDB", "types", rf"{ROW}j/(name|version) is ours alone$"),
    Rule("The server shows a width where none was given.", "`tableChanges` of schema change events", "^$", r"/table/columns/\w+/length is \d+, not None$"),
    Rule("A default that is computed is no text.", "`tableChanges` of schema change events", "^$", r"/defaultValueExpression is None, not '1970-01-01 00:00:00'$"),
    Rule("A comment is no part of a type.", "comments of columns", "evolving", rf"{ROW}v/doc is missing$"),
    Rule("A member is what the server shows.", "members of `enum` with a comma", "types", r"/value/payload/(before|after)/e is 'a, b', not"),
    Rule("A UUID is what the server shows.", "`uuid` of MariaDB", "types", r"/value/payload/(before|after)/u is '123e4567-e89b-12d3-a456-426614174000', not"),
    Rule("Each has a database.", "schema change events of `CREATE INDEX` and `RENAME TABLE`, and their `thread`", "^$", rf"{SCHEMA}databaseName/optional is False"),
    Rule("An index is one of a table.", "schema change events of `CREATE INDEX` and `RENAME TABLE`, and their `thread`", "^$", r"^create index .*(/databaseName is 'shop'|/source/(db|table) is '|/tableChanges/0 is ours alone)"),
    Rule("Both names of a table are told.", "schema change events of `CREATE INDEX` and `RENAME TABLE`, and their `thread`", "^$", r"^rename table .*(/source/table is 'later,latest'|/tableChanges/)"),
)  # fmt: skip
"""`request` is the topic without the prefix."""


def unexpected(topic: str, lines: list[str]) -> list[str]:
    return [line for line in lines if not any(rule.allows(topic, line) for rule in RULES)]


def unused(found: dict[str, list[str]]) -> list[str]:
    """The reasons of rules that allow nothing of what was found: what they say is no longer so."""
    return [
        rule.why
        for rule in RULES
        if not any(rule.allows(topic, line) for topic, lines in found.items() for line in lines)
    ]
