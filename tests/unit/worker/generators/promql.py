"""As much of Prometheus as our alert rules need, to run their unit tests where `promtool` is not."""

from __future__ import annotations

import datetime as dt
import itertools
import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import promql_parser as p

Labels = frozenset[tuple[str, str]]
LOOK_BACK_S = 300.0
STEP_S = 30
OF = {"sum": sum, "max": max, "min": min}
MATCHES = {
    "Equal": lambda found, wanted: found == wanted,
    "NotEqual": lambda found, wanted: found != wanted,
    "Re": lambda found, wanted: re.fullmatch(wanted, found) is not None,
}
COMPARES = {
    ">": float.__gt__, "<": float.__lt__, ">=": float.__ge__, "<=": float.__le__, "==": float.__eq__,
}  # fmt: skip


@dataclass
class Series:
    labels: dict[str, str]
    samples: list[tuple[float, float]]

    @classmethod
    def of(cls, name: str, values: str, every_s: float) -> Series:
        found = dict(re.findall(r'(\w+)="([^"]*)"', name))
        numbers = enumerate(numbered(values))
        samples = [(at * every_s, value) for at, value in numbers if value is not None]
        return cls({**found, "__name__": name.partition("{")[0]}, samples)


def numbered(values: str) -> Iterator[float | None]:
    """`0+2x3` is 0 2 4 6, `7x2` is 7 7 7, `_x2` two times nothing."""
    for part in values.split():
        if part.startswith("_"):
            yield from [None] * int(part[2:] or 1)
            continue
        found = re.fullmatch(r"(-?[\d.e]+)(?:([+-][\d.]+))?(?:x(\d+))?", part)
        assert found, part
        first, step, more = float(found[1]), float(found[2] or 0), int(found[3] or 0)
        yield from (first + step * number for number in range(more + 1))


def evaluate(expr: Any, series: list[Series], at: float) -> dict[Labels, float]:
    if isinstance(expr, p.ParenExpr):
        return evaluate(expr.expr, series, at)
    if isinstance(expr, p.VectorSelector):
        return {_labels(one): one.samples[-1][1] for one in _chosen(expr, series, at - LOOK_BACK_S, at)}
    if isinstance(expr, p.Call):
        assert expr.func.name == "increase", expr
        (matrix,) = expr.args
        range_s = matrix.range.total_seconds()
        chosen = _chosen(matrix.vector_selector, series, at - range_s, at)
        return {
            _labels(one, named=False): increase(one.samples, at - range_s, at) for one in chosen if len(one.samples) > 1
        }
    if isinstance(expr, p.AggregateExpr):
        kept = set(expr.modifier.labels) if expr.modifier else set()
        groups: dict[Labels, list[float]] = defaultdict(list)
        for labels, value in evaluate(expr.expr, series, at).items():
            groups[frozenset(item for item in labels if item[0] in kept)].append(value)
        return {labels: OF[str(expr.op)](values) for labels, values in groups.items()}
    assert isinstance(expr, p.BinaryExpr), expr
    holds, limit = COMPARES[str(expr.op)], float(expr.rhs.val)
    return {labels: value for labels, value in evaluate(expr.lhs, series, at).items() if holds(float(value), limit)}


def _chosen(selector: Any, series: list[Series], after: float, until: float) -> Iterator[Series]:
    wanted = [(m.name, str(m.op).rpartition(".")[2], m.value) for m in selector.matchers.matchers]
    for one in series:
        right = all(MATCHES[op](one.labels.get(name, ""), value) for name, op, value in wanted)
        samples = [sample for sample in one.samples if after < sample[0] <= until]
        if right and samples and one.labels["__name__"] == selector.name:
            yield Series(one.labels, samples)


def _labels(one: Series, named: bool = True) -> Labels:
    return frozenset(item for item in one.labels.items() if named or item[0] != "__name__")


def increase(samples: list[tuple[float, float]], start: float, end: float) -> float:
    """With Prometheus' guess of what lies between the samples and the ends of the range."""
    (first_at, first), (last_at, last) = samples[0], samples[-1]
    grown = last - first + sum(a for (_, a), (_, b) in itertools.pairwise(samples) if b < a)
    seen = last_at - first_at
    between = seen / (len(samples) - 1)
    before, after = first_at - start, end - last_at
    before, after = (gap if gap < between * 1.1 else between / 2 for gap in (before, after))
    if grown > 0:
        before = min(before, seen * first / grown)
    return grown * (seen + before + after) / seen


def firing(rule: Mapping[str, Any], series: list[Series], at: float) -> list[dict[str, Any]]:
    """The alerts of a rule that fire at a time: for as long as it says its expression has held."""
    expr, wait_s = p.parse(rule["expr"]), seconds(rule["for"])
    since: dict[Labels, float] = {}
    found: dict[Labels, float] = {}
    for now in range(0, math.floor(at) + 1, STEP_S):
        found = evaluate(expr, series, now)
        since = {labels: since.get(labels, now) for labels in found}
    return [_alert(rule, labels, found[labels]) for labels in found if at - since[labels] >= wait_s]


def _alert(rule: Mapping[str, Any], labels: Labels, value: float) -> dict[str, Any]:
    shown = {name: text for name, text in labels if name != "__name__"}
    texts = {name: written(text, shown, value) for name, text in rule["annotations"].items()}
    return {"exp_labels": {**shown, **rule["labels"]}, "exp_annotations": texts}


def written(text: str, labels: Mapping[str, str], value: float) -> str:
    forms = {"": lambda v: f"{v:g}", "humanize1024": _binary, "humanizeDuration": _lasting}
    text = re.sub(r"\{\{ \$labels\.(\w+) \}\}", lambda found: labels.get(found[1], ""), text)
    text = re.sub(r"\{\{ \$value(?: \| (\w+))? \}\}", lambda found: forms[found[1] or ""](value), text)
    assert "{{" not in text, text
    return text


def _binary(value: float) -> str:
    power = 0
    while abs(value) >= 1024:
        value, power = value / 1024, power + 1
    return f"{value:.4g}{('', 'Ki', 'Mi', 'Gi', 'Ti')[power]}"


def _lasting(value: float) -> str:
    days, rest = divmod(int(value), 86_400)
    parts = [f"{days}d"] if days else []
    parts += [f"{rest // 3600}h"] if rest // 3600 or parts else []
    parts += [f"{rest % 3600 // 60}m"] if value >= 60 else []
    return " ".join([*parts, f"{rest % 60}s"])


def seconds(text: str) -> float:
    units = {"s": "seconds", "m": "minutes", "h": "hours"}
    return sum(dt.timedelta(**{units[unit]: int(n)}).total_seconds() for n, unit in re.findall(r"(\d+)([smh])", text))
