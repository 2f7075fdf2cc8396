"""Regular expressions that users write: the one place where they are compiled and matched.

They have Python's syntax (and Java's names of groups) and take time that grows with the text alone. RE2 does the common
case. Look-around, atomic groups and texts beyond ASCII go to the engine of this package, whose steps are counted. A
back-reference is refused.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from re import _constants as op  # type: ignore[attr-defined]
from typing import Any, Final

import re2
from cdcworker.schemas.errors import CdcError, declare
from cdcworker.schemas.untrusted import linear_match
from cdcworker.schemas.untrusted.linear_match import BadPattern

LENGTH_MAX: Final = 10_000
LIST_MAX: Final = 10_000
LIST_SIZE_MAX: Final = 50_000
"""Instructions of all expressions of one list that are more than plain names."""
MEMORY_MAX: Final = 1 << 20
"""Bytes for RE2's form of one expression."""
MATCHING_S: Final = 5.0
"""Processor time for one expression over a list of names."""

COSTLY = declare(
    "config.pattern_too_costly",
    "config",
    "A regular expression takes too long",
    "Write a simpler expression: fewer look-arounds, no nested repetition, or the names themselves.",
)
INVALID = declare(
    "config.pattern_invalid",
    "config",
    "A text is no regular expression that can be used here",
    "Correct the expression. Back-references are not available: write the alternatives out.",
)

