"""Files that no snapshot of an Iceberg table names, however the table writes where its files are."""

from __future__ import annotations

import os

import pytest
from cdcworker.connectors.warehouses.lake.maintenance.orphans import old_files, unnamed

HERE = ["/srv/lake/db/t/data/a.parquet", "/srv/lake/db/t/metadata/m0.avro", "/srv/lake/db/t/data/day=1/b.parquet"]


@pytest.mark.parametrize("home", ["/srv/lake/db/t", "file:/srv/lake/db/t", "/mnt/link/t", "hdfs://old:8020/lake/db/t"])
def test_a_file_that_is_named_by_another_way_to_its_folder_stays(home):
    named = [f"{home}/data/a.parquet", f"{home}/metadata/m0.avro"]
    assert unnamed(HERE, named) == ["/srv/lake/db/t/data/day=1/b.parquet"]
    assert unnamed(HERE, [*named, f"{home}/data/day=1/b.parquet"]) == []


def test_what_nobody_names_is_told():
    assert unnamed(HERE, []) == HERE
    assert unnamed([], HERE) == []


def test_files_behind_links_are_not_looked_at(tmp_path):
    other, home = tmp_path / "other", tmp_path / "t"
    for folder in (other, home / "metadata" / "deep"):
        folder.mkdir(parents=True)
        (folder / "a.parquet").write_bytes(b"x")
        os.utime(folder / "a.parquet", (0, 0))
    (home / "data").symlink_to(other)
    (home / "metadata" / "link").symlink_to(other)
    (home / "metadata" / "a.parquet").symlink_to(other / "a.parquet")
    assert old_files(str(home), 60.0) == [str(home / "metadata" / "deep" / "a.parquet")]
