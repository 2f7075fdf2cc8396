"""The README's reference is what the code says, and every key and code in it has words."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from cdcworker.connectors.config import ConfigKey, between, one_of
from cdcworker.worker import reference

ROOT = Path(__file__).resolve().parents[3]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own: what other tests declare is no part of the product."""
    argv = [sys.executable, "-m", "cdcworker.worker.reference", *arguments]
    return subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)


def test_the_readme_equals_what_the_code_generates() -> None:
    done = run("--check", "README.md")
    assert done.returncode == 0, done.stderr


def test_every_row_says_what_it_means() -> None:
    text = (ROOT / "README.md").read_text().partition(reference.BEGIN)[2].partition(reference.END)[0]
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    assert len(rows) > 200
    assert [row for row in rows if row.rstrip(" |").count("| ") < 4] == []


def test_a_stale_reference_is_found_and_written_anew(tmp_path: Path) -> None:
    file = tmp_path / "README.md"
    file.write_text(f"# Head\n{reference.BEGIN}\n| `gone.key` |\n{reference.END}\ntail\n")
    found = run("--check", str(file))
    assert found.returncode == 1
    assert "- | `gone.key` |" in found.stderr
    assert "+ | `bootstrap.servers`" in found.stderr
    assert run(str(file)).returncode == 0
    assert run("--check", str(file)).returncode == 0
    text = file.read_text()
    assert text.startswith(f"# Head\n{reference.BEGIN}\n")
    assert text.endswith(f"{reference.END}\ntail\n")
    assert "gone.key" not in text


@pytest.mark.parametrize(
    ("key", "row"),
    [
        (ConfigKey("a", required=True, doc="x | y"), r"| `a` | string | **required** | x \| y |"),
        (ConfigKey("a", "INT", 3, doc="n", validator=between(1, 9)), "| `a` | int, 1 to 9 | `3` | n |"),
        (ConfigKey("a", "INT", doc="n", validator=between(1)), "| `a` | int, from 1 | – | n |"),
        (ConfigKey("a", default="b", doc="n", validator=one_of("b", "c")), "| `a` | `b`, `c` | `b` | n |"),
        (ConfigKey("a", "BOOLEAN", False, doc="<x> and `<y>`"), "| `a` | boolean | `false` | &lt;x> and `<y>` |"),
        (ConfigKey("a", "PASSWORD", note="only a note"), "| `a` | password | – | only a note |"),
    ],
)
def test_a_key_is_a_row_with_its_limits_and_choices(key: ConfigKey, row: str) -> None:
    assert reference._keys([key]).splitlines()[-1] == row


def test_markers_that_are_missing_are_told() -> None:
    with pytest.raises(ValueError, match="markers"):
        reference.replaced("# No markers here")
