"""What moving a connector would do, and what was done, as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cdcworker.worker.cli.render import connector_texts
from cdcworker.worker.cli.render.output import FoldedText, pretty


def rehearsal_text(content: Mapping[str, Any]) -> FoldedText:
    """Returns what would be done; keys that stay as they are are left out."""
    partitions = f"behind the offsets of {content['partitions']} partitions"
    place = f"topics {content['topic_prefix']}.*" if content["topic_prefix"] else partitions
    lines = [f"{content['connector']} of {content['origin']} would become {content['name']}, {place}"]
    lines += [f"  {item['effect']}: {item['key']}: {item['text']}" for item in content["keys"]]
    report = {"name": content["name"], "findings": content["findings"], "error_count": _errors(content)}
    lines.append(connector_texts.validation(report))
    summary = f"{content['refused']} in the way" if content["refused"] else "can be taken over"
    return FoldedText(summary, "\n".join([*lines, summary]))


def outcome_text(content: Mapping[str, Any]) -> FoldedText:
    """Returns what is to be known of what was done; the steps were told as they were done."""
    lines = [f"note: {note}" for note in content["notes"]]
    return FoldedText(content["steps"][-1], "\n".join([*lines, f"If this was a mistake: {content['way_back']}"]))


def offsets_text(content: Mapping[str, Any]) -> str:
    """Returns the body of a PATCH of Kafka Connect's offsets."""
    return pretty({"offsets": content["offsets"]})


def _errors(content: Mapping[str, Any]) -> int:
    return sum(item["severity"] == "error" for item in content["findings"])
