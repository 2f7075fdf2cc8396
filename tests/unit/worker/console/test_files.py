"""The console's files: complete, small, as their makers published them, and served with type and entity tag."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import tomllib
from pathlib import Path

import pytest
from cdcworker.worker.console.files import MEDIA_TYPES, PAGE, console_files
from cdcworker.worker.rest.settings import ApiSettings

from tests.app_in_memory import ask, create_app
from tests.unit.worker.conftest import Cluster, FakeHerder

ROOT = Path(__file__).resolve().parents[4]
ASSETS = ROOT / "worker/console/assets"
OWN = sorted(path for path in ASSETS.iterdir() if path.suffix in (".js", ".html", ".css", ".svg"))
VENDORED = json.loads((ROOT / "locks/console.json").read_text())
BYTES_MAX = 400_000


def answer(path, headers=(), method="GET", **settings):
    app = create_app(FakeHerder(Cluster()), settings=ApiSettings(**settings))
    return asyncio.run(ask(app, method, path, headers=headers))


def test_everything_that_a_file_names_is_there():
    names = set(console_files())
    page = console_files()[PAGE].content.decode()
    named = set(re.findall(r'(?:src|href)="([^"#]+)"', page))
    for path in OWN:
        named |= {name.removeprefix("./") for name in re.findall(r'from "([^"]+)"', path.read_text())}
    assert len(named) > 20
    assert named <= names
    assert {path.name for path in OWN if path.suffix == ".js"} <= named


def test_the_page_is_small_enough_for_a_slow_line():
    assert sum(len(file.content) for file in console_files().values()) < BYTES_MAX


@pytest.mark.parametrize("entry", VENDORED, ids=lambda entry: entry["file"])
def test_a_library_is_what_its_makers_published(entry):
    text = (ASSETS / "vendor" / entry["file"]).read_text()
    for old, new in reversed(entry["changes"]):
        text = text.replace(new, old) if new else text + old
    assert hashlib.sha256(text.encode()).hexdigest() == entry["sha256"]
    assert (ASSETS / "vendor" / f"LICENSE.{entry['package']}").read_text()


def test_no_other_library_is_there():
    vendored = {path.name for path in (ASSETS / "vendor").iterdir() if not path.name.startswith("LICENSE.")}
    assert vendored == {entry["file"] for entry in VENDORED}


@pytest.mark.parametrize("name", sorted(console_files()))
def test_each_file_comes_with_its_type_and_is_asked_for_again_by_its_tag(name):
    found = answer(f"/ui/{name}" if name != PAGE else "/ui/")
    assert (found.status, found.headers["content-type"]) == (200, MEDIA_TYPES[Path(name).suffix])
    assert found.body == (ASSETS / name).read_bytes()
    assert found.headers["cache-control"] == "no-cache"
    tag = found.headers["etag"]
    for sent in (tag, f'"other", W/{tag}', "*"):
        again = answer(f"/ui/{name}", [(b"if-none-match", sent.encode())])
        assert (again.status, again.body, again.headers["etag"]) == (304, b"", tag)
    assert answer(f"/ui/{name}", [(b"if-none-match", b'"other"')]).status == 200


def test_the_page_has_an_address_below_which_its_files_lie():
    """Also behind a proxy that serves the worker below a prefix."""
    assert (answer("/ui").status, answer("/ui").headers["location"]) == (308, "ui/")
    assert answer("/ui/").status == 200


@pytest.mark.parametrize(
    "path",
    [
        "/ui/none.js",
        "/ui/vendor",
        "/ui/vendor/none.js",
        "/ui/vendor/LICENSE.htm",
        "/ui/../pyproject.toml",
        "/ui/..",
        "/ui/%2e%2e/files.py",
        "/ui/..%2ffiles.py",
        "/ui/vendor/..%2f..%2ffiles.py",
        "/ui/vendor/%2e%2e",
        "/ui/vendor%2fhtm.js",
        "/ui//index.html",
        "/ui/%00",
        "/ui/etc/passwd",
        "/ui//etc/passwd",
    ],
)
def test_nothing_else_is_served(path):
    found = answer(path)
    assert (found.status, json.loads(found.body)["error_code"]) == (404, 404)


def test_the_files_are_only_read():
    for method in ("POST", "PUT", "PATCH", "DELETE"):
        assert answer("/ui/app.js", method=method).status == 405
    assert answer("/ui/app.js", method="HEAD").status == 200


@pytest.mark.parametrize("path", ["/ui", "/ui/", "/ui/app.js", "/ui/vendor/htm.js"])
def test_a_worker_may_have_no_console(path):
    found = answer(path, console=False)
    assert found.status == 404
    assert "ui.enabled" in json.loads(found.body)["message"]


def test_the_wheel_holds_every_file_and_licence():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    package = ASSETS.parent
    listed = {path for glob in settings["package-data"]["cdcworker.worker.console"] for path in package.glob(glob)}
    assert {path for path in ASSETS.rglob("*") if path.is_file()} == {path for path in listed if path.is_file()}
