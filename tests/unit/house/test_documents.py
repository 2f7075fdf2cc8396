"""What README.md, the pages of docs/ and those beside the code name exists: tests, files, make targets, commands, keys, codes; examples are valid."""

from __future__ import annotations

import ast
import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from cdcworker.connectors.registry.names import lookup
from cdcworker.schemas.errors import CODES
from cdcworker.worker.cli import main as cli
from cdcworker.worker.cli.commands.connectors.connector import connector
from cdcworker.worker.config.worker_properties import parse, read_properties
from cdcworker.worker.generators import markdown, reference
from cdcworker.worker.rest.resources.monitoring.metric_table import ALL as METRICS

from . import proofs

ROOT = Path(__file__).resolve().parents[3]
README = ROOT / "README.md"
README_LINES_MAX = 400
GENERATED = ROOT / reference.FOLDER
ROOMS = ("schemas", "coordinator", "connectors", "worker", "k8s", "tests")
BESIDE_CODE = [path for room in ROOMS for path in sorted((ROOT / room).rglob("*.md"))]
PAGES = [
    README,
    ROOT / "CONTRIBUTING.md",
    ROOT / "SECURITY.md",
    *BESIDE_CODE,
    *sorted(path for path in (ROOT / "docs").rglob("*.md") if path.parent != GENERATED),
]
ALL_PAGES = [*PAGES, *sorted(GENERATED.glob("*.md"))]
TEXT = {path: path.read_text() for path in ALL_PAGES}
PROSE = "\n".join(TEXT[path] for path in PAGES)
PROOFS = sorted(set(re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", PROSE)))


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PROSE, re.MULTILINE | re.DOTALL)


def code() -> list[str]:
    """What stands between backticks, blocks included."""
    return [*re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", PROSE, flags=re.M | re.S)), *blocks(r"[a-z]*")]


def test_the_readme_stays_short() -> None:
    assert len(TEXT[README].splitlines()) <= README_LINES_MAX


@pytest.mark.parametrize("path", ALL_PAGES, ids=name_of)
def test_rows_of_tables_stay_short(path: Path) -> None:
    rows = [line for line in TEXT[path].splitlines() if line.startswith("|")]
    assert [row for row in rows if len(row) > markdown.ROW_CHARS_MAX] == []


@pytest.mark.parametrize("room", ["schemas", "coordinator", "connectors", "worker"])
def test_the_readme_of_a_room_draws_each_of_its_packages(room: str) -> None:
    drawn = set(
        re.findall(r"\w+", "".join(re.findall(r"^```\n(.*?)^```", TEXT[ROOT / room / "README.md"], re.M | re.S)))
    )
    packages = {path.parent.name for path in (ROOT / room).glob("*/__init__.py")}
    assert packages - drawn == set()


def test_every_contract_suite_is_in_the_table_of_seams() -> None:
    suites = [
        path
        for path in (ROOT / "tests/contract").glob("*.py")
        if "\ndef test_" in path.read_text() or "    def test_" in path.read_text()
    ]
    table = TEXT[ROOT / "docs/development.md"]
    assert suites
    assert [name_of(path) for path in suites if f"`{name_of(path)}`" not in table] == []


@pytest.mark.parametrize(("file", "name"), PROOFS)
def test_each_test_that_the_documents_name_exists_and_is_run_by_make_test(file: str, name: str) -> None:
    proof = proofs.find(file, name)
    assert not proof.is_skipped()
    assert not proof.is_marked("long")


def test_no_test_of_a_guarantee_is_left_out_by_a_seed() -> None:
    found = re.findall(r"`(tests/\S+)::(test_\w+)`", (ROOT / "docs" / "guarantees.md").read_text())
    assert found
    assert [name for file, name in found if proofs.find(file, name).is_marked("sampled")] == []


def test_no_test_is_named_without_its_file() -> None:
    assert PROOFS
    assert set(re.findall(r"\btest_[a-z0-9_]+\b(?!\.py)", PROSE)) == {name for _, name in PROOFS}


def test_every_guarantee_names_a_test() -> None:
    text = (ROOT / "docs" / "guarantees.md").read_text()
    sections = re.split(r"^### ", text, flags=re.MULTILINE)[1:]
    assert len(sections) > 10
    assert [part.splitlines()[0] for part in sections if not re.search(r"`tests/\S+::test_\w+`", part)] == []


def test_every_promise_about_security_has_a_test_in_its_section() -> None:
    """The threat model says who is trusted; its sections on what is protected, and on what is to be done, promise nothing."""
    text = (ROOT / "docs" / "security.md").read_text()
    sections = re.split(r"^##+ ", text, flags=re.MULTILINE)[1:]
    without = [part.splitlines()[0] for part in sections if not re.search(r"`tests/\S+::test_\w+`", part)]
    assert without == [
        "Threat model", "What is protected", "Who is trusted with what", "Topics of connectors",
        "Introduce the secret, change it", "Roles in PostgreSQL and Kafka",
    ]  # fmt: skip


@pytest.mark.parametrize("path", ALL_PAGES, ids=name_of)
def test_links_lead_to_files_and_to_one_heading_there(path: Path) -> None:
    missing = []
    for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"^```.*?^```", "", TEXT[path], flags=re.M | re.S)):
        file, _, anchor = target.partition("#")
        found = (path.parent / file).resolve() if file else path
        if not found.exists() or (anchor and anchors(found).count(anchor) != 1):
            missing.append(target)
    assert missing == []


