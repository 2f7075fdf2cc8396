"""How far a position is behind: by files, by GTIDs of either server, and until log expires."""

from __future__ import annotations

import pytest
from cdcworker.connectors.mysql.gtid.executed import parse_gtids
from cdcworker.connectors.mysql.source.log_lag import LogLag, bytes_behind, transactions_behind
from cdcworker.connectors.mysql.source.position import FilePlace

UUID, OTHER = "3e11fa47-71ca-11e1-9e33-c80aa9429562", "4e11fa47-71ca-11e1-9e33-c80aa9429562"
FILES = {"log.000009": 100, "log.000010": 200, "log.000011": 300}


@pytest.mark.parametrize(
    ("place", "count"),
    [
        (FilePlace("log.000011", 300), 0),
        (FilePlace("log.000011", 4), 296),
        (FilePlace("log.000009", 40), 560),
        (FilePlace("log.000008", 40), 600),
        (FilePlace("log.000012", 40), 0),
    ],
)
def test_the_rest_of_a_file_and_the_files_behind_it_wait(place, count):
    assert bytes_behind(place, FILES) == count


@pytest.mark.parametrize(
    ("read", "there", "is_mariadb", "count"),
    [
        ("0-1-5,1-1-7", "0-2-9,1-1-7", True, 4),
        ("", "0-1-3,5-1-2", True, 5),
        ("0-1-9", "0-1-5", True, 0),
        (f"{UUID}:1-5", f"{UUID}:1-5:7-9,{OTHER}:1", False, 4),
        (f"{UUID}:1-9", f"{UUID}:1-5", False, 0),
    ],
)
def test_transactions_that_are_there_and_were_not_read_are_counted(read, there, is_mariadb, count):
    found = [parse_gtids(text, is_mariadb=is_mariadb) for text in (read, there)]
    assert transactions_behind(*found) == count


def test_log_expires_while_something_waits_that_was_committed_long_ago():
    behind = LogLag(100, 3, 1000, read_s=1_000.0)
    assert behind.expires_in(600, 1_100.0) == 500
    assert behind.expires_in(600, 9_000.0) == 0
    assert behind.expires_in(0, 1_100.0) is None
    assert LogLag(100, 0, 1000, 1_000.0).expires_in(600, 1_100.0) is None
    assert LogLag(100, None, 1000, 1_000.0).expires_in(600, 1_100.0) == 500
    assert LogLag(None, None).is_behind is False
    assert behind.numbers(600, 1_100.0) == {"lag_transactions": 3, "binlog_bytes": 1000, "binlog_expires_in_s": 500}
