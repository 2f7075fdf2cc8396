"""As much of helm's templates as the chart uses, and an error for anything else; helm itself is the judge where it is."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

ACTION = re.compile(r"\{\{(-?)\s*(.*?)\s*?(-?)\}\}", re.DOTALL)
TOKEN = re.compile(
    r'\s*("(?:[^"\\]|\\.)*"|\$?[A-Za-z0-9_]*(?:\.[A-Za-z0-9_]+)+|\$[A-Za-z0-9_]*|\.|[A-Za-z0-9_]+|:=|[()|,])'
)
BLOCKS = ("if", "with", "range", "define")


class TemplateError(Exception):
    """What helm would not render, or what is not known here."""


@dataclass
class Node:
    """A text, an action, or a block with what is inside and what is in its `else`."""

    kind: str
    text: str = ""
    inner: list[Node] = field(default_factory=list)
    other: list[Node] = field(default_factory=list)


def parse(text: str) -> list[Node]:
    root = Node("root")
    stack, into, at, trim = [root], [root.inner], 0, False
    for found in ACTION.finditer(text):
        before = text[at : found.start()]
        before = before.lstrip() if trim else before
        into[-1].append(Node("text", before.rstrip() if found[1] else before))
        at, trim = found.end(), bool(found[3])
        word, _, rest = found[2].partition(" ")
        if word in BLOCKS:
            stack.append(Node(word, rest))
            into[-1].append(stack[-1])
            into.append(stack[-1].inner)
        elif word == "else":
            if rest:
                raise TemplateError(f"else {rest}")
            into[-1] = stack[-1].other
        elif word == "end":
            stack.pop()
            into.pop()
        else:
            into[-1].append(Node("action", found[2]))
    if len(stack) != 1:
        raise TemplateError(f"{stack[-1].kind} {stack[-1].text} is not closed")
    into[-1].append(Node("text", text[at:].lstrip() if trim else text[at:]))
    return root.inner


class Renderer:
    """`files` are the chart's templates and helpers by name."""

    def __init__(self, files: Mapping[str, str], root: Mapping[str, Any]) -> None:
        self.root = root
        self.parsed = {name: parse(text) for name, text in files.items()}
        self.defined = {
            json.loads(node.text): node.inner
            for nodes in self.parsed.values()
            for node in nodes
            if node.kind == "define"
        }
        self.functions: dict[str, Callable[..., Any]] = {
            "include": lambda name, dot: self.nodes(self.defined[name], {"$": dot, ".": dot}),
            "toYaml": lambda value: yaml.safe_dump(value, default_flow_style=False).rstrip("\n"),
            "indent": lambda count, value: " " * count + value.replace("\n", "\n" + " " * count),
            "nindent": lambda count, value: "\n" + " " * count + value.replace("\n", "\n" + " " * count),
            "quote": lambda value: json.dumps(shown(value)),
            "default": lambda other, value: value or other,
            "trunc": lambda count, value: value[:count],
            "trimSuffix": lambda suffix, value: value.removesuffix(suffix),
            "ternary": lambda yes, no, condition: yes if condition else no,
            "not": lambda value: not value,
            "empty": lambda value: not value,
            "or": lambda *values: next((value for value in values if value), values[-1]),
            "and": lambda *values: next((value for value in values if not value), values[-1]),
            "list": lambda *values: list(values),
            "dict": lambda *pairs: dict(zip(pairs[::2], pairs[1::2], strict=True)),
            "printf": lambda form, *values: form.replace("%v", "%s") % values,
            "sha256sum": lambda value: hashlib.sha256(value.encode()).hexdigest(),
            "fail": self.fail,
        }

    @staticmethod
    def fail(message: str) -> str:
        raise TemplateError(message)

    def render(self, name: str) -> str:
        return self.nodes(self.parsed[name], {"$": self.root, ".": self.root})

    def nodes(self, nodes: list[Node], scope: Mapping[str, Any]) -> str:
        return "".join(self.node(node, scope) for node in nodes)

    def node(self, node: Node, scope: Mapping[str, Any]) -> str:
        if node.kind == "text":
            return node.text
        if node.kind == "action":
            return shown(self.value(node.text, scope))
        if node.kind == "define":
            return ""
        if node.kind == "range":
            return "".join(self.nodes(node.inner, inner) for inner in self.turns(node.text, scope))
        found = self.value(node.text, scope)
        inner = {**scope, ".": found} if node.kind == "with" else scope
        return self.nodes(node.inner, inner) if found else self.nodes(node.other, scope)

    def turns(self, text: str, scope: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        names, assigned, rest = text.partition(":=")
        found = self.value(rest if assigned else text, scope)
        items = sorted(found.items()) if isinstance(found, dict) else list(enumerate(found))
        for key, value in items:
            given = (
                dict(zip([name.strip() for name in names.split(",")], (key, value), strict=True)) if assigned else {}
            )
            yield {**scope, ".": value, **given}

    def value(self, text: str, scope: Mapping[str, Any]) -> Any:
        tokens = TOKEN.findall(text)
        if "".join(tokens) != re.sub(r'\s+(?=(?:[^"]*"[^"]*")*[^"]*$)', "", text):
            raise TemplateError(f"not understood: {text}")
        found, rest = self.pipeline(tokens, scope)
        if rest:
            raise TemplateError(f"left over: {rest}")
        return found

    def pipeline(self, tokens: list[str], scope: Mapping[str, Any]) -> tuple[Any, list[str]]:
        piped: tuple[Any, ...] = ()
        while True:
            found, tokens = self.command(tokens, scope, piped)
            if not tokens or tokens[0] != "|":
                return found, tokens
            piped, tokens = (found,), tokens[1:]

    def command(self, tokens: list[str], scope: Mapping[str, Any], piped: tuple[Any, ...]) -> tuple[Any, list[str]]:
        operands = []
        while tokens and tokens[0] not in ("|", ")"):
            if tokens[0] == "(":
                found, tokens = self.pipeline(tokens[1:], scope)
                tokens = tokens[1:]
            else:
                found, tokens = self.operand(tokens[0], scope), tokens[1:]
            operands.append(found)
        first, *arguments = [*operands, *piped]
        if callable(first):
            return first(*arguments), tokens
        if arguments:
            raise TemplateError(f"no function: {first}")
        return first, tokens

    def operand(self, token: str, scope: Mapping[str, Any]) -> Any:
        if token.startswith('"'):
            return json.loads(token)
        if token.isdigit():
            return int(token)
        if token[0] not in "$.":
            if token not in self.functions:
                raise TemplateError(f"no function {token}")
            return self.functions[token]
        name, *path = token.split(".")
        found = scope[name or "."]
        for part in filter(None, path):
            if part not in found:
                raise TemplateError(f"{token}: there is no {part}")
            found = found[part]
        return found


def shown(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int):
        return str(value)
    raise TemplateError(f"cannot be shown: {value!r}")