def anchors(path: Path) -> list[str]:
    """The headings of a page, as GitHub and the site name them in links."""
    heads = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```", "", path.read_text(), flags=re.M | re.S), re.MULTILINE)
    return [re.sub(r"[^\w\s-]", "", head).strip().lower().replace(" ", "-") for head in heads]


def test_files_of_the_repository_that_are_named_exist() -> None:
    rooms = r"(?:schemas|coordinator|connectors|worker|k8s|tests|docs|locks)"
    named = {text.rstrip("/") for text in code() if re.fullmatch(rf"{rooms}(/[\w.-]+)+/?", text)}
    assert named
    made_by_runs = {"tests/results/long.json"}
    places = {name: (ROOT / name, ROOT / f"{name}.py") for name in named - made_by_runs}
    assert sorted(name for name, paths in places.items() if not any(path.exists() for path in paths)) == []


def test_make_targets_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {name for text in code() for name in re.findall(r"\bmake ([a-z-]+)", text)}
    assert {"demo", "test", "reference", "docs"} <= named <= targets


def test_commands_exist() -> None:
    text = "\n".join(code())
    named = set(re.findall(r"(?<![\w/.-])cdcworker ([a-z]+(?:-[a-z]+)*)\b", text))
    assert named <= {*cli.COMMANDS, *not_commands(text)}
    assert set(re.findall(r"\bcdcworker connector ([a-z]+)\b", text)) <= set(connector.commands)


def not_commands(text: str) -> set[str]:
    """What follows the name where that is the name of a chart: `helm install cdcworker k8s/…`."""
    return set(re.findall(r"(?:install|upgrade) cdcworker ([a-z0-9]+)", text))


def test_options_of_commands_exist() -> None:
    known = set(re.findall(r"--[a-z][a-z-]+", TEXT[GENERATED / "command-line.md"])) | {"--help"}
    lines = [line for text in code() for line in text.splitlines() if re.search(r"(^|/|\s)cdcworker [a-z]", line)]
    lines = [line.partition("#")[0] for line in lines if not re.search(r"\b(helm|docker|kubectl|make)\b", line)]
    named = {option for line in lines for option in re.findall(r"(?<!\S)--[a-z][a-z-]+", line)}
    assert named
    assert sorted(named - known) == []


def test_error_codes_exist() -> None:
    reference.import_all()
    kinds = {name.partition(".")[0] for name in CODES} - {"config", "schema", "source"}
    named = {text for text in code() if re.fullmatch(rf"({'|'.join(kinds)}|source)\.[a-z]+(_[a-z]+)+", text)}
    assert named
    assert named <= set(CODES)


def test_metrics_exist() -> None:
    shown = {metric.shown for metric in METRICS}
    named = {text for text in code() if re.fullmatch(r"cdc_[a-z_]+", text)}
    assert named
    assert sorted(named - shown) == []


def submissions() -> list[dict[str, Any]]:
    """The bodies that examples send, and the files of connectors that they show."""
    sent = [json.loads(text) for text in re.findall(r" -d '(\{.*?\})'\n", PROSE, re.DOTALL)]
    files = [json.loads(text) for text in blocks("json") if text.startswith("{")]
    return [each for each in (*sent, *files) if "connector.class" in each.get("config", ())]


def test_connector_examples_are_valid() -> None:
    examples = submissions()
    assert {lookup(example["config"]["connector.class"]).kind for example in examples} == {"source", "sink"}
    for example in examples:
        config = example["config"]
        lookup(config["connector.class"]).load().config_def.parse(config)


SOURCE = {
    "connector.class": "postgres",
    **{f"database.{name}": "x" for name in ("hostname", "user", "password", "dbname")},
    "topic.prefix": "shop",
}
SINK = {
    "connector.class": "spark",
    "topics": "shop.public.orders",
    "warehouse": "postgres",
    **{f"warehouse.{name}": "x" for name in ("hostname", "dbname", "user", "password")},
}


def test_parts_of_configs_in_examples_are_valid() -> None:
    """A block of keys without a connector around it belongs to a PostgreSQL source or to a Spark sink."""
    parts = [json.loads("{" + text.strip().rstrip(",") + "}") for text in blocks("json") if not text.startswith("{")]
    assert len(parts) > 5
    assert [part for part in parts if all(problems(base | part) for base in (SOURCE, SINK))] == []


def problems(config: dict[str, str]) -> list[str]:
    values = lookup(config["connector.class"]).load().config_def.validate(config)
    return [error for value in values for error in value.errors]


def test_worker_examples_are_valid() -> None:
    examples = blocks("properties")
    assert examples
    for text in examples:
        config, warnings = parse(read_properties(text))
        assert config.port
        assert warnings == []


def test_examples_of_single_worker_properties_are_valid() -> None:
    examples = blocks("ini")
    assert examples
    for text in examples:
        _, warnings = parse({"bootstrap.servers": "k:1", "group.id": "g", **read_properties(text)})
        assert warnings == []


def test_python_examples_compile() -> None:
    assert blocks("python")
    for example in blocks("python"):
        ast.parse(example)


def test_endpoints_exist() -> None:
    from cdcworker.worker.server.application import ENDPOINTS

    known = [endpoint.path for endpoint in ENDPOINTS]
    patterns = [re.sub(r"\{[^}]+\}", "[^/]+", path) for path in known]
    named = {
        path
        for text in code()
        for path in re.findall(r"(?:^|(?:GET|PUT|POST|PATCH|DELETE|localhost:8083) ?)(/[A-Za-z0-9/{}_.-]+)", text)
        if path.startswith(("/v1", "/connector", "/admin", "/health", "/ready", "/metrics"))
    }
    assert {"/healthz", "/v1/cluster", "/v1/drain"} <= named
    assert [path for path in sorted(named) if not any(re.fullmatch(pattern, path) for pattern in patterns)] == []


def test_every_page_is_in_the_navigation_once() -> None:
    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]
    listed = list(files_of(nav))
    there = sorted(str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md"))
    assert sorted(listed) == there


def files_of(node: Any) -> list[str]:
    if isinstance(node, str):
        return [node]
    children = node if isinstance(node, list) else node.values()
    return [file for child in children for file in files_of(child)]


@pytest.mark.parametrize("path", ALL_PAGES, ids=name_of)
def test_a_page_begins_with_its_title_and_skips_no_level_of_headings(path: Path) -> None:
    text = re.sub(r"^```.*?^```", "", TEXT[path], flags=re.M | re.S)
    levels = [len(marks) for marks in re.findall(r"^(#+) ", text, re.MULTILINE)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    skipped = [pair for pair in pairwise(levels) if pair[1] > pair[0] + 1]
    assert path.parent == GENERATED or skipped == []
