"""Statements that the log holds as text: what the first words of one say. Comments are passed over, and names are read with their quotes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

TOKENS_MAX: Final = 64
"""Words that are looked at. # INV-10"""
_QUOTES: Final = "`'\""
_DML: Final = frozenset({"INSERT", "UPDATE", "DELETE", "REPLACE", "LOAD", "MERGE"})
_MAY_CHANGE: Final = frozenset({"WITH", "SELECT", "DO", "CALL"})
"""Of these only what has changed rows is logged, and the words do not say which: behind a common table expression, or in a function."""
_PASSED_OVER: Final = frozenset(
    {*_DML, "INTO", "LOW_PRIORITY", "DELAYED", "HIGH_PRIORITY", "IGNORE", "QUICK", "FROM", "TABLE", "DATA", "ONLY"}
)


def words(statement: str, most: int = TOKENS_MAX) -> list[str]:
    """Returns the first words of a statement: names in quotes as they are behind a backtick, and signs alone."""
    out: list[str] = []
    for word in _words(statement):
        out.append(word)
        if len(out) >= most:
            break
    return out


def _words(text: str) -> Iterator[str]:
    at, end = 0, len(text)
    while at < end:
        character = text[at]
        if character.isspace():
            at += 1
        elif (after := _after_comment(text, at)) is not None:
            at = after
        elif character in _QUOTES:
            word, at = _quoted(text, at)
            yield "`" + word
        elif _is_of_word(character):
            start = at
            while at < end and _is_of_word(text[at]):
                at += 1
            yield text[start:at]
        else:
            yield character
            at += 1


def _is_of_word(character: str) -> bool:
    return character.isalnum() or character in "_$"


def _after_comment(text: str, at: int) -> int | None:
    """Returns the place behind a comment that begins here; None: none does. What servers execute of a comment (`/*!50000 …*/`) is no
    comment: only its marks are passed over."""
    if text.startswith(("/*!", "/*M!"), at):
        at += 3 if text[at + 2] == "!" else 4
        while at < len(text) and text[at].isdigit():
            at += 1
        return at
    if text.startswith("/*", at):
        end = text.find("*/", at + 2)
        return len(text) if end < 0 else end + 2
    if text.startswith("*/", at):
        return at + 2
    if text[at] == "#" or (text.startswith("--", at) and (at + 2 == len(text) or text[at + 2].isspace())):
        end = text.find("\n", at)
        return len(text) if end < 0 else end + 1
    return None


def _quoted(text: str, at: int) -> tuple[str, int]:
    quote, out = text[at], []
    at += 1
    while at < len(text):
        if text[at] != quote:
            out.append(text[at])
            at += 1
        elif text[at + 1 : at + 2] == quote:
            out.append(quote)
            at += 2
        else:
            return "".join(out), at + 1
    return "".join(out), at


def keyword(found: list[str], at: int = 0) -> str:
    """Returns a word in upper case; empty where there is none, or a name in quotes."""
    return found[at].upper() if at < len(found) and not found[at].startswith("`") else ""


def truncated(found: list[str], database: str) -> tuple[str, str] | None:
    """Returns database and name of the table that a statement empties; None: it does not empty one."""
    if keyword(found) != "TRUNCATE":
        return None
    return name_at(found, 2 if keyword(found, 1) == "TABLE" else 1, database)


def name_at(found: list[str], at: int, database: str) -> tuple[str, str] | None:
    """Returns database and name of the table that is named there; None where the words end."""
    if at >= len(found):
        return None
    first = found[at].removeprefix("`")
    if at + 2 < len(found) and found[at + 1] == ".":
        return first, found[at + 2].removeprefix("`")
    return database, first


def without_settings(found: list[str]) -> list[str]:
    """Returns the words of the statement that a SET STATEMENT … FOR of MariaDB stands before."""
    if keyword(found) != "SET" or keyword(found, 1) != "STATEMENT":
        return found
    return next((found[at + 1 :] for at in range(2, len(found)) if keyword(found, at) == "FOR"), found)


def _loaded(found: list[str], database: str) -> tuple[str, str]:
    """Returns the table behind INTO TABLE."""
    pairs = (at for at in range(len(found)) if (keyword(found, at), keyword(found, at + 1)) == ("INTO", "TABLE"))
    at = next(pairs, len(found))
    return name_at(found, at + 2, database) or (database, "")


def changed_rows_of(found: list[str], database: str) -> tuple[str, str] | None:
    """Returns database and name of the table whose rows a statement changes, where rows should have been logged; None: it changes
    none. The name is empty where it cannot be told."""
    if keyword(found) in _MAY_CHANGE:
        return database, ""
    if keyword(found) not in _DML:
        return None
    if keyword(found) == "LOAD":
        return _loaded(found, database)
    at = 0
    while at < len(found) and keyword(found, at) in _PASSED_OVER:
        at += 1
    return name_at(found, at, database) or (database, "")
