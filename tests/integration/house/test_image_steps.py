"""The Dockerfile's steps, tried without Docker: built in an empty folder, run by a user who may write nowhere."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
import urllib.request
from pathlib import Path

import pytest
from cdcworker.worker.devstack.ports import free_ports

from tests.unit.house import dockerfile as docker

STAGES = docker.stages((docker.ROOT / "Dockerfile").read_text())
STEPS = docker.all_steps(STAGES, "worker")
WITHOUT_RIGHTS = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"] if os.getuid() == 0 else []
"""Root would write anywhere; without capabilities it is held to the modes of files as anybody is."""
DEADLINE_S = 60.0


@pytest.fixture
def root():
    """Where others may look, as in an image."""
    folder = Path(tempfile.mkdtemp(prefix="image-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def placed(text: str, root: Path) -> str:
    for place in ("/opt/cdcworker", "/var/lib/cdcworker", "/etc/cdcworker"):
        text = text.replace(place, f"{root}{place}")
    return text


def build(root: Path) -> None:
    """The stage `build`, but for what it takes from the distribution."""
    source = root / "src"
    files = set(docker.context())
    for step in STAGES["build"].steps:
        if step.word == "COPY":
            wanted, _ = step.rest.split()
            for name in docker.copied(wanted, files):
                (source / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(docker.ROOT / name, source / name)
        for command in step.commands() if step.word == "RUN" else ():
            if not command.startswith(("apt-get", "rm -rf /var/lib/apt")):
                done = subprocess.run(
                    placed(command, root), shell=True, cwd=source, capture_output=True, text=True, check=False
                )
                assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"


def run(root: Path, path: str) -> None:
    """ENTRYPOINT and CMD with the image's variables; HEALTHCHECK becomes true; SIGTERM ends it."""
    (port,) = free_ports(1)
    for folder in ("etc/cdcworker", "var/lib/cdcworker", "tmp"):
        (root / folder).mkdir(parents=True)
    config = root / "etc/cdcworker/worker.properties"
    config.write_text(f"bootstrap.servers=127.0.0.1:9\ngroup.id=g\nlisteners=http://127.0.0.1:{port}\n")
    variables = {name: placed(value, root) for name, value in docker.variables(STEPS).items()}
    health = variables["HEALTH_URL"].replace("8083", str(port))
    variables |= {"PATH": path, "HOME": str(root / "tmp"), "TMPDIR": str(root / "tmp"), "HEALTH_URL": health}
    (entry,) = [step.words() for step in STEPS if step.word == "ENTRYPOINT"]
    (command,) = [step.words() for step in STEPS if step.word == "CMD"]
    (check,) = [step.words() for step in STEPS if step.word == "HEALTHCHECK"]
    options = {"cwd": root / "tmp", "env": variables}
    argv = [*WITHOUT_RIGHTS, shutil.which(entry[0], path=path), *(placed(word, root) for word in command)]
    close(root, True)
    assert subprocess.run([*WITHOUT_RIGHTS, "touch", str(root / "etc/x")], capture_output=True, check=False).returncode
    with (root / "tmp" / "log").open("wb") as out:
        process = subprocess.Popen(argv, stdout=out, stderr=out, **options)
    try:
        deadline = time.monotonic() + DEADLINE_S
        while subprocess.run(check, capture_output=True, check=False, **options).returncode:
            assert process.poll() is None, (root / "tmp" / "log").read_text()
            assert time.monotonic() < deadline, (root / "tmp" / "log").read_text()
        with urllib.request.urlopen(health, timeout=5) as answer:
            assert answer.status == 200
    finally:
        process.terminate()
        process.wait(DEADLINE_S)
        close(root, False)
    assert subprocess.run(check, capture_output=True, check=False, **options).returncode, "it is gone, and healthy?"


def close(root: Path, closed: bool) -> None:
    """A root that is read-only, but for the folders that a pod may write to."""
    open_ = (str(root / "tmp"), str(root / "var/lib/cdcworker"))
    for folder in (root, *(path for path in root.rglob("*") if path.is_dir() and not path.is_symlink())):
        if not str(folder).startswith(open_):
            folder.chmod(0o555 if closed else 0o755)


def test_a_worker_starts_as_the_image_starts_it_and_its_health_is_asked_as_the_image_asks(root):
    """With the package that is installed here; Kafka is away, which is nothing that a restart would mend."""
    here = Path(shutil.which("cdcworker") or docker.ROOT / ".venv/bin/cdcworker").parent
    run(root, f"{here}:/usr/bin:/bin")


@pytest.mark.long
def test_the_image_is_built_from_a_clean_checkout_and_what_is_built_runs(root):
    build(root)
    programs = root / "opt/cdcworker/bin"
    version = subprocess.run([programs / "cdcworker", "--version"], capture_output=True, text=True, check=False)
    assert version.returncode == 0, version.stderr
    found = subprocess.run([programs / "pip", "check"], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout
    run(root, f"{programs}:/usr/bin:/bin")