_PLAIN: Final = re.compile(r"(?:[A-Za-z0-9_ -]|\\?\.)*")
"""Names of tables and topics, with or without escaped dots: there is nothing to check."""
_JAVA_GROUP: Final = re.compile(r"(\\.)|\(\?<(?=[A-Za-z])", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Found:
    """A match of a whole text."""

    text: str
    spans: linear_match.Spans
    names: dict[str, int]

    def group(self, which: int | str) -> str:
        """What a group took, empty if it took part in nothing. IndexError for a group that there is not."""
        number = self.names.get(which, -1) if isinstance(which, str) else which
        if not 0 <= number < len(self.spans) // 2:
            raise IndexError("no such group")
        begin, end = self.spans[2 * number], self.spans[2 * number + 1]
        return "" if begin is None or end is None else self.text[begin:end]


@dataclass(frozen=True)
class Pattern:
    """One compiled expression. `compiled` makes it."""

    text: str
    ignore_case: bool
    expression: linear_match.Expression = field(repr=False, compare=False)

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (self.text, self.ignore_case)

    @property
    def groups(self) -> int:
        return self.expression.groups

    @property
    def names(self) -> dict[str, int]:
        return self.expression.names

    def fullmatch(self, text: str) -> Found | None:
        """The match of the whole text. CdcError `config.pattern_too_costly` when it takes too many steps."""
        # Beyond ASCII, and at line ends, RE2 does not mean what Python's syntax says.
        if text and text.isascii() and "\n" not in text and self._re2 is not None:
            match = self._re2.fullmatch(text.encode())
            if match is None:
                return None
            pairs = (match.span(number) for number in range(self.groups + 1))
            return Found(text, tuple(None if end < 0 else end for pair in pairs for end in pair), self.names)
        try:
            spans = linear_match.Matching(text, self.groups, linear_match.STEPS_MAX).whole(self._program)
        except linear_match.TooManySteps:
            raise CdcError(COSTLY, f"more than {linear_match.STEPS_MAX} steps for one name") from None
        return None if spans is None else Found(text, spans, self.names)

    def matching(self, texts: Iterable[str]) -> list[str]:
        """Those that it matches as a whole. CdcError `config.pattern_too_costly` when all of them take too long."""
        found, until = [], time.thread_time() + MATCHING_S
        for text in texts:
            if self.fullmatch(text) is not None:
                found.append(text)
            if time.thread_time() > until:
                raise CdcError(COSTLY, f"more than {MATCHING_S:.0f} s for the names that there are")
        return found

    @cached_property
    def _program(self) -> tuple[linear_match.Instruction, ...]:
        return linear_match.program_of(self.expression)

    @cached_property
    def _re2(self) -> Any:
        """RE2's form, which holds for ASCII without line ends; None where RE2 has no such thing."""
        text = _re2_text(self.expression.tree, self.expression.flags)
        if text is None:
            return None
        options = re2.Options()
        options.max_mem, options.log_errors, options.encoding = MEMORY_MAX, False, re2.Options.Encoding.LATIN1
        try:
            return re2.compile(text, options)
        except re2.error:
            return None


@lru_cache(maxsize=256)
def compiled(text: str, *, ignore_case: bool = False) -> Pattern:
    """The expression, ready to match. Raises BadPattern, a ValueError whose text does not repeat the expression."""
    if len(text) > LENGTH_MAX:
        raise BadPattern(f"is longer than {LENGTH_MAX} characters")
    python = _JAVA_GROUP.sub(lambda found: found[1] or "(?P<", text)
    return Pattern(text, ignore_case, linear_match.parse(python, re.IGNORECASE if ignore_case else 0))


def _again(text: str, ignore_case: bool) -> Pattern:
    return compiled(text, ignore_case=ignore_case)


def problem(text: str) -> str | None:
    """What is wrong with an expression; None if nothing is."""
    if len(text) <= LENGTH_MAX and _PLAIN.fullmatch(text):
        return None
    try:
        compiled(text)
    except BadPattern as exc:
        return str(exc)
    return None


def list_problem(texts: Sequence[str]) -> str | None:
    """What is wrong with a list of expressions; None if nothing is."""
    if len(texts) > LIST_MAX:
        return f"has more than {LIST_MAX} items"
    left = LIST_SIZE_MAX
    for number, text in enumerate(texts, 1):
        if len(text) <= LENGTH_MAX and _PLAIN.fullmatch(text):
            continue
        try:
            left -= compiled(text).expression.size
        except BadPattern as exc:
            return f"item {number} {exc}"
        if left < 0:
            return f"item {number} is one too many: all expressions of a list together are too large"
    return None


def matches(text: str, name: str, *, ignore_case: bool = False) -> bool:
    """Whether an expression matches the whole name. CdcError `config.pattern_invalid` if it is none."""
    return matches_any((text,), name, ignore_case=ignore_case)


def matches_any(texts: Iterable[str], name: str, *, ignore_case: bool = False) -> bool:
    """Whether one of the expressions matches the whole name. CdcError `config.pattern_invalid` if one is none."""
    return any(pattern.fullmatch(name) is not None for pattern in _all(tuple(texts), ignore_case))


@lru_cache(maxsize=16)
def _all(texts: tuple[str, ...], ignore_case: bool) -> tuple[Pattern, ...]:
    return tuple(required(text, ignore_case=ignore_case) for text in texts)


def required(text: str, *, ignore_case: bool = False) -> Pattern:
    """The expression of a config that has been validated. CdcError `config.pattern_invalid` if it is none: an older
    version may have accepted it."""
    try:
        return compiled(text, ignore_case=ignore_case)
    except BadPattern as exc:
        raise CdcError(INVALID, f"the expression {exc}") from None


# -- RE2 --------------------------------------------------------------------------------------------------------------

_ANCHORS: Final = {
    op.AT_BEGINNING: rb"\A",
    op.AT_BEGINNING_STRING: rb"\A",
    op.AT_END: rb"\z",
    op.AT_END_STRING: rb"\z",
    op.AT_BOUNDARY: rb"\b",
    op.AT_NON_BOUNDARY: rb"\B",
}
"""What they mean in a text without line ends."""


def _re2_text(tree: Any, flags: int) -> bytes | None:
    parts = [_re2_node(kind, arg, flags) for kind, arg in tree]
    return None if None in parts else b"".join(part for part in parts if part is not None)


def _re2_node(kind: Any, arg: Any, flags: int) -> bytes | None:
    """A node of the tree in RE2's syntax; None for what RE2 does not have."""
    if test := linear_match.char_test(kind, arg, flags):
        return test.ascii_class()
    if kind is op.AT:
        return _ANCHORS[arg]
    if kind is op.FAILURE:
        return linear_match.NOTHING
    if kind is op.SUBPATTERN:
        number, inside, content = linear_match.scoped(arg, flags)
        text = _re2_text(content, inside)
        return None if text is None else (b"(?:" if number is None else b"(") + text + b")"
    if kind is op.BRANCH:
        branches = [_re2_text(branch, flags) for branch in arg[1]]
        return None if None in branches else b"(?:" + b"|".join(text or b"" for text in branches) + b")"
    if kind in (op.MAX_REPEAT, op.MIN_REPEAT):
        least, most, content = arg
        text = _re2_text(content, flags)
        bounds = b"{%d,%s}" % (least, b"" if most is op.MAXREPEAT else b"%d" % most)
        return None if text is None else b"(?:" + text + b")" + bounds + (b"?" if kind is op.MIN_REPEAT else b"")
    return None
