"""A plugin that `cdcworker plugin new` writes into an empty folder: it passes the kit, and runs on a cluster that loses a worker."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
from cdcworker.worker.conformance.distribution import checked_plugin, plugins_under_test

from tests.integration.one_worker import Worker

COMMAND = str(Path(sys.executable).with_name("cdcworker"))
NAMES = {"source": "acme-lines", "sink": "acme-shelf", "transform": "acme-upper"}


def run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A folder with all three installed, as pip does it."""
    folder = tmp_path_factory.mktemp("plugins")
    for kind, name in NAMES.items():
        run(COMMAND, "plugin", "new", name, "--kind", kind, "--dir", str(folder))
    install = ("-m", "pip", "install", "-q", "--no-deps", "--no-index", "--no-build-isolation")
    run(sys.executable, *install, "--target", str(folder / "site"), *(str(folder / name) for name in NAMES.values()))
    return folder / "site"


@pytest.fixture
def importable(site, monkeypatch):
    monkeypatch.syspath_prepend(str(site))


def problems(name: str, folder: Path, bootstrap: str = "") -> list[object]:
    (plugin,) = plugins_under_test(name)
    return [found for found in checked_plugin(plugin, name, folder, bootstrap) if found.problem]


@pytest.mark.parametrize("name", NAMES.values())
def test_what_is_written_passes_the_checks_without_kafka(importable, tmp_path, name):
    assert problems(name, tmp_path) == []


@pytest.mark.long
@pytest.mark.kafka
@pytest.mark.parametrize("name", [NAMES["source"], NAMES["sink"]])
def test_what_is_written_passes_the_whole_kit(importable, kafka, tmp_path, name):
    assert problems(name, tmp_path, kafka.bootstrap) == []


@pytest.mark.kafka
def test_a_plugin_on_two_workers_loses_nothing_when_one_is_killed(kafka, site, tmp_path):
    group, allowed = f"t{uuid.uuid4().hex[:8]}", ",".join(NAMES.values())
    lines, shelf = tmp_path / "lines.json", tmp_path / "shelf.json"
    shelf.touch()

    def write(begin: int, end: int) -> None:
        with lines.open("a") as file:
            file.writelines(json.dumps({"text": f"line {n}"}) + "\n" for n in range(begin, end))

    write(0, 500)
    with contextlib.ExitStack() as stack:
        workers = {}
        for name in ("w1", "w2"):
            variables = {"PYTHONPATH": str(site)}
            worker = Worker(tmp_path, kafka.bootstrap, group, name, variables=variables, plugins_allowed=allowed)
            workers[name] = worker
            stack.callback(worker.kill)
        for worker in workers.values():
            worker.wait_ready()
        one = workers["w1"]
        source = {
            "connector.class": "acme-lines", "topic.prefix": group, "lines.file": str(lines), "poll.interval.ms": "20",
            "transforms": "up", "transforms.up.type": "acme-upper", "transforms.up.field": "op",
        }  # fmt: skip
        topic = f"{group}.acme_lines.lines"
        one.put("lines", source)
        one.put("shelf", {"connector.class": "acme-shelf", "topics": topic, "lines.file": str(shelf)})

        def there() -> list[str]:
            return [json.loads(line)["value"]["after"]["text"] for line in shelf.read_text().split("\n")[:-1]]

        one.wait(lambda: len(there()) > 100, "the first records")
        gone = one.task("lines")["worker"]
        left = workers["w2" if gone == "w1" else "w1"]
        write(500, 800)
        workers[gone].kill()
        write(800, 1_000)
        wanted = [f"line {n}" for n in range(1_000)]
        left.wait(lambda: len(set(there())) == 1_000, "every record in the target")
        assert list(dict.fromkeys(there())) == wanted, "in the order of the file"
        assert len(left.read(topic)) == 1_000, "once in Kafka"
        assert json.loads(shelf.read_text().split("\n")[0])["value"]["op"] == "U", "the transform is applied"
