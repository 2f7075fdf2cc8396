"""What a lake raises, by the sink's codes."""

from __future__ import annotations

import pytest
from cdcworker.connectors.sink_errors import from_lake
from cdcworker.schemas.errors import CODES
from pyspark.errors import AnalysisException, PySparkException

AWAY = "spark.target_unreachable"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (AnalysisException("[TABLE_OR_VIEW_NOT_FOUND] The table or view `l`.`s`.`t` cannot be found."), AWAY),
        (AnalysisException("[PATH_NOT_FOUND] Path does not exist: /srv/lake/s/t."), AWAY),
        (PySparkException("org.apache.iceberg.exceptions.NoSuchTableException: Table does not exist"), AWAY),
        (PySparkException("org.apache.iceberg.exceptions.NoSuchNamespaceException: s"), AWAY),
        (PySparkException("Job aborted: java.io.FileNotFoundException: /srv/lake/s/t/a.parquet"), AWAY),
        (PySparkException("java.io.IOException: Mkdirs failed to create file:/srv/lake"), AWAY),
        (AnalysisException("[UNRESOLVED_COLUMN] `a`"), "spark.schema_refused"),
        (PySparkException("java.lang.ClassNotFoundException: a.B"), "spark.target_failed"),
        (PySparkException("CommitFailedException: java.io.FileNotFoundException"), "spark.ledger_moved"),
    ],
)
def test_a_table_that_is_away_is_waited_for_and_a_statement_that_is_wrong_is_not(error, code):
    found = from_lake(error, {"sink": "s"})
    assert found.code == code
    assert found.kind == CODES[code].kind
    assert "/srv" not in found.message


def test_what_is_not_the_lakes_is_left_to_others():
    assert from_lake(ValueError("a")) is None
