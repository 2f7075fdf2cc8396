"""Texts about connectors: lists, states, configs and their differences."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from cdcworker.connectors.config import secret_names
from cdcworker.worker.cli.render.output import TextTable, plain, table
from cdcworker.worker.cli.render.states import duration_text, held_tables, held_tables_text, retry_text, size

MASK = "****"
LATE = ("TABLE", "LAG", "BYTES")
LATE_MAX = 10
MAY_LACK = "is compacted, and the last record of a key may lack a large value: `cdcworker doctor`"
SECRETS = {"unknown": ("?", "a secret: cannot be compared"), "secret": ("~", "a secret: another one")}


def listing(content: Any) -> TextTable:
    rows = []
    for name, expanded in sorted(content.items()):
        status = expanded["status"]
        running = sum(task["state"] == "RUNNING" for task in status["tasks"])
        tasks = f"{running}/{len(status['tasks'])}"
        rows.append((name, status["type"], status["connector"]["state"], tasks, status.get("health", "")))
    return TextTable(("NAME", "TYPE", "STATE", "TASKS", "HEALTH"), rows, of="connector")


def status(content: Any) -> TextTable:
    connector = content["connector"]
    rows = [("connector", connector["state"], connector["worker_id"], connector.get("trace", ""))]
    rows += [
        (
            f"task {task['id']}",
            task["state"],
            task["worker_id"],
            task.get("trace") or retry_text(task) or held_tables_text(task),
        )
        for task in content["tasks"]
    ]
    head = f"{content['name']}: {content.get('health', '')}".rstrip(": ")
    head += f" ({content['reason']})" if content.get("reason") else ""
    return TextTable(("WHAT", "STATE", "WORKER", "WHY"), rows, before=head)


def description(content: Any) -> str:
    """Returns everything about one connector: state, tasks with their errors, hints and metrics, topics, config."""
    parts = [plain(status(content["status"]))]
    parts += [f"{place}\n  {error['hint']}" for place, error in _errors(content["status"]) if error.get("hint")]
    for task in content["tasks"]:
        metrics = sorted((name, value) for name, value in task["metrics"].items() if not isinstance(value, dict | list))
        numbers = "  ".join(f"{name}={_number(value)}" for name, value in metrics)
        if numbers:
            parts.append(f"task {task['task']}: {numbers}")
        parts += [f"task {task['task']} holds back {table}: {why}" for table, why in held_tables(task["metrics"])]
        parts += [
            f"task {task['task']}: {topic} {MAY_LACK}" for topic in task["metrics"].get("incomplete_topics") or ()
        ]
        if late := late_tables(task["metrics"]):
            parts.append(f"task {task['task']}, how late each table is:\n" + indented(table(LATE, late)))
    topics = content["topics"]
    parts.append("topics: " + (", ".join(topics) if topics else "none yet" if topics is not None else "not tracked"))
    parts.append("config:\n" + indented(table(("KEY", "VALUE"), sorted(content["config"].items()))))
    return "\n\n".join(parts)


def late_tables(numbers: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Returns the lag of each table of a source, or each topic of a sink, the largest first."""
    seconds, sizes = (
        numbers.get(f"table_lag_{unit}") or numbers.get(f"topic_lag_{unit}") or {} for unit in ("s", "bytes")
    )
    names = sorted({*seconds, *sizes}, key=lambda name: (-sizes.get(name, 0), -seconds.get(name, 0), name))
    rows = [(name, duration_text(seconds.get(name)), size(sizes[name]) if name in sizes else "-") for name in names]
    more = len(rows) - LATE_MAX
    return [*rows[:LATE_MAX], (f"… and {more} more", "", "")] if more > 0 else rows


def _errors(state: Mapping[str, Any]) -> Iterable[tuple[str, Mapping[str, Any]]]:
    if state["connector"].get("error"):
        yield "the connector failed", state["connector"]["error"]
    for task in state["tasks"]:
        if task.get("error"):
            yield f"task {task['id']} failed", task["error"]


def _number(value: Any) -> str:
    return f"{value:.3f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)


def created(content: Any) -> str:
    return f"created {content['name']}{notes(content)}"


def notes(content: Mapping[str, Any]) -> str:
    return "".join(f"\n  {note['severity']}: {note['message']}" for note in content.get("notes", ()))


def indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())


