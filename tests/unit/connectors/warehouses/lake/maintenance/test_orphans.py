"""Files that no snapshot of an Iceberg table names, however the table writes where its files are."""

from __future__ import annotations

import pytest
from cdcworker.connectors.warehouses.lake.maintenance.orphans import unnamed

HERE = ["/srv/lake/db/t/data/a.parquet", "/srv/lake/db/t/metadata/m0.avro", "/srv/lake/db/t/data/day=1/b.parquet"]


@pytest.mark.parametrize("home", ["/srv/lake/db/t", "file:/srv/lake/db/t", "/mnt/link/t", "hdfs://old:8020/lake/db/t"])
def test_a_file_that_is_named_by_another_way_to_its_folder_stays(home):
    named = [f"{home}/data/a.parquet", f"{home}/metadata/m0.avro"]
    assert unnamed(HERE, named) == ["/srv/lake/db/t/data/day=1/b.parquet"]
    assert unnamed(HERE, [*named, f"{home}/data/day=1/b.parquet"]) == []


def test_what_nobody_names_is_told():
    assert unnamed(HERE, []) == HERE
    assert unnamed([], HERE) == []
