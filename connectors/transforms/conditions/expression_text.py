"""The text of an expression: the fields of a record that it names, and the expression with variables in their place.

Only the fields that an expression names are handed to CEL: to hand over whole records costs more than to evaluate it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

Language = Literal["cel", "groovy"]
ROOTS: Final = ("value", "key", "topic", "header", "headers")
"""What an expression can name of a record."""
TEXT_MAX: Final = 4_000
_IN_CEL: Final = "write it in CEL with language=cel"
_GROOVY_CALLS: Final = ("contains", "startsWith", "endsWith", "size")
"""Methods that mean the same in Groovy and in CEL."""
_MACROS: Final = ("all", "exists", "exists_one", "existsOne", "filter", "map")
"""What gives a name to each item of a list."""
MACROS_DEPTH_MAX: Final = 2
"""The most macros inside of each other: the time that they take is the product of the lengths of their lists."""
_RELATIONS: Final = ("==", "!=", "<", "<=", ">", ">=", "in")
_GROOVY_NUMBER: Final = re.compile(r"(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?|0[xX][0-9A-Fa-f]+")
"""Numbers that are the same in Groovy, where one that begins with 0 is octal."""
_TOKEN: Final = re.compile(
    r"(?P<space>\s+)"
    r"|(?P<text>[rRbB]{0,2}(?:'''.*?'''|\"\"\".*?\"\"\"|'(?:\\.|[^'\\\n])*'|\"(?:\\.|[^\"\\\n])*\"))"
    r"|(?P<name>[A-Za-z_][A-Za-z0-9_]*)"
    r"|(?P<number>[0-9][0-9A-Za-z_.]*(?:(?<=[eE])[-+][0-9]+)?)"
    r"|(?P<sign>==~|=~|\?\.|\?:|==|!=|<=|>=|&&|\|\||->|[-+*/%!<>?:.,()\[\]{};=@&|^~$])",
    re.DOTALL,
)


class NoExpressionError(ValueError):
    """A text is no expression that can be evaluated. The text of the error says why and what to write."""


class ExpressionPath(NamedTuple):
    """A field that an expression names, from its root. `is_asked` tells that only its presence is asked for."""

    names: tuple[str, ...]
    is_asked: bool = False


@dataclass(frozen=True, slots=True)
class Rewritten:
    """An expression in CEL with variables for the fields that it names: `paths` by the names of the variables. `bound` are the
    names that the expression itself gives to the items of a list."""

    text: str
    paths: dict[str, ExpressionPath]
    bound: frozenset[str] = frozenset()


class _Token(NamedTuple):
    kind: str
    text: str


def rewritten(text: str, language: Language) -> Rewritten:
    """Returns an expression with variables for the fields that it names. Raises NoExpressionError."""
    tokens = _tokens(text)
    if language == "groovy":
        tokens = _of_groovy(tokens)
    return _Rewriter(tokens).whole()


def _tokens(text: str) -> list[_Token]:
    if len(text) > TEXT_MAX:
        raise NoExpressionError(f"is longer than {TEXT_MAX} characters")
    found: list[_Token] = []
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise NoExpressionError(f"has a character that belongs to no expression at {at + 1}")
        if match.lastgroup == "name" and match[0].startswith("_") and not (found and found[-1].text in (".", "?.")):
            raise NoExpressionError("has a name that begins with _ and does not stand behind a dot")
        if match.lastgroup != "space":
            found.append(_Token(match.lastgroup or "", match[0]))
        at = match.end()
    if not found:
        raise NoExpressionError("is empty")
    return found


def _of_groovy(tokens: Sequence[_Token]) -> list[_Token]:
    """Returns the tokens of an expression in Groovy that mean the same in CEL. Raises NoExpressionError for others."""
    made: list[_Token] = []
    for number, token in enumerate(tokens):
        following = tokens[number + 1].text if number + 1 < len(tokens) else ""
        advice = _groovy_problem(token, following, made)
        if not advice and token.text in ("+", "-") and _is_operand(made):
            # Groovy's decimals are exact; texts are put together in both.
            has_text = token.text == "+" and "text" in (
                made[-1].kind,
                *(each.kind for each in tokens[number + 1 : number + 2]),
            )
            advice = "" if has_text else f"computes with {token.text}, which may give another number in CEL"
        if advice:
            raise NoExpressionError(f"{advice}; {_IN_CEL}")
        made.append(_Token("sign", ".") if token.text == "?." else token)
    _refuse_chains(made)
    return made


def _is_operand(before: Sequence[_Token]) -> bool:
    """Returns whether a sign stands between two values, and not before one."""
    return bool(before) and before[-1].text != "in" and (before[-1].kind != "sign" or before[-1].text in (")", "]"))


def _refuse_chains(tokens: Sequence[_Token]) -> None:
    """Raises NoExpressionError for `a == b in c`, where Groovy begins with `in` and CEL at the left."""
    found = [0]
    for token in tokens:
        if token.kind == "sign" and token.text in ("(", "["):
            found.append(0)
        elif token.kind == "sign" and token.text in (")", "]"):
            found = found[:-1] or [0]
        elif token.kind == "sign" and token.text in ("&&", "||", "?", ":", ","):
            found[-1] = 0
        elif token.kind != "text" and token.text in _RELATIONS:
            found[-1] += 1
        if found[-1] > 1:
            raise NoExpressionError(f"compares the result of a comparison without brackets; {_IN_CEL}")


def _groovy_problem(token: _Token, following: str, before: Sequence[_Token]) -> str:
    """Returns why a token of Groovy does not mean the same in CEL; empty: it does."""
    if token.kind == "text" and token.text[:1] == '"' and "$" in token.text:
        return 'has a text with $ between ", whose value Groovy computes'
    if token.kind == "text" and token.text[:1] not in ("'", '"'):
        return "has a letter before a text, which Groovy does not have"
    if token.kind == "number" and _GROOVY_NUMBER.fullmatch(token.text) is None:
        return "has a number that is written otherwise in CEL"
    if token.text in ("*", "/"):
        return f"computes with {token.text}, which may give another number in CEL"
    if token.text in ("=~", "==~"):
        return f"has the operator {token.text}; CEL has matches('^(?:…)$') for it"
    if token.text in ("?:", "->", ";", "=", "{", "}", "@", "&", "|", "^", "~", "$"):
        return f"has {token.text}, which CEL does not have"
    if token.kind == "name" and following == "(":
        is_method = bool(before) and before[-1].text in (".", "?.")
        if not is_method or token.text not in _GROOVY_CALLS:
            return f"calls {token.text}, which may mean something else in CEL"
    if token.kind == "name" and token.text in ("def", "new", "return", "instanceof", "if", "else", "as"):
        return f"has {token.text}, which CEL does not have"
    return ""


class _Rewriter:
    def __init__(self, tokens: Sequence[_Token]) -> None:
        self._tokens = tokens
        self._variables: dict[ExpressionPath, str] = {}

    def whole(self) -> Rewritten:
        self._check_macros()
        parts: list[str] = []
        at = 0
        while at < len(self._tokens):
            part, at = self._part(at)
            parts.append(part)
        return Rewritten(" ".join(parts), {name: path for path, name in self._variables.items()}, self._bound())

    def _bound(self) -> frozenset[str]:
        """Returns the names in `list.exists(name, …)` and its like."""
        places = range(len(self._tokens) - 3)
        bound = frozenset(self._text(at + 2) for at in places if self._is_macro(at) and self._text(at + 3) == ",")
        if not bound.isdisjoint(ROOTS):
            raise NoExpressionError(
                f"names the items of a list {min(bound & {*ROOTS})}, as a part of the record is named"
            )
        return bound

    def _is_macro(self, at: int) -> bool:
        return self._text(at) in _MACROS and self._text(at + 1) == "("

    def _check_macros(self) -> None:
        """Raises NoExpressionError for macros whose time, or whose lists, would grow beyond all bounds."""
        brackets: list[bool] = []
        for at, token in enumerate(self._tokens):
            if token.kind == "sign" and token.text in ("(", "[", "{"):
                brackets.append(at > 0 and self._is_macro(at - 1))
            elif token.kind == "sign" and token.text in (")", "]", "}"):
                del brackets[-1:]
            if sum(brackets) > MACROS_DEPTH_MAX:
                raise NoExpressionError(f"has more than {MACROS_DEPTH_MAX} macros inside of each other")
        if sum(self._text(at) == "map" and self._is_macro(at) for at in range(len(self._tokens))) > 1:
            raise NoExpressionError("has more than one map, whose lists may grow by each")

    def _part(self, at: int) -> tuple[str, int]:
        """Returns what stands at a place, as CEL gets it, and the next place."""
        token = self._tokens[at]
        is_member = at > 0 and self._tokens[at - 1].text in (".", "?.")
        if token.kind != "name" or is_member:
            return token.text, at + 1
        if token.text == "has" and self._text(at + 1) == "(" and self._text(at + 2) in ROOTS:
            names, end = self._path(at + 2)
            if self._text(end) == ")":
                return self._variable(ExpressionPath(names, is_asked=True)), end + 1
        if token.text in ROOTS:
            names, end = self._path(at)
            return self._variable(ExpressionPath(names)), end
        return token.text, at + 1

    def _text(self, at: int) -> str:
        return self._tokens[at].text if at < len(self._tokens) else ""

    def _path(self, at: int) -> tuple[tuple[str, ...], int]:
        """Returns the names from a root on, without a method that is called on the last, and the place behind them."""
        names, end = [self._text(at)], at + 1
        while end + 1 < len(self._tokens):
            if self._text(end) in (".", "?.") and self._is_field(end + 1):
                names.append(self._text(end + 1))
                end += 2
            elif self._is_name_in_brackets(end):
                names.append(_unquoted(self._text(end + 1)))
                end += 3
            else:
                break
        return tuple(names), end

    def _is_field(self, at: int) -> bool:
        return self._tokens[at].kind == "name" and self._text(at + 1) != "("

    def _is_name_in_brackets(self, at: int) -> bool:
        return (
            self._text(at) == "["
            and self._text(at + 2) == "]"
            and self._tokens[at + 1].kind == "text"
            and "\\" not in self._text(at + 1)
            and self._text(at + 1)[:1] in ("'", '"')
        )

    def _variable(self, path: ExpressionPath) -> str:
        return self._variables.setdefault(path, f"_{len(self._variables)}")


def _unquoted(text: str) -> str:
    return text[3:-3] if text[:3] in ("'''", '"""') else text[1:-1]
