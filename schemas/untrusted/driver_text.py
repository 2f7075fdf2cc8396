"""What is kept of the text of an error that a driver wrote: psycopg, pyarrow, librdkafka, py4j, Spark and the clients of lakes quote
the row that they were about. Codes, kinds of errors and names of tables, columns and constraints stay; values do not.
"""

from __future__ import annotations

import re
from typing import Final

KEPT_MAX: Final = 500
_READ_MAX: Final = 65_536
SHOWN: Final = "…"
_KIND: Final = re.compile(
    r"(?<![\w$.])(?:(?:[A-Za-z_$][\w$]{0,60}\.){0,12}[A-Z][\w$]{0,80}(?:Exception|Error|Failure)\b(?![\w$.])"
    r"|(?:[a-z_$][\w$]{0,60}\.){1,12}[A-Z][\w$]{0,80}(?=: ))"
)
"""A name that ends as those of exceptions do, or a name with its package before a colon."""
_CONDITION: Final = re.compile(r"\[[A-Z][A-Z0-9_]{2,80}(?:\.[A-Z0-9_]{2,80}){0,3}\]")
_STATE: Final = re.compile(r"\bSQLSTATE: ?[0-9A-Z]{5}\b")
_NAMED: Final = re.compile(
    r"\b(?:table|relation|column|constraint|index|schema|database|role|user|topic|publication|slot|type|function|sequence|view"
    r"|key|field|catalog|namespace|attribute|server|host|name|file|partition|segment|extension|parameter|option|library|object)s?"
    r" [\"'`][^\"'`\n]{1,300}[\"'`]"
)
"""A quoted name behind the word that says what it is a name of."""
_QUOTED: Final = re.compile(
    r"\"(?:[^\"\\\n]|\\.|\"\"){0,20000}+\"?|(?<![A-Za-z])'(?:[^'\\\n]|\\.|''){0,20000}+'?|`[^`\n]{0,20000}+`?"
    r"|\)=\([^\n]{0,20000}"
)
_USER_CODE: Final = re.compile(r"\bPL/|\bSQL\b")
"""In contexts of functions, whatever the language of the server's messages is."""
_VALUE: Final = re.compile(
    r"(?i)(?<![\w-])(values?|input|data|row|record|literal|payload|content|string)\b(?: (?:is|was|of))?[:=] ?[^\n]*"
)


def kept(text: str) -> str:
    """Returns the text of a driver's error without values, as one line.

    Nothing stays behind the name of an exception, or its code, but the names and codes of further ones: what an exception says is made of
    what it is about.
    """
    text = text[:_READ_MAX]
    starts = [found.start() for found in (_KIND.search(text), _CONDITION.search(text)) if found]
    first = min(starts, default=len(text))
    return " ".join(f"{_without_values(text[:first])} {kept_kinds(text[first:])}".split())[:KEPT_MAX]


def _without_values(text: str) -> str:
    line = text.strip().partition("\n")[0][: 2 * KEPT_MAX]
    named = {found.start(): found.end() for found in _NAMED.finditer(line)}

    def cut(found: re.Match[str]) -> str:
        is_name = any(start < found.start() and found.end() <= end for start, end in named.items())
        return found[0] if is_name else SHOWN

    return _VALUE.sub(lambda found: f"{found[1]} {SHOWN}", _QUOTED.sub(cut, line))


def is_of_user_code(context: str | None) -> bool:
    """Returns whether the context of a PostgreSQL error names a function, or a statement inside of one. Their authors make texts of
    values, under any SQLSTATE."""
    return _USER_CODE.search(context or "") is not None


def kept_kinds(text: str) -> str:
    """Returns the names of exceptions and the codes in a text; empty where there are none."""
    text = text[:_READ_MAX]
    found = sorted((one.start(), one[0]) for form in (_KIND, _CONDITION, _STATE) for one in form.finditer(text))
    return " ".join(dict.fromkeys(what for _, what in found))
