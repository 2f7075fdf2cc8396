"""What users of other sources complain about, and each way to lose a position: the tests that show it is not so here."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from . import proofs

PYTEST = Path(sys.executable).parent / "pytest"
SOURCE, EVENTS, SAFETY = (
    f"integration/connectors/postgres/{name}.py"
    for name in ("source/test_task", "source/test_events", "doctor/test_position_checks")
)
PROOFS = {
    "an idle slot fills the disk": (SOURCE, "test_an_idle_table_does_not_hold_the_log_back"),
    "a lost slot kills the connector": (
        SAFETY, "test_a_lost_position_is_made_good_by_reading_all_rows_again_where_that_is_wanted",
    ),
    "loss at a restart": ("integration/connectors/postgres/source/test_crash_matrix.py", "test_a_sample_of_crashes_leaves_exactly_what_the_witness_saw"),
    "duplicates after a crash": (SOURCE, "test_restarts_at_any_batch_lose_nothing_and_repeat_nothing"),
    "a failover needs people": (
        "integration/connectors/postgres/server/test_failover_slots.py", "test_after_a_failover_the_stream_goes_on_where_it_was",
    ),
    "a snapshot starts from zero": (
        "integration/connectors/postgres/snapshot/test_snapshot_jobs.py", "test_it_goes_on_at_the_next_worker_and_its_progress_can_be_read_all_the_time",
    ),
    "a snapshot is one reader": (
        "integration/connectors/postgres/snapshot/test_snapshots.py", "test_a_large_table_is_read_by_several_connections_in_ranges",
    ),
    "a table cannot be added": (
        "integration/connectors/postgres/snapshot/test_snapshots.py", "test_a_new_table_is_published_and_loaded_while_the_stream_goes_on",
    ),
    "unsent values break sinks": (SOURCE, "test_unsent_toast_values_are_marked_and_taken_from_a_full_identity"),
    "replica identities surprise": (EVENTS, "test_each_replica_identity_gives_the_old_row_that_it_holds"),
    "large transactions fill the memory": (
        "integration/connectors/postgres/source/test_large_memory.py", "test_a_transaction_of_any_size_needs_little_memory_and_survives_a_kill",
    ),
    "one bad row stops all": (
        "integration/connectors/postgres/source/test_table_quarantine.py", "test_a_table_with_a_value_that_has_no_form_is_held_back_and_comes_back_whole",
    ),
    "one source is one task": (
        "integration/connectors/postgres/source/test_topics.py", "test_with_two_slots_one_task_is_killed_and_every_change_is_there_once",
    ),
    "bad configs start": (SOURCE, "test_a_live_check_names_the_key_and_the_code"),
    "snapshot and stream differ": (
        "integration/connectors/postgres/types/test_types.py", "test_snapshot_and_stream_and_the_server_agree_on",
    ),
    "a snapshot on demand gets lost or cannot be stopped": (
        "integration/connectors/postgres/snapshot/test_snapshots.py", "test_a_table_is_read_once_more_beside_the_stream_paused_killed_and_cancelled",
    ),
    "a snapshot needs to write into the source": (
        "integration/connectors/postgres/server/test_roles.py", "test_a_source_with_this_role_takes_a_snapshot_and_the_stream_and_goes_on_after_a_kill",
    ),
    "a history of schemas gets damaged": (
        "unit/schemas/test_log.py", "test_a_record_that_cannot_be_trusted_is_set_aside_with_a_reason",
    ),
    "a schema change is met too early or too late": (
        "integration/connectors/postgres/source/test_table_quarantine.py", "test_every_schema_change_is_followed_with_the_right_rows_on_both_sides",
    ),
    "a rebalance stops the world": (
        "integration/coordinator/kafka/test_coordination.py", "test_a_worker_that_joins_takes_its_part_and_no_other_task_restarts",
    ),
    "it cannot be monitored": ("unit/worker/rest/resources/monitoring/test_metrics.py", "test_every_documented_metric_is_seen_to_change"),
    "tables have no numbers of their own": (
        "unit/worker/rest/resources/monitoring/test_metrics.py", "test_tables_have_series_of_their_own_up_to_a_bound",
    ),
    "there is nothing to look at": ("unit/worker/cli/render/test_top.py", "test_everything_of_a_busy_cluster_fits"),
    "special values are lost or absurd": (
        "unit/connectors/postgres/types/test_text_values.py", "test_special_numbers_have_forms_of_their_own",
    ),
    "it needs a JVM": ("unit/house/test_image.py", "test_a_worker_without_spark_runs_all_other_connectors_and_says_so"),
    "an open transaction holds up others": (
        "integration/connectors/postgres/source/test_open_transactions.py",
        "test_the_start_of_a_task_waits_for_no_open_transaction_but_its_own_new_slot_does",
    ),
    "operations leave the publication": (
        SAFETY, "test_an_operation_that_leaves_the_publication_halts_and_no_row_is_wrong_once_it_is_back",
    ),
    "slot missing": (SOURCE, "test_a_missing_slot_halts"),
    "slot recreated": (SOURCE, "test_a_recreated_slot_halts"),
    "slot advanced": (SOURCE, "test_an_advanced_slot_halts"),
    "slot lost its log": (SOURCE, "test_a_slot_that_lost_its_log_halts"),
    "other server": (SOURCE, "test_another_servers_position_halts"),
    "restored server": (SAFETY, "test_a_server_whose_log_ends_before_the_position_was_restored"),
    "slot of another kind": (SOURCE, "test_a_slot_of_another_kind_is_refused"),
}  # fmt: skip
NOT_HERE = {
    "a history of DDL statements": "pgoutput describes each relation before its first row: there is no DDL to parse and to keep",
    "DDL as events of its own": "an event trigger in the source would have to be installed for it: a seam, not built yet",
    "a web page": "`cdcworker top`, the REST API and a Grafana board show the same",
}
"""Parts of complaints that no test can show, and why."""


@pytest.fixture(scope="module")
def collected() -> set[tuple[str, str]]:
    """File and function of each test of these files that the long tier would run; without those for which there are no parameters."""
    files = sorted({f"tests/{file}" for file, _ in PROOFS.values()})
    argv = [PYTEST, "--collect-only", "-q", "-p", "no:cacheprovider", "-m", "long or not long", *files]
    done = subprocess.run(argv, cwd=proofs.ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:]
    found = re.findall(r"^tests/(\S+?\.py)::(?:\w+::)?(\w+)(\[.*)?$", done.stdout, re.MULTILINE)
    return {(file, name) for file, name, case in found if not case.startswith("[NOTSET")}


@pytest.mark.parametrize("what", PROOFS)
def test_each_complaint_has_a_test_that_is_run_and_can_fail(what: str, collected: set[tuple[str, str]]) -> None:
    assert PROOFS[what] in collected
    file, name = PROOFS[what]
    proof = proofs.find(f"tests/{file}", name)
    assert not proof.is_skipped()
    assert proof.can_fail()


@pytest.mark.parametrize(
    ("text", "skipped", "fails"),
    [
        ("def test_it():\n    assert f()", False, True),
        ("def test_it():\n    run()\ndef run():\n    with pytest.raises(E):\n        f()", False, True),
        ("def test_it():\n    f()", False, False),
        ("@pytest.mark.skipif(True, reason='')\ndef test_it():\n    assert f()", True, True),
        ("pytestmark = [pytest.mark.kafka, pytest.mark.skip]\ndef test_it():\n    assert f()", True, True),
        ("@pytest.mark.skip\nclass TestIt:\n    def test_it(self):\n        assert f()", True, True),
        ("def test_it():\n    pytest.skip('later')\n    assert f()", True, True),
        ("def test_it():\n    if old():\n        pytest.skip('new servers')\n    assert f()", False, True),
    ],
)
def test_a_test_that_is_never_run_or_cannot_fail_is_told_from_one_that_is_and_can(text, skipped, fails) -> None:
    (proof,) = proofs.every(ast.parse(text), "test_it")
    assert (proof.is_skipped(), proof.can_fail()) == (skipped, fails)


def test_what_is_left_out_has_a_reason_and_no_test() -> None:
    assert all(len(reason) > 20 for reason in NOT_HERE.values())
    assert not NOT_HERE.keys() & PROOFS.keys()
