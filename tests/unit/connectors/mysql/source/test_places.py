"""Places of the binary log as people write them."""

from __future__ import annotations

import pytest
from cdcworker.connectors.api.source import ShowsPlaces
from cdcworker.connectors.mysql.source.connector import MySqlSource
from cdcworker.connectors.mysql.source.places import has_place, parse_place, place_text, stored_place
from cdcworker.connectors.mysql.source.position import FilePlace, StoredPosition

UUID = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
SOURCE = {"gtid": "0-1-100", "file": "Log.000002", "pos": 4}


def test_the_connector_shows_places():
    assert issubclass(MySqlSource, ShowsPlaces)


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("0-1-100", "0-1-100"),
        (f" {UUID.upper()}:23 ", f"{UUID}:23"),
        (f"{UUID}:tag:23", f"{UUID}:tag:23"),
        ("Log.000002:0004", "Log.000002:4"),
    ],
)
def test_a_place_has_one_form(written, read):
    assert parse_place(written) == read
    assert parse_place(read) == read


@pytest.mark.parametrize(
    "wrong", ["", ":", "0-1", "0-1-x", "log.000002:", "log.000002:x", f"{UUID}:", "log.1:" + "1" * 30]
)
def test_what_is_no_place_is_told_in_words(wrong):
    with pytest.raises(ValueError, match="GTID"):
        parse_place(wrong)


def test_a_record_is_found_by_either_place():
    assert has_place(SOURCE, "0-1-100")
    assert has_place(SOURCE, "Log.000002:4")
    assert not has_place(SOURCE, "0-1-101")
    assert not has_place({}, "0-1-100")
    assert place_text(SOURCE) == "0-1-100 (Log.000002:4)"
    assert place_text({"gtid": None, "file": "log.1", "pos": 9}) == "log.1:9"
    assert place_text({"gtid": None, "file": "", "pos": 0}) == ""


def test_a_stored_position_tells_its_commit_and_place():
    position = StoredPosition("mariadb", "s", "0-1-100", FilePlace("log.000002", 900), 17)
    assert stored_place(position.to_json()) == (17, "0-1-100 (log.000002:900)")
    with pytest.raises(ValueError, match="GTID"):
        stored_place({"v": 1})
