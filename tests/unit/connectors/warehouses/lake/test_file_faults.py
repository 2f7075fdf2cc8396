"""Tables whose files are broken."""

from __future__ import annotations

import contextlib
import json

import pytest
from cdcworker.connectors.sink_engine.paused_tables import RETRY_S_MIN, PausedTables
from cdcworker.connectors.sink_errors import from_lake, is_of_files
from cdcworker.connectors.warehouses.lake.file_faults import FORGET_S, TRIES, WAIT_S, FileFaults
from cdcworker.connectors.warehouses.lake.tables import LakeName, TableVersion
from cdcworker.connectors.warehouses.lake.writer import LakeWriter
from cdcworker.connectors.warehouses.table_state import Manifest
from cdcworker.schemas.errors import CdcError
from pyspark.errors import AnalysisException, PySparkException

MISSING = PySparkException("Job aborted: java.io.FileNotFoundException: /srv/lake/s/t/a.parquet")
ONE, OTHER = "shop.public.one", "shop.public.other"
PLACE = LakeName("public", "one")


class World:
    def __init__(self):
        self.now = 0.0
        self.faults = FileFaults(lambda: self.now)

    def fail(self, exc=MISSING, topic=ONE, after=WAIT_S / (TRIES - 1)):
        self.now += after
        with pytest.raises(Exception) as caught, self.faults.of(topic, PLACE):
            raise exc
        return caught.value.code if isinstance(caught.value, CdcError) else type(caught.value)


@pytest.fixture
def world():
    return World()


AWAY, DENIED, BROKEN = "spark.target_unreachable", "spark.target_auth", "spark.target_broken"
BY = "Caused by:"
IO = "org.apache.iceberg.exceptions.RuntimeIOException"
OPEN = f"{IO}: Failed to open input stream for file: /lake/t/m.avro {BY}"
UNREAD = "[FAILED_READ_FILE.NO_HINT] Encountered error while reading file /lake/t/x.parquet."
MISSED = "java.io.FileNotFoundException: /lake/t/x.parquet"
JSON = "com.fasterxml.jackson.core.JsonParseException: Unexpected character"


@pytest.mark.parametrize(
    "exc",
    [
        MISSING,
        PySparkException("[FAILED_READ_FILE.FILE_NOT_EXIST] Encountered error while reading file"),
        PySparkException(
            "org.apache.iceberg.exceptions.NotFoundException: Failed to open input stream for file: /m.avro"
        ),
        PySparkException("[DELTA_TRUNCATED_TRANSACTION_LOG] /t/_delta_log/0.json: Unable to reconstruct state"),
        PySparkException("com.fasterxml.jackson.core.JsonParseException: Unexpected character"),
        PySparkException(
            f"{IO}: Failed to read file: /v3.metadata.json {BY} com.fasterxml.jackson.core.JsonParseException"
        ),
        PySparkException(
            f"{IO}: Failed to read file: /v3.gz.metadata.json {BY} java.util.zip.ZipException: Not in GZIP format"
        ),
        PySparkException(f"{UNREAD} {BY} java.lang.RuntimeException: /x.parquet is not a Parquet file"),
        PySparkException(f"{UNREAD} {BY} java.io.EOFException: Reached the end of stream with 4 bytes left to read"),
        AnalysisException("[DELTA_MISSING_PART_FILES] /t/_delta_log"),
        json.JSONDecodeError("Expecting value", "4111-secret", 0),
    ],
)
def test_a_file_that_is_missing_is_waited_for_a_little_and_then_its_table_is_broken(world, exc):
    assert [world.fail(exc) for _ in range(TRIES)] == [AWAY] * (TRIES - 1) + [BROKEN]
    # From now on at once, until it is read.
    assert world.fail(exc) == BROKEN
    assert world.fail(exc, OTHER) == AWAY
    world.faults.over(ONE)
    assert world.fail(exc) == AWAY


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (f"{OPEN} java.net.ConnectException: Connection refused", AWAY),
        (f"{OPEN} java.net.UnknownHostException: store.local", AWAY),
        (f"{OPEN} java.io.IOException: Stale file handle", AWAY),
        (f"{OPEN} org.apache.hadoop.security.AccessControlException: Permission denied", DENIED),
        (f"{UNREAD} {BY} java.net.SocketTimeoutException: Read timed out", AWAY),
        (f"{UNREAD} {BY} java.net.SocketException: Connection reset", AWAY),
        (f"{UNREAD} {BY} java.nio.file.AccessDeniedException: s3a://b/x: 403 Forbidden", DENIED),
        (f"{UNREAD} {BY} S3Exception: Forbidden (Service: S3, Status Code: 403, Request ID: 1)", DENIED),
        (f"{UNREAD} {BY} S3Exception: Slow Down (Service: S3, Status Code: 503, Request ID: 1)", AWAY),
        (f"{UNREAD} {BY} java.io.EOFException: Premature end of Content-Length delimited message body", AWAY),
        (f"{UNREAD} {BY} {MISSED} (Input/output error)", AWAY),
        (f"{MISSED} (Too many open files)", AWAY),
        (f"{MISSED} (Permission denied)", AWAY),
        (f"{MISSED} (Stale file handle)", AWAY),
        ("java.io.EOFException: End of File Exception between local host is: a; destination host is: nn:8020", AWAY),
        (f"{JSON} ('<' (code 60)): expected a valid value", AWAY),
        (f"{JSON} ('u' (code 117)) at org.apache.iceberg.rest.HTTPClient.execute(HTTPClient.java:200)", AWAY),
        (f"org.apache.iceberg.exceptions.ServiceFailureException: Server error: {MISSED}", AWAY),
        (f"org.apache.iceberg.exceptions.RESTException: Unable to process: {JSON}", AWAY),
        (f"CommitFailedException: {MISSED}", "spark.ledger_moved"),
    ],
)
def test_what_keeps_the_files_from_being_looked_at_is_no_fault_of_theirs(world, text, code):
    exc = PySparkException(text)
    assert not is_of_files(exc)
    assert from_lake(exc).code == code
    assert {world.fail(exc) for _ in range(2 * TRIES)} == {PySparkException}


