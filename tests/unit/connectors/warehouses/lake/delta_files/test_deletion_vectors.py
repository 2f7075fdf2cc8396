"""Deletion vectors as Delta stores them."""

from __future__ import annotations

import struct
import zlib

import numpy as np
import pytest
from cdcworker.connectors.warehouses.lake.delta_files import deletion_vectors
from cdcworker.connectors.warehouses.lake.delta_files.deletion_vectors import VectorFile, packed, read, unpacked
from cdcworker.connectors.warehouses.storage.local_disk import LocalDisk
from hypothesis import given
from hypothesis import strategies as st

MANY = list(range(0, 300_000, 2))
SPREAD = [3, 4, 7, 11, 18, 29]
EXAMPLE = {
    "storageType": "u",
    "pathOrInlineDv": "ab^-aqEH.-t@S}K{vb[*k^",
    "offset": 4,
    "sizeInBytes": 40,
    "cardinality": 6,
}
"""Of the protocol's own text."""
EXAMPLE_FILE = "ab/deletion_vector_d2c639aa-8816-431a-aaf6-d3fe2512ff61.bin"


@given(st.lists(st.one_of(st.integers(0, 200_000), st.integers(1 << 32, (1 << 32) + 9)), unique=True, max_size=200))
def test_what_is_packed_is_unpacked(rows):
    found = np.array(sorted(rows), np.int64)
    assert unpacked(packed(found)).tolist() == found.tolist()


def test_full_containers_are_bitmaps():
    found = np.array(MANY, np.int64)
    data = packed(found)
    assert unpacked(data).tolist() == MANY
    assert len(data) < 5 * 8192 + 100


def test_the_file_of_the_protocols_example_is_found(tmp_path):
    data = packed(np.array(SPREAD, np.int64))
    path = tmp_path / EXAMPLE_FILE
    path.parent.mkdir()
    path.write_bytes(b"\x01...." + len(data).to_bytes(4, "big") + data + zlib.crc32(data).to_bytes(4, "big"))
    assert read(LocalDisk(tmp_path), {**EXAMPLE, "offset": 5, "sizeInBytes": len(data)}).tolist() == SPREAD


def test_containers_of_runs_are_read():
    """As Spark writes them: 0 to 9 and 20 to 22, then one row in the next container."""
    runs = struct.pack("<HHHHH", 2, 0, 9, 20, 2)
    head = struct.pack("<I", 12347 | (1 << 16)) + bytes([0b01]) + struct.pack("<HHHH", 0, 12, 1, 0)
    data = struct.pack("<iqi", deletion_vectors.MAGIC, 1, 0) + head + runs + struct.pack("<H", 5)
    assert unpacked(data).tolist() == [*range(10), 20, 21, 22, 65541]


def test_small_vectors_stay_in_the_log_and_others_share_a_file(tmp_path):
    file = VectorFile()
    small, one, other = (file.add(np.array(rows, np.int64)) for rows in (SPREAD, MANY, MANY[::3]))
    assert (small["storageType"], one["storageType"], other["storageType"]) == ("i", "u", "u")
    (tmp_path / file.name).write_bytes(file.content)
    assert [read(LocalDisk(tmp_path), said).tolist() for said in (small, one, other)] == [SPREAD, MANY, MANY[::3]]
    assert [said["cardinality"] for said in (small, one, other)] == [len(SPREAD), len(MANY), len(MANY[::3])]


def test_nothing_is_written_where_all_vectors_are_small():
    file = VectorFile()
    file.add(np.array(SPREAD, np.int64))
    assert file.content == b""


@pytest.mark.parametrize("at", [0, 3, 20])
def test_a_file_that_holds_something_else_is_told(tmp_path, at):
    file = VectorFile()
    said = file.add(np.array(MANY, np.int64))
    broken = bytearray(file.content)
    broken[said["offset"] + at] ^= 1
    (tmp_path / file.name).write_bytes(bytes(broken))
    with pytest.raises(ValueError, match="deletion vector"):
        read(LocalDisk(tmp_path), said)


@pytest.mark.parametrize("said", [{"storageType": "p", "pathOrInlineDv": "/etc/passwd"}, EXAMPLE])
def test_a_vector_in_another_folder_is_not_read(tmp_path, said):
    prefixed = {**said, "pathOrInlineDv": "../" + said["pathOrInlineDv"][2:]} if said is EXAMPLE else said
    with pytest.raises(ValueError, match="another place"):
        read(LocalDisk(tmp_path), {"sizeInBytes": 40, "cardinality": 6, **prefixed})
