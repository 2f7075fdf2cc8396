"""Paths of requests: segments stay as the client sent them."""

from __future__ import annotations

import pytest
from cdcworker.worker.http.paths import encode_segment, split_path


@pytest.mark.parametrize(
    ("raw", "segments"),
    [
        (b"/connectors/a", ["connectors", "a"]),
        (b"/connectors/a/", ["connectors", "a"]),
        (b"/connectors/a%2Fb/status?x=/y", ["connectors", "a/b", "status"]),
        (b"/connectors/%2E%2E", ["connectors", ".."]),
        (b"http://proxy:8083/connectors/a", ["connectors", "a"]),
        (b"/connectors//", ["connectors", ""]),
        (b"/", [""]),
        (b"/%ff", None),
    ],
)
def test_a_path_is_split_before_it_is_decoded(raw, segments):
    assert split_path({"raw_path": raw, "path": ""}) == segments


def test_without_a_raw_path_the_decoded_one_is_taken():
    assert split_path({"path": "/connectors/ä"}) == ["connectors", "ä"]


@pytest.mark.parametrize("name", [".", "..", "a/b", "ä b", "50%", "a?b#c", "x;y"])
def test_any_name_is_one_segment_and_arrives_as_it_was(name):
    encoded = encode_segment(name)
    assert not {"/", "?", "#"} & {*encoded}
    assert encoded not in (".", "..")
    assert split_path({"raw_path": f"/connectors/{encoded}/status".encode(), "path": ""}) == [
        "connectors",
        name,
        "status",
    ]
