"""`make docs` builds the site strictly, and what it builds asks no other host for anything."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    argv = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "https_proxy": "http://127.0.0.1:9"}
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    return folder


def test_the_site_builds_strictly_with_every_page(site: Path) -> None:
    pages = [path.relative_to(ROOT / "docs").with_suffix(".html") for path in (ROOT / "docs").rglob("*.md")]
    assert len(pages) > 40
    assert [page for page in pages if not (site / page).exists()] == []


def test_pages_load_nothing_from_another_host(site: Path) -> None:
    loaded = re.compile(r"""<(?:script|img|iframe|link)\b[^>]*?\b(?:src|href)=["']?(?:https?:)?//[^"'\s>]+""")
    found = [
        f"{path.relative_to(site)}: {tag}" for path in site.rglob("*.html") for tag in loaded.findall(path.read_text())
    ]
    assert found == []


def test_style_sheets_load_nothing_from_another_host(site: Path) -> None:
    styles = [*site.rglob("*.css"), *site.rglob("*.svg")]
    assert styles
    outside = re.compile(r"""(?:url\(|@import|href=)\s*["']?(?:https?:)?//[^)"'\s]+""")
    assert [f"{path.name}: {text}" for path in styles for text in outside.findall(path.read_text())] == []


def test_no_page_asks_for_a_script_that_the_theme_would_fetch(site: Path) -> None:
    """The theme loads mermaid from a content network as soon as a page holds such a block."""
    assert [path.name for path in site.rglob("*.html") if 'class="mermaid"' in path.read_text()] == []
    assert "repo_url" not in yaml.safe_load((ROOT / "mkdocs.yml").read_text())
