"""An engine for regular expressions whose work is bounded by the length of expression times text.

It takes Python's syntax. Expressions become small programs; each pair of an instruction and a place in the text is tried
once, and every step is counted. So look-around and atomic groups are there, and back-references are not.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from re import _constants as op  # type: ignore[attr-defined]
from re import _parser  # type: ignore[attr-defined]
from typing import Any, Final, Literal

SIZE_MAX: Final = 12_000
"""Instructions of one program, with counted repetitions written out."""
NESTING_MAX: Final = 50
GROUPS_MAX: Final = 100
STEPS_MAX: Final = 500_000
"""Instructions that are carried out for one text."""

Spans = tuple[int | None, ...]
"""Begin and end of each group, the whole first."""
Kind = Literal["char", "split", "jump", "save", "at", "look", "atomic", "fail", "match"]


class BadPattern(ValueError):
    """Says what is wrong with an expression, without repeating it."""


class TooManySteps(Exception):
    """The expression needs more than `STEPS_MAX` steps on a text."""


@dataclass(frozen=True)
class CharTest:
    """One place of an expression that takes one character, with the meaning that `re` gives it."""

    text: str
    flags: int

    @cached_property
    def _match(self) -> Callable[[str], object]:
        # The text is written by this module and takes one character: it cannot backtrack.
        return re.compile(self.text, self.flags).match

    @cached_property
    def _ascii(self) -> tuple[bool, ...]:
        return tuple(self._match(chr(number)) is not None for number in range(128))

    def takes(self, char: str) -> bool:
        number = ord(char)
        return self._ascii[number] if number < 128 else self._match(char) is not None

    def ascii_class(self) -> bytes:
        """The ASCII characters that it takes, as a class of RE2."""
        numbers = [number for number, taken in enumerate(self._ascii) if taken]
        return b"[" + b"".join(b"\\x%02x" % number for number in numbers) + b"]" if numbers else NOTHING


NOTHING: Final = rb"[^\x00-\xff]"
"""Takes no character, in RE2."""


@dataclass(frozen=True, slots=True)
class Instruction:
    """One step: `to` is where it goes on, in order of preference, `arg` what it looks at."""

    kind: Kind
    to: tuple[int, ...] = ()
    arg: Any = None
    inner: tuple[Instruction, ...] = ()
    """The program of a look-around or an atomic group."""


@dataclass(frozen=True, slots=True)
class Expression:
    """A parsed expression: its tree, and what its groups are called."""

    tree: Any
    flags: int
    groups: int
    size: int
    """Instructions of its program."""
    names: dict[str, int] = field(default_factory=dict)


def parse(text: str, flags: int = 0) -> Expression:
    """Raises BadPattern for what is no expression, or one that this engine refuses."""
    if _nesting(text) > NESTING_MAX:
        raise BadPattern(f"is nested deeper than {NESTING_MAX} levels")
    try:
        tree = _parser.parse(text, flags)
    except re.error as exc:
        raise BadPattern(f"is not a regular expression: {exc.msg} at {exc.pos}") from None
    except (OverflowError, RecursionError):
        raise BadPattern("is not a regular expression: it is too large") from None
    groups = tree.state.groups - 1
    if groups > GROUPS_MAX:
        raise BadPattern(f"has more than {GROUPS_MAX} groups")
    builder = _Builder()
    builder.program(tree, tree.state.flags)
    return Expression(tree, tree.state.flags, groups, builder.size, dict(tree.state.groupdict))


def _nesting(text: str) -> int:
    depth = deepest = 0
    for char in re.sub(r"\\.", "", text, flags=re.DOTALL):
        depth += (char == "(") - (char == ")")
        deepest = max(deepest, depth)
    return deepest


# -- characters -------------------------------------------------------------------------------------------------------

_CATEGORIES: Final = {
    op.CATEGORY_DIGIT: r"\d",
    op.CATEGORY_NOT_DIGIT: r"\D",
    op.CATEGORY_SPACE: r"\s",
    op.CATEGORY_NOT_SPACE: r"\S",
    op.CATEGORY_WORD: r"\w",
    op.CATEGORY_NOT_WORD: r"\W",
}
_ALPHABETS: Final = re.ASCII | re.UNICODE
_CHAR_FLAGS: Final = re.IGNORECASE | re.ASCII | re.DOTALL


@lru_cache(maxsize=2048)
def _test(text: str, flags: int) -> CharTest:
    return CharTest(text, flags)


def char_test(kind: Any, arg: Any, flags: int) -> CharTest | None:
    """The test of a node that takes one character; None for any other node."""
    if kind is op.LITERAL:
        text = _code(arg)
    elif kind is op.NOT_LITERAL:
        text = f"[^{_code(arg)}]"
    elif kind is op.ANY:
        text = "."
    elif kind is op.IN:
        text = f"[{''.join(map(_member, arg))}]"
    else:
        return None
    return _test(text, flags & _CHAR_FLAGS)


def _code(number: int) -> str:
    return f"\\U{number:08x}"


def _member(item: tuple[Any, Any]) -> str:
    kind, arg = item
    if kind is op.NEGATE:
        return "^"
    if kind is op.RANGE:
        return f"{_code(arg[0])}-{_code(arg[1])}"
    return _CATEGORIES[arg] if kind is op.CATEGORY else _code(arg)


def scoped(arg: Any, flags: int) -> tuple[int | None, int, Any]:
    """Number, flags and content of a group."""
    number, more, less, content = arg
    kept = flags & ~_ALPHABETS if more & _ALPHABETS else flags
    return number, (kept | more) & ~less, content


# -- programs ---------------------------------------------------------------------------------------------------------


class _Builder:
    """Writes the program of a tree. The work is counted, also where it writes nothing."""

    def __init__(self) -> None:
        self._left = SIZE_MAX

    @property
    def size(self) -> int:
        return SIZE_MAX - self._left

    def program(self, tree: Any, flags: int) -> tuple[Instruction, ...]:
        code: list[Instruction] = []
        self._sequence(code, tree, flags)
        return (*code, Instruction("match"))

    def _sequence(self, code: list[Instruction], tree: Any, flags: int) -> None:
        for kind, arg in tree:
            self._node(code, kind, arg, flags)

    def _node(self, code: list[Instruction], kind: Any, arg: Any, flags: int) -> None:
        self._count()
        after = len(code) + 1
        if test := char_test(kind, arg, flags):
            code.append(Instruction("char", (after,), test))
        elif kind is op.AT:
            code.append(Instruction("at", (after,), (arg, flags)))
        elif kind is op.SUBPATTERN:
            self._group(code, arg, flags)
        elif kind is op.BRANCH:
            self._branch(code, arg[1], flags)
        elif kind in (op.MAX_REPEAT, op.MIN_REPEAT):
            self._repeat(code, arg, flags, lazy=kind is op.MIN_REPEAT)
        elif kind is op.POSSESSIVE_REPEAT:
            inner = self.program([(op.MAX_REPEAT, arg)], flags)
            code.append(Instruction("atomic", (after,), inner=inner))
        elif kind is op.ATOMIC_GROUP:
            code.append(Instruction("atomic", (after,), inner=self.program(arg, flags)))
        elif kind in (op.ASSERT, op.ASSERT_NOT):
            self._look(code, arg, flags, wanted=kind is op.ASSERT)
        elif kind is op.FAILURE:
            code.append(Instruction("fail"))
        else:
            raise BadPattern(_UNBOUNDED.get(kind, "uses what is not available here"))

    def _count(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise BadPattern("is too large with its repetitions written out: use * or +, or shorter lists")

    def _group(self, code: list[Instruction], arg: Any, flags: int) -> None:
        number, inside, content = scoped(arg, flags)
        if number is not None:
            code.append(Instruction("save", (len(code) + 1,), 2 * number))
        self._sequence(code, content, inside)
        if number is not None:
            code.append(Instruction("save", (len(code) + 1,), 2 * number + 1))

    def _branch(self, code: list[Instruction], branches: list[Any], flags: int) -> None:
        ends = []
        for branch in branches[:-1]:
            self._count()
            start = len(code)
            code.append(Instruction("fail"))
            self._sequence(code, branch, flags)
            ends.append(len(code))
            code.append(Instruction("fail"))
            code[start] = Instruction("split", (start + 1, len(code)))
        self._sequence(code, branches[-1], flags)
        for end in ends:
            code[end] = Instruction("jump", (len(code),))

    def _repeat(self, code: list[Instruction], arg: Any, flags: int, *, lazy: bool) -> None:
        least, most, content = arg
        for _ in range(least):
            self._count()
            self._sequence(code, content, flags)
        starts = []
        for _ in range(1 if most is op.MAXREPEAT else most - least):
            self._count()
            starts.append(len(code))
            code.append(Instruction("fail"))
            self._sequence(code, content, flags)
        if most is op.MAXREPEAT:
            code.append(Instruction("jump", (starts[0],)))
        for start in starts:
            ways = (start + 1, len(code))
            code[start] = Instruction("split", ways[::-1] if lazy else ways)

    def _look(self, code: list[Instruction], arg: Any, flags: int, *, wanted: bool) -> None:
        direction, content = arg
        back = 0
        if direction < 0:
            back, most = content.getwidth()
            if back != most:
                raise BadPattern("is not a regular expression: look-behind requires fixed-width pattern")
        code.append(Instruction("look", (len(code) + 1,), (back, wanted), self.program(content, flags)))


_UNBOUNDED: Final = {
    op.GROUPREF: "has a back-reference, whose cost has no bound: write the texts out, as in (a_a|b_b)",
    op.GROUPREF_EXISTS: "has a condition on a group, whose cost has no bound: write both cases out, as in (a|b)",
}


def program_of(found: Expression) -> tuple[Instruction, ...]:
    """The program of an expression that `parse` has accepted."""
    return _Builder().program(found.tree, found.flags)


# -- matching ---------------------------------------------------------------------------------------------------------

_EMPTY_IS_INSIDE: Final = re.fullmatch(r"\B", "") is not None
"""Whether `\\B` holds in an empty text; versions of Python differ."""


class Matching:
    """One text against one program."""

    def __init__(self, text: str, groups: int, steps: int = STEPS_MAX) -> None:
        self._text = text
        self._blank: Spans = (None,) * (2 * groups + 2)
        self._left = steps
        self._known: dict[tuple[int, int], tuple[int, Spans] | None] = {}

    def whole(self, program: tuple[Instruction, ...]) -> Spans | None:
        """The groups, if the program takes the text as a whole. Raises TooManySteps."""
        found = self._run(program, 0, end=len(self._text))
        return (0, found[0], *found[1][2:]) if found else None

    def _run(self, program: tuple[Instruction, ...], start: int, end: int | None = None) -> tuple[int, Spans] | None:
        """The first way through the program from `start`, to `end` if it is given."""
        seen: set[tuple[int, int]] = set()
        ways: list[tuple[int, int, Spans]] = [(0, start, self._blank)]
        while ways:
            at, place, spans = ways.pop()
            if (at, place) in seen:
                continue
            seen.add((at, place))
            self._left -= 1
            if self._left < 0:
                raise TooManySteps
            step = program[at]
            if step.kind == "match":
                if end is None or place == end:
                    return place, spans
            elif step.kind == "char":
                if place < len(self._text) and step.arg.takes(self._text[place]):
                    ways.append((at + 1, place + 1, spans))
            elif step.kind == "split":
                ways += ((way, place, spans) for way in reversed(step.to))
            elif step.kind != "fail":
                ways += self._other(step, place, spans)
        return None

    def _other(self, step: Instruction, place: int, spans: Spans) -> Iterator[tuple[int, int, Spans]]:
        if step.kind == "save":
            spans = (*spans[: step.arg], place, *spans[step.arg + 1 :])
        elif step.kind == "at":
            kind, flags = step.arg
            if not self._is_at(kind, flags, place):
                return
        elif step.kind == "atomic":
            found = self._known_run(step, place)
            if found is None:
                return
            place, spans = found[0], _merged(spans, found[1])
        elif step.kind == "look":
            back, wanted = step.arg
            found = self._known_run(step, place - back) if place >= back else None
            if (found is not None) is not wanted:
                return
            spans = _merged(spans, found[1]) if found else spans
        yield step.to[0], place, spans

    def _known_run(self, step: Instruction, start: int) -> tuple[int, Spans] | None:
        key = (id(step), start)
        if key not in self._known:
            self._known[key] = self._run(step.inner, start)
        return self._known[key]

    def _is_at(self, kind: Any, flags: int, place: int) -> bool:
        text, size = self._text, len(self._text)
        if kind in (op.AT_BEGINNING, op.AT_BEGINNING_STRING):
            lines = kind is op.AT_BEGINNING and flags & re.MULTILINE
            return place == 0 or bool(lines and text[place - 1] == "\n")
        if kind is op.AT_END_STRING:
            return place == size
        if kind is op.AT_END:
            last = place == size - 1 or flags & re.MULTILINE
            return place == size or bool(last and text[place] == "\n")
        word = _test(r"\w", flags & re.ASCII).takes
        edge = (place > 0 and word(text[place - 1])) is not (place < size and word(text[place]))
        return edge if kind is op.AT_BOUNDARY else (not edge and (size > 0 or _EMPTY_IS_INSIDE))


def _merged(spans: Spans, newer: Spans) -> Spans:
    return tuple(old if new is None else new for old, new in zip(spans, newer, strict=True))