def test_the_error_names_the_table_and_no_file_and_no_value(world):
    for exc in (MISSING, json.JSONDecodeError("Expecting value", "4111-secret", 0)):
        with pytest.raises(CdcError) as caught, world.faults.of(ONE, PLACE):
            raise exc
        assert caught.value.where == {"topic": ONE, "table": "public.one"}
        assert "/srv" not in str(caught.value)
        assert "4111" not in str(caught.value)


def test_many_tries_in_a_moment_and_faults_of_other_days_are_no_broken_table(world):
    assert {world.fail(after=WAIT_S / 100) for _ in range(5 * TRIES)} == {AWAY}
    for _ in range(3 * TRIES):
        assert world.fail(after=FORGET_S + 1) == AWAY


@pytest.mark.parametrize(
    "exc", [AnalysisException("[UNRESOLVED_COLUMN] `a`"), KeyError("a"), PySparkException("other")]
)
def test_what_is_not_said_of_files_stays_as_it_is(world, exc):
    assert world.fail(exc) is type(exc)
    with pytest.raises(type(exc)):
        world.faults.aside(PLACE, exc)
    world.faults.aside(PLACE, MISSING)


def test_a_broken_table_is_claimed_and_read_again_when_its_time_has_come():
    now = [0.0]
    paused, claims, broken = PausedTables(True, lambda: now[0]), [], [ONE]

    def claim(topics):
        claims.append(list(topics))
        for topic in topics:
            if topic in broken:
                raise CdcError(BROKEN, "files", where={"topic": topic})

    paused.claim(claim, [ONE, OTHER])
    assert claims == [[ONE, OTHER], [OTHER]]
    assert paused.reading([ONE, OTHER]) == [OTHER]
    now[0] += RETRY_S_MIN
    broken.clear()
    paused.claim(claim, paused.reading([ONE, OTHER]))
    assert claims[2:] == [[ONE, OTHER]]
    with pytest.raises(CdcError):
        PausedTables(False).claim(lambda _: claim([broken.append(ONE) or ONE]), [ONE])


class Lake:
    """Tables by their places: a state, or what reading it raises."""

    def __init__(self, tables):
        self.tables = tables

    def open(self, session):
        pass

    def places(self):
        return list(self.tables)

    def load(self, place):
        found = self.tables[place]
        if isinstance(found, Exception):
            raise found
        return TableVersion(found, {})


class Session:
    def __init__(self):
        self.conf = self

    def newSession(self):
        return self

    def set(self, name, value):
        pass


@pytest.mark.parametrize(
    ("broken", "topics", "code"),
    [
        # Where a topic's table lies is not told by its name.
        ([LakeName("elsewhere", "all")], [ONE], BROKEN),
        ([LakeName("elsewhere", "all"), LakeName("elsewhere", "more")], [ONE, OTHER], BROKEN),
        # One of them is not there at all.
        ([LakeName("elsewhere", "all")], [ONE, OTHER], "spark.target_gone"),
        ([], [ONE], "spark.target_gone"),
    ],
)
def test_a_broken_table_whose_topic_is_not_told_by_its_place_holds_back_what_it_may_be_of(
    monkeypatch, broken, topics, code
):
    third = "shop.public.third"
    lake = Lake(
        {
            LakeName("public", "third"): Manifest("sink", third, (1, 0), offsets={"0": 5}),
            **dict.fromkeys(broken, MISSING),
        }
    )
    writer = LakeWriter(lake, "sink")
    writer.attach(Session)
    writer.expect([*topics, third])
    writer.fence((1, 0))
    now, paused = [0.0], PausedTables(True)
    monkeypatch.setattr(writer._faults, "_clock", lambda: now[0])
    monkeypatch.setattr(writer._side, "forget_letters", lambda *_: None)
    raised = []
    for _ in range(TRIES * len(topics)):
        with contextlib.suppress(CdcError):
            paused.claim(lambda asked: told(writer.claim, asked, raised), [*topics, third])
        now[0] += WAIT_S
    assert raised[-1].code == code
    assert {error.where["topic"] for error in raised} <= set(topics)
    assert paused.topics == (set(topics) if code == BROKEN else set())
    if code == BROKEN:
        assert {error.where["table"] for error in raised} == {", ".join(map(".".join, broken))}
        assert writer.ledger() == {(third, 0): 5}


def told(work, asked, raised):
    try:
        work(asked)
    except CdcError as exc:
        raised.append(exc)
        raise


def test_a_table_known_to_be_another_topics_is_no_excuse_for_one_that_is_gone(world):
    for _ in range(TRIES):
        world.fail()
    world.faults.aside(PLACE, MISSING)
    with pytest.raises(CdcError) as caught:
        world.faults.missing([OTHER])
    assert caught.value.code == "spark.target_gone"
    found = LakeName("elsewhere", "all")
    for _ in range(TRIES):
        world.now += WAIT_S
        world.faults.aside(found, MISSING)
        with pytest.raises(CdcError) as caught:
            world.faults.missing([OTHER])
    assert (caught.value.code, caught.value.where["table"]) == (BROKEN, "elsewhere.all")
    # It may be that of one topic only.
    with pytest.raises(CdcError) as caught:
        world.faults.missing(["shop.public.third"])
    assert caught.value.code == "spark.target_gone"
