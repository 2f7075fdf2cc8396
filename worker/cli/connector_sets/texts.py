"""Plans and what became of them, as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from cdcworker.worker.cli.connector_sets import connections
from cdcworker.worker.cli.render import connector_texts
from cdcworker.worker.cli.render.output import FoldedText

MARKS = {"created": "+", "changed": "~", "deleted": "-", "unchanged": "="}


def plan_text(content: Mapping[str, Any]) -> FoldedText:
    """Returns a plan: one line per connector with what is below it, and the numbers of each effect at its end."""
    found = [one for one in content["connections"] if one["effect"] != "unchanged"]
    lines = [line for one in found for line in connections.lines(one)]
    lines += [line for one in content["connectors"] if one["effect"] != "unchanged" for line in _lines(one)]
    return FoldedText(_summary(content), "\n".join([*lines, _summary(content)]))


def outcome_text(content: Mapping[str, Any]) -> FoldedText:
    """Returns what was done, step by step, and what was refused with its reason."""
    lines = [
        f"{one['effect']} {one['name']}"
        if one["error"] is None
        else f"not {one['effect']} {one['name']}: {one['error']['message']}"
        for one in content["steps"]
    ]
    failed = sum(one["error"] is not None for one in content["steps"])
    summary = f"{len(content['steps']) - failed} done, {failed} failed, {content['skipped']} left out"
    return FoldedText(summary, "\n".join([*lines, summary]))


def export_text(content: Mapping[str, Any]) -> FoldedText:
    lines = [f"{'wrote' if one['changed'] else 'same'} {one['file']}" for one in content["files"]]
    count = content["connections"]
    more = f" and {count} connection{'s' * (count != 1)}" if count else ""
    summary = f"{len(lines) - count} connectors{more} in {content['folder']}"
    return FoldedText(summary, "\n".join([*lines, summary]))


def _summary(content: Mapping[str, Any]) -> str:
    counts = content["counts"]
    parts = [f"{counts[effect]} {effect}" for effect in ("created", "changed", "deleted", "unchanged")]
    everything = [*content["connections"], *content["connectors"]]
    refused = sum(any(item["severity"] == "error" for item in one["findings"]) for one in everything)
    return ", ".join(parts) + (f"; {refused} not valid" if refused else "")


def _lines(one: Mapping[str, Any]) -> Iterator[str]:
    kind = f" ({one['kind']})" if one["kind"] else ""
    yield f"{MARKS[one['effect']]} {one['name']}{kind}: {one['effect']}"
    # A new connector's keys are those of its file.
    if one["changes"] and one["effect"] == "changed":
        yield _deeper(connector_texts.difference_lines(one["changes"]))
    if one["labels"] is not None:
        labels = ", ".join(f"{key}={value}" for key, value in sorted(one["labels"].items()))
        yield f"    labels: {labels or 'none'}"
    if moves := connector_texts.task_moves(one["tasks"]):
        yield f"    tasks: {moves}"
    if one["reads"]:
        yield f"    reads {one['reads']}"
    if one["effect"] == "deleted":
        yield "    its topics and positions stay, as do a slot and a publication"
    if one["findings"]:
        errors = sum(item["severity"] == "error" for item in one["findings"])
        yield _deeper(
            connector_texts.validation({"name": one["name"], "error_count": errors, "findings": one["findings"]})
        )


def _deeper(text: str) -> str:
    return connector_texts.indented(connector_texts.indented(text))
