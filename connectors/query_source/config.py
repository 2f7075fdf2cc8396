"""The keys of the source of a query. Names are those of Confluent's JDBC source where it has the same."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from cdcworker.connectors.api.kit import ConfigKey, between, matches, one_of
from cdcworker.connectors.query_source.address import FileAddress, parsed, problem

GROUP: Final = "Query"
MODES: Final = ("incrementing", "timestamp", "diff")
COLUMN_KEYS: Final[Mapping[str, str]] = {
    "incrementing": "incrementing.column.name",
    "timestamp": "timestamp.column.name",
}
_SELECT: Final = re.compile(r"\s*(select|with|values)\b", re.IGNORECASE)
_ELSEWHERE: Final = {
    "table.whitelist": "one connector runs one query: write `select * from TABLE` into `query`, and the name of its topic into query.table",
    "table.blacklist": "one connector runs one query: name what is read in `query`",
    "timestamp.delay.interval.ms": "rows that commit late are found by query.lookback, and nothing is held back for it",
    "numeric.mapping": "numbers that no int64 holds are text with all of their digits",
    "timestamp.initial": "put the condition into `query`",
    "batch.max.rows": "a page has up to 5,000 rows",
    "db.timezone": "times are written as the database has them",
}
"""Keys of Confluent's that are not done, and what there is instead."""


def _query(value: str) -> str | None:
    return None if _SELECT.match(value) else "expects one SELECT"


def _mode(value: str) -> str | None:
    if value == "bulk":
        return "all rows again each time is not done: `diff` writes those that are new, other or gone"
    if value == "timestamp+incrementing":
        return "is not needed: with `timestamp` rows that have one time are told apart by all of their columns"
    return one_of(*MODES)(value)


def _refusal(reason: str) -> Any:
    return lambda _value: f"is not available: {reason}"


KEYS: Final = (
    ConfigKey(
        "connection.url", required=True, importance="HIGH", group=GROUP, validator=problem, connects=True,
        doc="The database, which is only read: jdbc:postgresql://HOST:PORT/DATABASE, jdbc:mysql:// or jdbc:mariadb://, with the parameters"
        " sslmode, sslrootcert and currentSchema; or a file, as jdbc:sqlite:/PATH or jdbc:duckdb:/PATH, in one of the folders of the"
        " worker's `file.connector.paths`. It holds no login.",
    ),
    ConfigKey(
        "connection.username", importance="HIGH", group=GROUP, former="connection.user", connects=False, of_server=True,
        doc="The user that reads. Of a server it is needed.",
    ),
    ConfigKey(
        "connection.password", "PASSWORD", importance="HIGH", group=GROUP, connects=False,
        doc="Its password; best a reference such as ${file:/path:key}.",
    ),
    ConfigKey(
        "query", required=True, importance="HIGH", group=GROUP, validator=_query,
        doc="One SELECT. Its columns are the fields of a row: give them names with AS.",
    ),
    ConfigKey(
        "query.table", required=True, importance="HIGH", group=GROUP, topics="part",
        validator=matches(r"[A-Za-z_][A-Za-z0-9_-]{0,99}", "letters, digits, _ and -"),
        doc="The name of the table; its topic is `<topic.prefix>.query.<table>`.",
    ),
    ConfigKey(
        "query.key", "LIST", importance="HIGH", group=GROUP,
        doc="The columns that tell rows apart. Needed with mode=diff.",
    ),
    ConfigKey(
        "mode", required=True, importance="HIGH", group=GROUP, validator=_mode, recommended=MODES,
        doc="How changes are found: by a number that rises (incrementing), by a time (timestamp), or by comparison of all rows with"
        " what they were (diff), which alone finds deletions.",
    ),
    ConfigKey(
        "incrementing.column.name", group=GROUP, doc="The column of the result whose number rises with each row that is new or changed.",
    ),
    ConfigKey(
        "timestamp.column.name", group=GROUP,
        doc="The column of the result with the time of the last change: a timestamp; of SQLite text in UTC of the form"
        " YYYY-MM-DD HH:MM:SS.",
    ),
    ConfigKey(
        "query.lookback", "INT", 0, group=GROUP, validator=between(0, 2_000_000_000),
        doc="How far below the highest value rows are read again, to find those that were committed late: a difference of numbers with"
        " mode=incrementing, milliseconds with mode=timestamp. What was written is left out.",
    ),
    ConfigKey(
        "query.timeout.ms", "INT", 30_000, group=GROUP, validator=between(100, 40_000),
        doc="How long the query may take; a longer one is ended, and halts the task.",
    ),
    *(
        ConfigKey(name, importance="LOW", group="Not available", validator=_refusal(reason), doc=f"Refused: {reason}.", connects=False)
        for name, reason in _ELSEWHERE.items()
    ),
)  # fmt: skip


def check(config: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    """Yields keys with what is wrong with them together."""
    is_file = isinstance(parsed(config["connection.url"]), FileAddress)
    if is_file:
        for key in ("connection.username", "connection.password"):
            if config[key]:
                yield key, "has no meaning for a file"
    elif not config["connection.username"]:
        yield "connection.username", "is needed: a server asks who reads"
    mode = config["mode"]
    for name_of, key in COLUMN_KEYS.items():
        if mode == name_of and not config[key]:
            yield key, f"is needed with mode={mode}"
        elif mode != name_of and config[key]:
            yield key, f"has no meaning with mode={mode}"
    if mode == "diff" and not config["query.key"]:
        yield "query.key", "is needed with mode=diff: rows are told apart by it"
    if mode == "diff" and config["query.lookback"]:
        yield "query.lookback", "has no meaning with mode=diff"
