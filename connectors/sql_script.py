"""Scripts of SQL that an administrator reads and runs: steps with a reason, which can be repeated."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

WIDTH = 116


@dataclass(frozen=True, slots=True)
class ScriptStep:
    """`why` becomes a comment."""

    why: str
    statements: Sequence[str]
    client: str = ""
    """A command of the database's own client, with which the script begins."""


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def either(first: str, instead: Sequence[str]) -> str:
    """Returns a step that makes an object, or does something else where it exists already."""
    inner = "; ".join(instead) or "NULL"
    tag = "$cdc$"
    while tag in first or tag in inner:
        tag = f"${tag[1:-1]}_$"
    return f"DO {tag} BEGIN {first}; EXCEPTION WHEN duplicate_object THEN {inner}; END {tag}"


def role_steps(role: str) -> list[ScriptStep]:
    """A role that may log in and is given nothing by that."""
    return [
        ScriptStep(
            "Its password belongs in no script and no history: with psql, \\password sets it.",
            (either(f"CREATE ROLE {quoted(role)} LOGIN", ()),),
            client="\\set ON_ERROR_STOP on",
        )
    ]


def as_text(title: str, steps: Iterable[ScriptStep]) -> str:
    """Returns a script for the database's client, which stops at the first statement that fails: psql by a command, that of MySQL
    by itself."""
    steps = list(steps)
    lines = [f"-- {title}", *(step.client for step in steps if step.client)]
    for step in steps:
        lines.append("")
        lines += [f"-- {line}" for line in textwrap.wrap(step.why, WIDTH)]
        lines += [f"{statement};" for statement in step.statements]
    return "\n".join(lines) + "\n"
