"""The pages of docs/reference are what the code says, and every key, metric and code in them has words."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from cdcworker.connectors.config.definition import ConfigKey, between, one_of
from cdcworker.worker.generators import markdown, reference, reference_keys

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / reference.FOLDER


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own: what other tests declare is no part of the product."""
    argv = [sys.executable, "-m", "cdcworker.worker.generators.reference", *arguments]
    return subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)


def test_the_pages_equal_what_the_code_generates() -> None:
    done = run("--check")
    assert done.returncode == 0, done.stderr


def sections() -> list[tuple[str, list[str]]]:
    """Every entry of the pages of keys, metrics and codes: its name, and the paragraphs below it."""
    found = []
    for page in FOLDER.glob("*.md"):
        if page.name not in ("rest-api.md", "command-line.md"):
            for part in re.split(r"^#### ", page.read_text(), flags=re.MULTILINE)[1:]:
                name, *paragraphs = re.split(r"\n## ", part)[0].strip().split("\n\n")
                found.append((f"{page.name} {name}", paragraphs))
    return found


def test_every_entry_says_what_it_means() -> None:
    found = sections()
    assert len(found) > 500
    assert [name for name, paragraphs in found if len(paragraphs) < 2 or not all(paragraphs)] == []


def test_every_error_code_says_what_stays_safe_and_what_to_do() -> None:
    found = [(name, paragraphs) for name, paragraphs in sections() if name.startswith("error-codes.md")]
    assert len(found) > 200
    assert [name for name, paragraphs in found if len(paragraphs) != 3] == []


def pages(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.glob("*.md")}


def test_a_stale_page_is_found_and_written_anew(tmp_path: Path) -> None:
    folder = tmp_path / "reference"
    shutil.copytree(FOLDER, folder)
    page, gone = folder / "worker-properties.md", folder / "connector-gone.md"
    page.write_text(page.read_text().replace("`bootstrap.servers`", "`gone.key`"))
    gone.write_text("# A connector that there is no more\n")
    found = run("--check", str(folder))
    assert found.returncode == 1
    assert "-#### `gone.key`" in found.stderr
    assert "+#### `bootstrap.servers`" in found.stderr
    assert "-# A connector that there is no more" in found.stderr
    assert run(str(folder)).returncode == 0
    assert pages(folder) == pages(FOLDER)


@pytest.mark.parametrize(
    ("key", "facts", "words"),
    [
        (ConfigKey("a", required=True, doc="x * y"), "string · **required**", r"x \* y"),
        (ConfigKey("a", "INT", 3, doc="n", validator=between(1, 9)), "int, 1 to 9 · default `3`", "n"),
        (ConfigKey("a", "INT", doc="n", validator=between(1)), "int, from 1 · no default", "n"),
        (ConfigKey("a", default="b", doc="n", validator=one_of("b", "c")), "one of `b`, `c` · default `b`", "n"),
        (
            ConfigKey("a", "BOOLEAN", False, doc="<x> and `<y>`"),
            "boolean · default `false`",
            "&lt;x> and `<y>`",
        ),
        (ConfigKey("a", "PASSWORD", note="only a note"), "password · no default", "only a note"),
    ],
)
def test_a_key_is_a_section_with_its_limits_and_choices(key: ConfigKey, facts: str, words: str) -> None:
    assert reference_keys._section(key) == f"#### `a`\n\n{facts}\n\n{words}"


def test_a_row_of_a_table_that_is_too_long_is_refused() -> None:
    with pytest.raises(ValueError, match="longer than 300"):
        markdown.table(("a", "b"), [("x" * 200, "y" * 100)])
    assert markdown.table(("a", "b"), [("x|y", "z")]).splitlines()[-1] == r"| x\|y | z |"
