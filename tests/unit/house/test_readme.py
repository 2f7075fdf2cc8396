"""What the README names exists: tests, files, make targets, commands, keys, codes; its examples are valid."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import Any

import pytest
from cdcworker.connectors.registry import lookup
from cdcworker.schemas.errors import CODES
from cdcworker.worker import reference
from cdcworker.worker.cli import main as cli
from cdcworker.worker.cli.connector import connector
from cdcworker.worker.config import parse, read_properties

from . import proofs

ROOT = Path(__file__).resolve().parents[3]
TEXT = (ROOT / "README.md").read_text()
PROSE = TEXT.partition(reference.BEGIN)[0] + TEXT.partition(reference.END)[2]
LINKS = re.findall(r"\[([^\]]+)\]\(([^)]+)\)", PROSE)
PROOFS = sorted((file, name.strip("`")) for name, file in LINKS if name.startswith("`test_"))


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PROSE, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize(("file", "name"), PROOFS)
def test_each_test_that_the_readme_names_exists_and_is_run_by_make_test(file: str, name: str) -> None:
    proof = proofs.find(file, name)
    assert not proof.is_skipped()
    assert not proof.is_marked("long")


def test_no_test_is_named_without_its_file() -> None:
    assert set(re.findall(r"\btest_[a-z0-9_]+\b(?!\.py)", PROSE)) == {name for _, name in PROOFS}


def test_every_guarantee_names_a_test() -> None:
    section = PROSE.partition("## Guarantees")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| ")][1:]
    assert len(rows) > 10
    assert [row for row in rows if "](tests/" not in row] == []


def test_links_lead_to_files_of_the_repository() -> None:
    headings = {"#" + head.lower().replace(" ", "-") for head in re.findall(r"^##+ (.+)$", PROSE, re.MULTILINE)}
    assert [target for _, target in LINKS if target not in headings and not (ROOT / target).exists()] == []


def test_make_targets_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {name for text in code() for name in re.findall(r"\bmake ([a-z-]+)", text)}
    assert {"demo", "test", "reference"} <= named <= targets


def test_commands_exist() -> None:
    text = "\n".join(code())
    assert set(re.findall(r"\bcdcworker ([a-z]+(?:-[a-z]+)*)\b", text)) <= set(cli.COMMANDS)
    assert set(re.findall(r"\bcdcworker connector ([a-z]+)\b", text)) <= set(connector.commands)


def code() -> list[str]:
    """What stands between backticks, blocks included."""
    return [*re.findall(r"`([^`\n]+)`", PROSE), *blocks(r"[a-z]*")]


def test_error_codes_exist() -> None:
    reference.import_all()
    kinds = {name.partition(".")[0] for name in CODES} - {"config", "schema", "source"}
    named = {text for text in code() if re.fullmatch(rf"({'|'.join(kinds)}|source)\.[a-z]+(_[a-z]+)+", text)}
    assert named
    assert named <= set(CODES)


def submissions() -> list[dict[str, Any]]:
    return [json.loads(text) for text in re.findall(r" -d '(\{.*?\})'\n", PROSE, re.DOTALL)]


def test_connector_examples_are_valid() -> None:
    examples = submissions()
    assert {lookup(example["config"]["connector.class"]).kind for example in examples} == {"source", "sink"}
    for example in examples:
        config = example["config"]
        lookup(config["connector.class"]).load().config_def.parse(config)


def test_worker_examples_are_valid() -> None:
    (example,) = blocks("properties")
    config, warnings = parse(read_properties(example))
    assert config.port == 8083
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
    from cdcworker.worker.rest.app import ENDPOINTS

    known = [endpoint.path for endpoint in ENDPOINTS]
    patterns = [re.sub(r"\{[^}]+\}", "[^/]+", path) for path in known]
    named = {
        path
        for text in code()
        for path in re.findall(r"(?:^|(?:GET|PUT|POST|localhost:8083) ?)(/[A-Za-z0-9/{}_.-]+)", text)
        if not path.startswith(("/subjects", "/run/"))
    }
    assert {"/healthz", "/v1/cluster", "/v1/drain"} <= named
    assert [path for path in named if not any(re.fullmatch(pattern, path) for pattern in patterns)] == []
