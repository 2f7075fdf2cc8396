"""The pages of docs/reference, made from the code that they describe; run as a module it writes them."""

from __future__ import annotations

import argparse
import difflib
import importlib
import json
import pkgutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from cdcworker.connectors.registry.names import plugins
from cdcworker.connectors.telemetry.metric import Metric
from cdcworker.schemas.errors import CODES, ErrorCode
from cdcworker.worker.generators.markdown import bullets, code, codes, page, sentence, text
from cdcworker.worker.generators.reference_cli import cli_page
from cdcworker.worker.generators.reference_keys import connector_page, converters_page, transforms_page, worker_page
from cdcworker.worker.generators.reference_rest import rest_page
from cdcworker.worker.generators.runbook import kept
from cdcworker.worker.rest.resources.monitoring import metric_table

FOLDER: Final = Path("docs/reference")
ERRORS: Final = Path("worker/console/assets/errors.json")
"""What the console tells of error codes."""
COMMANDS: Final = "cdcworker.worker.cli.main"
ROOMS: Final = ("schemas", "coordinator", "connectors", "worker")
METRICS: Final = {
    "The worker": metric_table.WORKER,
    "The cluster": metric_table.CLUSTER,
    "Tasks": metric_table.TASKS,
    "Sources": metric_table.SOURCE,
    "Sinks": metric_table.SINK,
    "Comparisons of source and warehouse": metric_table.VERIFY,
    "Dead letters": metric_table.LETTERS,
}
KINDS: Final = {
    "transient": "It is tried again by itself.",
    "config": "Somebody has to change something.",
    "data": "A record or a table cannot be handled.",
    "fenced": "Another owner exists, and this one stops quietly.",
    "environment": "Something outside is missing or unreachable.",
    "internal": "The code did not foresee it.",
}


def pages() -> dict[str, str]:
    """Return the text of each page under its file name in docs/reference."""
    import_all()
    return {
        "index.md": _index(),
        "worker-properties.md": worker_page(),
        **{f"connector-{plugin.name}.md": connector_page(plugin) for plugin in plugins()},
        "transforms.md": transforms_page(),
        "converters.md": converters_page(),
        "rest-api.md": rest_page(),
        "command-line.md": cli_page(importlib.import_module(COMMANDS).cli),
        "metrics.md": _metrics(),
        "error-codes.md": _codes(),
    }


def import_all() -> None:
    """Import every module: a code is declared where it is raised, so only then all codes are known."""
    for room in ROOMS:
        package = importlib.import_module(f"cdcworker.{room}")
        for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
            if not module.name.rpartition(".")[2].startswith("_"):
                importlib.import_module(module.name)


def _index() -> str:
    connectors = (f"[`{each.name}`](connector-{each.name}.md): {text(each.title)}." for each in plugins())
    return page(
        "Reference",
        "These pages are made from the code by `make reference`, and a test keeps them up to date.",
        bullets(
            (
                "[Worker properties](worker-properties.md): the keys of the file that a worker starts with.",
                "[Transforms](transforms.md): the transforms and predicates of sources, with their keys.",
                "[Converters](converters.md): how keys and values are written and read, with the keys of each.",
                "[REST API](rest-api.md): every request with its role, parameters, bodies and statuses.",
                "[Command line](command-line.md): every command with its options.",
                "[Metrics](metrics.md): every series of `GET /metrics`.",
                "[Error codes](error-codes.md): what each code means, what stays safe, and what to do. This is the runbook.",
            )
        ),
        "## Connectors",
        "A connector's keys have the names of Debezium and of Kafka Connect where those have one."
        " `GET /connector-plugins/postgres/config` gives the same as JSON."
        " `PUT /connector-plugins/postgres/config/validate` says what is wrong with a config without creating anything.",
        bullets(connectors),
    )


def _metrics() -> str:
    parts = [
        part for title, members in METRICS.items() for part in (f"## {title}", *(_metric(metric) for metric in members))
    ]
    return page(
        "Metrics",
        "`GET /metrics` of each worker shows these series, as Prometheus' text or as OpenMetrics. Each worker tells of itself and of"
        " its own tasks, the leader also of the cluster: a sum over all workers counts nothing twice.",
        f"There are {len(metric_table.ALL)} metrics.",
        *parts,
    )


def _metric(metric: Metric) -> str:
    labels = f"labels {codes(metric.labels)}" if metric.labels else "no labels"
    return f"#### {code(metric.shown)}\n\n{metric.kind} · {labels}\n\n{text(metric.help)}"


def _codes() -> str:
    found = sorted(CODES.values(), key=lambda each: each.name)
    return page(
        "Error codes",
        "Every error has a stable code: in REST answers (on Kafka Connect's routes with `?details=true`), in the status of a task, in logs and in metrics."
        " `cdcworker errors CODE` prints what stands here, without a cluster. Each code has a kind:",
        bullets(f"`{kind}`: {words}" for kind, words in KINDS.items()),
        f"There are {len(found)} codes.",
        *_by_area(found),
    )


def errors_json() -> str:
    """Return what the console tells of each code: the same as the page of error codes."""
    entries = {
        each.name: {
            "kind": KINDS[each.kind],
            "title": each.title,
            "safe": kept(each),
            "hint": each.hint,
        }
        for each in sorted(CODES.values(), key=lambda each: each.name)
    }
    return json.dumps(entries, ensure_ascii=False, indent=0) + "\n"


def _by_area(found: Sequence[ErrorCode]) -> Iterator[str]:
    area = ""
    for each in found:
        if each.name.partition(".")[0] != area:
            area = each.name.partition(".")[0]
            yield f"## {area}"
        yield f"#### {code(each.name)}\n\n*{each.kind}* · {sentence(each.title)}"
        yield f"**What stays safe.** {sentence(kept(each))}"
        yield f"**What to do.** {sentence(each.hint)}"


def differences(folder: Path) -> list[str]:
    """Return the lines by which the pages in `folder` differ from what the code says now."""
    wanted = pages()
    present = {path.name: path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.md"))}
    found: list[str] = []
    for name in sorted({*wanted, *present}):
        old, new = present.get(name, ""), wanted.get(name, "")
        found += difflib.unified_diff(old.splitlines(), new.splitlines(), name, name, lineterm="", n=0)
    return found


def errors_differences() -> list[str]:
    """Return the lines by which the console's file of error codes differs from what the code says now."""
    old, new = ERRORS.read_text(encoding="utf-8"), errors_json()
    return list(difflib.unified_diff(old.splitlines(), new.splitlines(), ERRORS.name, ERRORS.name, lineterm="", n=0))


def write(folder: Path) -> None:
    """Write every page into `folder`, and remove pages that there are no more."""
    wanted = pages()
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.glob("*.md"):
        if path.name not in wanted:
            path.unlink()
    for name, words in wanted.items():
        (folder / name).write_text(words, encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Write the reference pages of the documentation.")
    parser.add_argument("--check", action="store_true", help="Change nothing; exit code 1 if they are not up to date.")
    parser.add_argument("folder", nargs="?", default=FOLDER, type=Path)
    options = parser.parse_args(arguments)
    if not options.check:
        write(options.folder)
        if options.folder == FOLDER:
            ERRORS.write_text(errors_json(), encoding="utf-8")
        return 0
    if found := [*differences(options.folder), *(errors_differences() if options.folder == FOLDER else ())]:
        print("the reference is not up to date: run `make reference`", file=sys.stderr)
        print("\n".join(found), file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