def differences(before: Mapping[str, str] | None, after: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns what the file would change in the running config. A masked secret is reported as unknown, never guessed
    at."""
    old = dict(before or {})
    old.pop("name", None)
    new = {key: _text(value) for key, value in after.items() if key != "name" and value is not None}
    titles = secret_names.names(new)
    new = {titles[key]: value for key, value in new.items()}
    out: list[dict[str, Any]] = []
    for key in sorted({*old, *new}):
        present, wanted = old.get(key), new.get(key)
        if present is not None and wanted is not None and (present == MASK or secret_names.holds_mask(present)):
            if wanted != present:
                out.append(
                    {
                        "key": key,
                        "change": "unknown",
                        "from": present,
                        "to": secret_names.text(wanted) if present != MASK else MASK,
                    }
                )
        elif secret_names.is_masked_name(key) and present is not None and wanted is not None:
            out.append({"key": key, "change": "unknown", "from": present, "to": wanted})
        elif present is None:
            out.append({"key": key, "change": "add", "from": None, "to": wanted})
        elif wanted is None:
            out.append({"key": key, "change": "remove", "from": present, "to": None})
        elif present != wanted:
            out.append({"key": key, "change": "change", "from": present, "to": wanted})
    return out


def _text(value: Any) -> str:
    """Returns a JSON value as the worker reads it."""
    return {True: "true", False: "false"}[value] if isinstance(value, bool) else str(value)


def difference_lines(changes: Sequence[Mapping[str, Any]]) -> str:
    """Returns the differences like a patch. A value that only the file holds is hidden when its key sounds like a
    secret."""
    lines = []
    for item in changes:
        key, hidden = item["key"], sounds_secret(item["key"])
        if item["change"] in SECRETS:
            mark, text = SECRETS[item["change"]]
            lines.append(f"{mark} {key}: {text}")
            continue
        for mark, value in (("-", item["from"]), ("+", item["to"])):
            if value is not None:
                lines.append(
                    f"{mark} {key}: {MASK if hidden and not value.startswith('${') else secret_names.text(value)}"
                )
    return "\n".join(lines) or "no difference"


SECRET_WORDS = (
    "password",
    "secret",
    "token",
    "jaas",
    "credential",
    "authorization",
    "account.key",
    "keystore.key",
    "private.key",
)
"""What names of secrets have in them. The cluster knows them all, and is not asked where a file is only looked at."""


def sounds_secret(key: str) -> bool:
    return any(word in key.lower() for word in SECRET_WORDS)


def hidden(changes: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Returns the differences with secrets masked, for JSON output."""
    out = []
    for item in changes:
        if sounds_secret(item["key"]):
            masked = {side: _masked(item[side]) for side in ("from", "to")}
            out.append({**item, **masked})
        else:
            out.append({**item, **{side: item[side] and secret_names.text(item[side]) for side in ("from", "to")}})
    return out


def _masked(value: str | None) -> str | None:
    return value if value is None or value.startswith("${") else MASK


def validation(content: Any) -> str:
    """Returns every problem with its key and what to do, then warnings and notes."""
    if not content["findings"] and not content["error_count"]:
        return f"{content['name']}: valid"
    findings = content["findings"]
    errors = content["error_count"]
    lines = [f"{content['name']}: " + (f"{errors} error{'s' * (errors != 1)}" if errors else "valid")]
    for item in sorted(findings, key=lambda item: ("error", "warning", "note").index(item["severity"])):
        key = (item.get("configPath") or "").removeprefix("/config/") or "-"
        place = "" if item["message"].startswith(key) else f"{key}: "
        lines.append(f"{item['severity']}: {place}{item['message']}")
        if item.get("suggestion"):
            lines.append(f"  {item['suggestion']}")
    return "\n".join(lines)


def dry_run(content: Any) -> str:
    """Returns what a change would do: `would be changed shop`, then keys, state, what is dropped, tasks and notes."""
    lines = [f"would be {content['effect']} {content.get('connector', '')}".rstrip()]
    for item in content.get("changes", ()):
        lines += [f"  {mark} {item['key']}: {item[side]}" for mark, side in (("-", "from"), ("+", "to")) if item[side]]
    if "target_state" in content:
        lines.append(
            f"  state: {content['target_state']['from'] or 'none'} -> {content['target_state']['to'] or 'none'}"
        )
    lines += [f"  {line}" for line in _places(content)]
    lines += [f"  drop: {item['kind']} {item['name']}" for item in content.get("drop", ())]
    tasks = content.get("tasks")
    if isinstance(tasks, dict):
        lines.append("  tasks: " + (task_moves(tasks) or "none is touched"))
        if tasks.get("error"):
            lines.append(f"  error: [{tasks['error']['code']}] {tasks['error']['message']}")
    lines += [f"  {item['severity']}: {item['message']}" for item in content.get("findings", ())]
    return "\n".join(lines + ([f"  {content['warning']}"] if content.get("warning") else []))


def task_moves(tasks: Mapping[str, Any]) -> str:
    """Returns tasks to start, restart and stop as text: `start 0, 1; stop 2`."""
    moves = ((what, tasks.get(what, ())) for what in ("start", "restart", "stop"))
    return "; ".join(f"{what} {', '.join(map(str, numbers))}" for what, numbers in moves if numbers)


def _places(content: Mapping[str, Any]) -> Iterable[str]:
    for item in content.get("offsets", ()):
        place, old, new = (_compact(item[side]) for side in ("partition", "from", "to"))
        yield f"{place}: {old} -> {new}"


def _compact(value: Any) -> str:
    return "none" if value is None else json.dumps(value, ensure_ascii=False, sort_keys=True)


def left_line(header: str) -> str:
    """Returns the line about what a deleted connector leaves; empty where the answer names nothing."""
    try:
        left = json.loads(header) if header else {}
    except ValueError:
        return ""
    more = left.pop("more", 0)
    parts = [f"{kind}: {', '.join(names)}" for kind, names in left.items()]
    return f"left: {'; '.join(parts)}{f' and {more} more' if more else ''}" if parts else ""
