"""Tables whose files are broken."""

from __future__ import annotations

import json

import pytest
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


AWAY, BROKEN = "spark.target_unreachable", "spark.target_broken"


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
