"""Drivers that write versions of rows to files and are killed (SIGKILL) at a step of a commit: each version is there once, and each old
one is closed by the next."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid

import pytest
from cdcworker.connectors.warehouses.storage.local_disk import LocalDisk

from tests.contract.warehouses import TOPIC
from tests.version_model import assert_equal, versions

from . import killed_version_writer

FEW = {
    "parquet": ("sink.before_commit@2", "sink.after_commit@2"),
    "delta": ("sink.files_written@3", "sink.after_commit@2"),
}
ALL = (
    "sink.staged",
    "sink.before_commit",
    "sink.after_commit",
    "sink.staged@2",
    "sink.before_commit@2",
    "sink.after_commit@2",
)


@pytest.mark.parametrize("kind", sorted(FEW))
def test_drivers_that_are_killed_leave_each_version_once(tmp_path, kind):
    killed_at(kind, [str(tmp_path)], LocalDisk(tmp_path), FEW[kind])


@pytest.mark.long
@pytest.mark.parametrize("kind", sorted(FEW))
def test_drivers_that_are_killed_at_every_step_leave_each_version_once(tmp_path, kind):
    more = ("sink.files_written", "sink.files_written@2") if kind == "delta" else ()
    killed_at(kind, [str(tmp_path)], LocalDisk(tmp_path), (*more, *ALL))


@pytest.mark.long
@pytest.mark.s3
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", sorted(FEW))
def test_drivers_that_are_killed_over_a_bucket_leave_each_version_once(s3, kind):
    prefix = uuid.uuid4().hex
    killed_at(kind, [s3.endpoint, prefix], s3.files(prefix), ALL)


def killed_at(kind, place, files, places):
    """One driver is killed at each of these places, as far as something is left to do; another one writes the rest."""
    for epoch, point in enumerate(places, 1):
        name, _, nth = point.partition("@")
        argv = [sys.executable, "-m", killed_version_writer.__name__, kind, *place, str(epoch)]
        env = {**os.environ, "CDC_FAILPOINTS": f"{name}=kill@{nth or 1}"}
        done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=300, check=False)
        if done.returncode == 0:
            break
        assert done.returncode == -signal.SIGKILL, done.stderr[-2000:]
    else:
        epoch += 1
    assert epoch > 2
    writer = killed_version_writer.write(kind, files, epoch + 1)
    assert_equal(versions(writer, TOPIC), killed_version_writer.stream().wanted())
