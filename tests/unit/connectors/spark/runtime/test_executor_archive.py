"""Which version an archive for executors is of."""

from __future__ import annotations

import io
import subprocess
import sys
import tarfile

import pytest
from cdcworker.connectors.spark.config import CONFIG_DEF
from cdcworker.connectors.spark.runtime import executor_archive as packing
from cdcworker.connectors.spark.runtime.cluster import cluster_of
from cdcworker.schemas.errors import CdcError

BASE = {"topics": "t", "warehouse": "parquet", "warehouse.path": "/srv/lake", "spark.launcher": "client"}


def archive(path, *members, mode="w:gz"):
    with tarfile.open(path, mode) as made:
        for name, text in members:
            member = tarfile.TarInfo(name)
            member.size = len(text)
            made.addfile(member, io.BytesIO(text.encode()))
    return path


def started(path):
    given = {**BASE, "spark.master": "yarn", "spark.archives": f"{path}#environment"}
    return cluster_of(CONFIG_DEF.parse(given)).settings(2, ())


@pytest.mark.parametrize("mode", ["w:gz", "w"])
@pytest.mark.parametrize(
    ("first", "known"),
    [((packing.MARK, "0.0.1+abc"), "0.0.1+abc"), (("bin/python", packing.PROGRAM), "unknown")],
)
def test_an_archive_of_another_version_ends_the_start(tmp_path, mode, first, known):
    path = archive(tmp_path / f"env.{'tar' if mode == 'w' else 'tar.gz'}", first, ("lib/a.py", "1"), mode=mode)
    with pytest.raises(CdcError) as caught:
        started(path)
    assert caught.value.code == "spark.archive_version"
    assert caught.value.where == {"key": "spark.archives", "file": str(path)}
    assert f"by version {known}," in caught.value.message


def test_what_is_packed_here_and_what_others_packed_is_taken(tmp_path, monkeypatch):
    own = tmp_path / "own.tar.gz"
    monkeypatch.setattr(packing, "DISTRIBUTIONS", ())
    packing.pack(own)
    assert packing.version_of(own) == packing.version()
    for path in (own, archive(tmp_path / "other.tgz", ("bin/python", "ELF")), archive(tmp_path / "none.tar", mode="w")):
        assert started(path)["spark.archives"] == f"{path}#environment"
    (tmp_path / "bad.tar.gz").write_bytes(b"PK")
    assert packing.version_of(tmp_path / "bad.tar.gz") is None
    folder = tarfile.TarInfo(packing.MARK)
    folder.type = tarfile.DIRTYPE
    with tarfile.open(tmp_path / "folder.tar", "w") as made:
        made.addfile(folder)
    assert packing.version_of(tmp_path / "folder.tar") is None
    # Whose code differs in one line is another version.
    packing.version.cache_clear()
    monkeypatch.setattr(packing, "PACKAGES", packing.PACKAGES[:1])
    with pytest.raises(CdcError):
        started(own)
    packing.version.cache_clear()


@pytest.mark.parametrize(
    "module", ["warehouses.postgres.parallel_staging", "warehouses.lake.dead_letters", "warehouses.lake.verify_side"]
)
def test_what_executors_run_needs_nothing_but_what_is_packed(tmp_path, module):
    for name, path in packing._all_files():
        link = tmp_path / "lib" / name
        if path.is_file():
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(path)
    program = f"{sys.base_prefix}/bin/{packing.PYTHON}"
    argv = [program, "-c", f"import cdcworker.connectors.{module}"]
    done = subprocess.run(argv, env={"PYTHONPATH": str(tmp_path / "lib")}, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
