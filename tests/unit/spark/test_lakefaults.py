"""Tables whose files are broken."""

from __future__ import annotations

import json

import pytest
from cdcworker.connectors.spark.errors import from_lake, is_of_files
from cdcworker.connectors.spark.lakefaults import FORGET_S, TRIES, WAIT_S, Faults
from cdcworker.connectors.spark.laketables import Place
from cdcworker.connectors.spark.paused import RETRY_S_MIN, PausedTables
from cdcworker.schemas.errors import CdcError
from pyspark.errors import AnalysisException, PySparkException

MISSING = PySparkException("Job aborted: java.io.FileNotFoundException: /srv/lake/s/t/a.parquet")
ONE, OTHER = "shop.public.one", "shop.public.other"
PLACE = Place("public", "one")


class World:
    def __init__(self):
        self.now = 0.0
        self.faults = Faults(lambda: self.now)

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
