"""What came out? The result as JSON, and as a page of the documentation."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from .growth import Verdict
from .schedule import KINDS
from .state import State

FILE: Final = "result.json"


def result(state: State, verdicts: Mapping[str, Verdict]) -> dict[str, Any]:
    """Returns the figures of a soak so far."""
    found = Counter(failure.kind for failure in state.failures)
    return {
        "seed": state.seed,
        "finished": state.finished,
        "hours": round(state.seconds / 3600, 2),
        "hours_wanted": state.hours,
        "commits": list(dict.fromkeys(part.commit for part in state.parts)),
        "began": state.parts[0].began if state.parts else "",
        "last_part": state.parts[-1].began if state.parts else "",
        "parts": len(state.parts),
        "parts_killed": sum(not part.ended for part in state.parts),
        "faults": sum(state.faults.values()),
        "faults_by_kind": {kind: state.faults.get(kind, 0) for kind in KINDS},
        "faults_skipped": sum(state.skipped.values()),
        "faults_per_hour": round(sum(state.faults.values()) / (state.seconds / 3600), 1) if state.seconds else 0.0,
        "comparisons": state.calm,
        "sums_read": state.sums_read,
        "records_read": state.records_read,
        "transfers": state.transfers,
        "transfers_unknown": state.unknown,
        "lost": found["lost"],
        "doubled": found["doubled"],
        "failures": [{"kind": one.kind, "fault": one.fault, "text": one.text} for one in state.failures],
        "growth": {
            name: {"verdict": one.word, "first": round(one.first, 1), "last": round(one.last, 1)}
            for name, one in verdicts.items()
        },
    }


def page(found: Mapping[str, Any]) -> str:
    """Returns the page in Markdown."""
    hours = f"{found['hours_wanted']:g}"
    state = f"Finished: {hours} hours." if found["finished"] else f"**Unfinished**: {found['hours']} of {hours} hours."
    kinds = "\n".join(f"| {kind} | {count} |" for kind, count in found["faults_by_kind"].items())
    growth = "\n".join(
        f"| {name} | {one['first']:g} | {one['last']:g} | {one['verdict']} |" for name, one in found["growth"].items()
    )
    failures = "\n".join(f"- Before fault {one['fault']}, {one['kind']}: {one['text']}" for one in found["failures"])
    grows = sorted(name for name, one in found["growth"].items() if one["verdict"] == "grows")
    return f"""<!-- Made by `make soak`. -->

# Soak

A cluster of three workers under load for hours, while everything that can be killed or stopped is, one after the other. [Development](development.md#a-soak)
says how to run it. Clients of a bank on PostgreSQL and one on MariaDB move money, change keys, write long texts and alter a table; rows go into
a PostgreSQL warehouse with whole transactions, a lake of Parquet files, and a database without Spark.

{state} Seed {found["seed"]}, commit {", ".join(f"`{one[:12]}`" for one in found["commits"])}, began {found["began"]}, last part {found["last_part"]}.

| | |
|---|---|
| rows lost, rows doubled | {found["lost"]}, {found["doubled"]} |
| other failures | {len(found["failures"]) - found["lost"] - found["doubled"]} |
| figures that grow | {", ".join(grows) or "none"} |
| faults | {found["faults"]}, {found["faults_per_hour"]:g} an hour; {found["faults_skipped"]} more found nobody to hit |
| comparisons row by row of each table with each target | {found["comparisons"]} |
| sums read in the warehouse meanwhile | {found["sums_read"]} |
| records read, with positions that are unique and rise | {found["records_read"]} |
| transfers of clients; of these the end was unknown for a while | {found["transfers"]}; {found["transfers_unknown"]} |
| parts; of these killed | {found["parts"]}; {found["parts_killed"]} |
{f"{chr(10)}## Failures{chr(10)}{chr(10)}{failures}{chr(10)}" if failures else ""}
## Faults by kind

| kind | times |
|---|---|
{kinds}

## Growth

Levels are medians of the first and last third of the time. Processes count when they are two minutes old. A run of less than half an hour
is too short to say.

| figure | first | last | |
|---|---|---|---|
{growth}
"""


def write(folder: Path, pages: Path | None, found: Mapping[str, Any]) -> None:
    """Writes the result into the soak's folder, and with `pages` the page and the result there."""
    text = json.dumps(found, indent=1) + "\n"
    (folder / FILE).write_text(text)
    if pages is not None:
        (pages / "soak.md").write_text(page(found))
        (pages / "assets" / "soak.json").write_text(text)
