"""Each deliberate difference of docs/migration/differences.md has its reason, and tests that show it."""

from __future__ import annotations

import re
from typing import Final

import pytest

from tests.genuine import deliberate
from tests.integration.connectors.mysql import debezium_deliberate as of_mysql

from . import proofs

PAGE: Final = (proofs.ROOT / "docs/migration/differences.md").read_text()
ROW: Final = re.compile(r"^\| (?!what \|)(.+?) \| (.+?) \| (.+?) \| (.+?) \|$", re.MULTILINE)
ROWS: Final = [match.groups() for match in ROW.finditer(PAGE)]

KEYS: Final = "unit/connectors/postgres/config/test_debezium_keys.py"
DEFAULTS: Final = (f"{KEYS}::test_every_default_that_differs_is_among_the_deliberate_differences",)
KNOWN: Final = (
    f"{KEYS}::test_each_of_debeziums_keys_is_known",
    "unit/connectors/postgres/config/test_posted_configs.py::test_a_posted_config_is_accepted_and_says_what_has_no_effect",
)
CONNECTORS: Final = "unit/worker/rest/resources/test_connectors.py"
DATABASE: Final = "integration/worker/offsets/test_source_database.py"
POSITIONS: Final = "integration/connectors/postgres/doctor/test_position_checks.py"
SNAPSHOTS: Final = "integration/connectors/postgres/snapshot/test_snapshots.py"
EVENTS: Final = "integration/connectors/postgres/source/test_events.py"
TRANSFORMS: Final = "unit/connectors/transform_chain/test_encoder.py"
TASK: Final = "integration/connectors/postgres/source/test_task.py"
GENUINE: Final = (
    "integration/worker/rest/test_genuine_answers.py"
    "::test_ours_answers_as_the_genuine_one_but_for_what_is_other_on_purpose",
)
BESIDE_DEBEZIUM: Final = (
    "integration/connectors/mysql/source/test_beside_debezium.py::test_the_same_statements_make_the_same_records",
)
UNAVAILABLE: Final = (
    "unit/connectors/postgres/config/test_posted_configs.py::test_what_is_not_available_is_refused_by_name"
)

SHOWN_BY: Final[dict[str, tuple[str, ...]]] = {
    # Defaults
    "`plugin.name`": DEFAULTS,
    "`publication.autocreate.mode`": DEFAULTS,
    "`skipped.operations`": DEFAULTS,
    "`slot.failover`": (
        *DEFAULTS,
        f"{POSITIONS}::test_a_new_slot_follows_failovers_unless_that_is_not_wanted",
    ),
    "`snapshot.max.threads`": DEFAULTS,
    "`snapshot.lock.timeout.ms`": DEFAULTS,
    "`extended.headers.enabled`": DEFAULTS,
    "`exactly.once.source.support`": (
        "unit/worker/config/test_worker_properties.py"
        "::test_connects_names_are_accepted_and_unknown_ones_warned_about_with_the_nearest",
    ),
    "topics that are missing": (
        "unit/connectors/config/test_topic_creation.py::test_what_connect_refuses_is_refused_by_the_name_of_its_key",
        "unit/connectors/config/test_topic_creation.py::test_a_topic_is_created_as_its_group_says",
    ),
    "`listeners`": (
        "unit/worker/config/test_worker_properties.py::test_a_listener_open_to_the_network_needs_an_explicit_word",
    ),
    # REST API
    "malformed JSON, wrong types": (f"{CONNECTORS}::test_malformed_json_is_400_with_its_place",),
    "409": (f"{CONNECTORS}::test_no_leader_is_409_with_a_reason",),
    "errors": (
        "unit/worker/rest/test_error_members.py::test_an_error_of_connects_routes_has_its_members_alone",
        "unit/worker/rest/test_error_members.py::test_who_asks_for_details_gets_the_code_too",
        *GENUINE,
    ),
    "secrets on read": (
        f"{CONNECTORS}::test_keeps_the_secret_behind_a_mask",
        "unit/worker/rest/test_configs_as_written.py"
        "::test_only_admins_of_the_connector_read_its_secrets_and_the_audit_tells",
    ),
    "headers and bodies of answers": GENUINE,
    "`version` of `GET /`": (
        "unit/worker/rest/test_routing.py::test_the_root_tells_an_api_version_that_clients_understand",
    ),
    "a body without a content type": GENUINE,
    "`null` as a value of a config": GENUINE,
    "errors about a config": GENUINE,
    "`PATCH` of a config with another `name`": GENUINE,
    "`GET /connectors/{connector}/tasks-config`": GENUINE,
    "`task.class` in `GET /connectors/{connector}/tasks`": GENUINE,
    "restart of a task of a stopped connector": GENUINE,
    "`file` of the file connectors": GENUINE,
    "values of a config": GENUINE,
    "`exactly.once.support=required` of the file source": GENUINE,
    "definitions of keys": GENUINE,
    "offsets and topics of the file connectors": GENUINE,
    "offsets of a PostgreSQL source": (
        "unit/connectors/postgres/test_rules.py::test_a_stored_position_comes_back_and_ignores_what_it_does_not_know",
        "unit/worker/offsets/test_offsets.py::test_a_position_that_no_task_could_start_from_is_refused",
    ),
    "unknown keys of a config": (
        f"{CONNECTORS}::test_the_refusal_of_an_unknown_key_names_the_property_that_takes_it",
        f"{CONNECTORS}::test_a_worker_with_warn_takes_and_keeps_an_unknown_key",
    ),
    "a class that is not built in": (f"{CONNECTORS}::test_an_unknown_class_lists_names_only",),
    "`DELETE /connectors/{connector}`": (
        f"{DATABASE}::test_a_deleted_connector_says_what_it_leaves",
        f"{DATABASE}::test_slot_and_publication_are_dropped_once_the_task_has_ended",
    ),
    "`PATCH …/offsets` of a source": (
        f"{DATABASE}::test_a_position_that_the_server_has_given_up_is_refused_when_it_is_written",
        f"{DATABASE}::test_where_the_database_is_away_a_position_is_taken_with_a_warning",
    ),
    "`PATCH …/offsets` of a sink": (
        "unit/worker/offsets/test_offsets.py::test_an_offset_behind_the_end_is_refused_and_nothing_is_altered",
    ),
    "a worker that is starting": (
        "unit/worker/rest/test_starting_worker.py"
        "::test_what_depends_on_the_cluster_is_not_answered_before_its_logs_are_read",
    ),
    "many requests, large configs": (
        "unit/worker/security/test_rate_limit.py::test_each_user_has_a_rate_of_its_own",
        "security/test_config_limits.py::test_what_is_too_large_is_refused_wherever_it_is_sent",
    ),
    "failed tasks": (
        "unit/coordinator/core/test_restart_policy.py"
        "::test_after_its_budget_a_task_is_quarantined_with_its_cause_until_a_person_restarts_it",
    ),
    "a task whose database is away": (
        "unit/worker/rest/resources/monitoring/test_metrics.py::test_a_task_that_tries_again_is_running_and_its_tries_are_shown",
    ),
    "a change of one connector": (
        "unit/coordinator/core/test_herd_changes.py::test_a_config_change_restarts_only_the_tasks_of_its_connector",
    ),
    "config, offset and status topics": (
        "contract/backends.py::test_a_worker_of_another_cluster_does_not_start_on_this_ones_log",
    ),
    "internal topics": (
        "integration/coordinator/kafka/test_coordination.py"
        "::test_internal_topics_are_made_once_and_taken_as_they_are_afterwards",
        "integration/coordinator/kafka/test_coordination.py::test_a_coordination_topic_with_a_record_is_refused",
    ),
    "a standalone mode": ("integration/worker/cli/test_start.py::test_a_worker_comes_up_and_ends_when_told",),
    "`config.providers`": (
        "unit/worker/protocol/test_task_parts.py::test_references_are_replaced_inside_of_values",
        "unit/worker/protocol/test_task_parts.py::test_what_is_not_allowed_is_refused_by_key_and_without_content",
    ),
    "client settings of Kafka": (
        "unit/coordinator/kafka/test_clients.py"
        "::test_java_properties_without_a_counterpart_have_no_effect_and_renamed_ones_keep_theirs",
    ),
    "converters, transforms": (UNAVAILABLE,),
    "transforms of heartbeats and of transaction metadata": (
        f"{TRANSFORMS}::test_records_beside_those_of_tables_are_not_transformed",
    ),
    "the timestamp of a record in transforms": (
        f"{TRANSFORMS}::test_a_topic_by_the_time_is_registered_under_its_name",
    ),
    "dead letters of warehouses": ("contract/dead_letters.py::test_letters_come_back_as_rows_and_are_gone",),
    "offsets of sinks": (
        "integration/connectors/sink_engine/test_pump.py"
        "::test_changes_reach_the_warehouse_and_the_next_run_goes_on_from_the_ledger",
        "integration/connectors/sink_engine/kafka/test_written_tables.py"
        "::test_a_broker_keeps_offsets_with_their_note_in_a_group_that_nobody_joins",
    ),
    "JMX": (
        "unit/worker/rest/resources/monitoring/test_metrics.py::test_boards_for_connect_and_debezium_find_their_names",
    ),
    # Capture
    "a slot or server that does not fit the stored position": (
        f"{POSITIONS}::test_a_server_whose_log_ends_before_the_position_was_restored",
        f"{POSITIONS}::test_a_lost_position_is_made_good_by_reading_all_rows_again_where_that_is_wanted",
    ),
    "a heartbeat table": (f"{TASK}::test_an_idle_table_does_not_hold_the_log_back",),
    "`snapshot.mode`": (
        f"{SNAPSHOTS}::test_modes_say_when_rows_are_read",
        f"{KEYS}::test_values_are_read_without_regard_to_case",
    ),
    "snapshots": (f"{SNAPSHOTS}::test_a_table_is_read_once_more_beside_the_stream_paused_killed_and_cancelled",),
    "a start amid the rows of `snapshot.mode=always`": (
        f"{SNAPSHOTS}::test_a_restart_amid_the_rows_of_a_start_goes_on_with_them",
    ),
    "signals": (f"{SNAPSHOTS}::test_signals_of_debezium_begin_and_stop_snapshots",),
    "`surrogate-key` of a signal": (
        "unit/connectors/capture/stream/test_signal_table.py::test_a_surrogate_key_is_said_to_be_left_out",
    ),
    "`source.snapshot` of rows": (f"{TASK}::test_rows_come_first_and_changes_after_them",),
    "a table that cannot be delivered": (
        "integration/connectors/postgres/source/test_table_quarantine.py"
        "::test_a_table_with_a_value_that_has_no_form_is_held_back_and_comes_back_whole",
    ),
    "a row that a topic refuses": (
        "integration/worker/source/test_table_quarantine.py"
        "::test_a_row_too_large_holds_its_table_back_until_the_config_is_changed",
    ),
    "a table without a key": (f"{TASK}::test_a_table_without_a_key_is_read_whole_and_started_again_after_a_kill",),
    "a source for which no table is found": (
        "integration/connectors/postgres/doctor/test_checks.py::test_a_pattern_without_a_table_and_no_table_at_all",
    ),
    "prepared transactions": (
        "integration/connectors/postgres/server/test_failover_slots.py"
        "::test_a_prepared_transaction_is_handed_on_when_it_commits",
        f"{POSITIONS}::test_a_slot_of_prepared_transactions_is_refused",
    ),
    "regular expressions": (
        "unit/schemas/test_patterns.py::test_what_has_no_bound_is_refused_with_what_to_write_instead",
    ),
    "`errors.tolerance`": ("unit/connectors/postgres/test_rules.py::test_a_wrong_key_is_named",),
    "queue and retry keys (`max.queue.size`, `errors.max.retries` …)": KNOWN,
    "`lsn.flush.mode`, `flush.lsn.source`, `offset.mismatch.strategy`": KNOWN,
    "`schema.name.adjustment.mode` and the like": (
        "unit/schemas/test_topics.py::test_two_names_never_share_an_escaped_form",
    ),
    "notifications, OpenLineage": KNOWN,
    # Records
    "the `source` block": (
        "integration/connectors/postgres/config/test_posted_configs.py"
        "::test_posted_configurations_write_what_debezium_writes",
    ),
    "`txId` and `sequence` in `source` of rows of a snapshot": (
        f"{TASK}::test_rows_come_first_and_changes_after_them",
    ),
    "a large value that was not sent again": (
        "unit/schemas/test_encode.py"
        "::test_unchanged_values_are_listed_in_a_header_and_carry_the_placeholder_where_the_type_has_one",
    ),
    "`NaN` and infinities of `numeric`": (
        "unit/connectors/postgres/types/test_bounded_values.py"
        "::test_what_is_no_number_is_null_and_the_greatest_number_where_null_is_not_allowed",
    ),
    "infinite and far dates and times, `24:00:00`": (
        "integration/connectors/postgres/types/test_out_of_range.py"
        "::test_every_value_is_read_as_the_nearest_that_readers_have",
    ),
    "columns of the key with such values": (
        "unit/connectors/postgres/types/test_keys.py::test_keys_stay_apart_in_the_key",
        "unit/connectors/postgres/types/test_keys.py::test_the_row_of_a_key_has_values_of_what_its_types_mean",
    ),
    "the key's schema": (f"{KEYS}::test_chosen_columns_name_their_source_type_in_parameters",),
    "`column.exclude.list` over a column of the key": (
        "unit/connectors/postgres/decode/test_decoder.py::test_excluded_columns_are_not_read_but_the_key_always_is",
    ),
    "`message.key.columns` with a column that a deletion does not log": (
        f"{EVENTS}::test_a_message_key_that_a_deletion_would_not_hold_is_refused",
    ),
    "`__debezium.newkey`, `__debezium.oldkey` where keys are Avro": (
        "unit/schemas/test_encode.py::test_a_key_change_is_delete_tombstone_create_with_both_keys_in_headers",
    ),
    "`column.truncate.to.N.chars` and masks with stars over text of the key": (
        "unit/connectors/capture/config/test_column_masks.py::test_a_mask_that_would_not_hide_is_refused",
    ),
    "`column.mask.*` over values that are not written as text": (
        f"{EVENTS}::test_masks_and_keys_that_cannot_be_are_found_before_the_start",
    ),
    "parameters of the source's type on records, such as `VariableScaleDecimal`": (
        f"{KEYS}::test_chosen_columns_name_their_source_type_in_parameters",
    ),
    "several tables in one topic": (
        "unit/schemas/test_format_encoder.py::test_a_route_renames_what_it_matches_and_no_two_tables_share_a_topic",
        "unit/schemas/test_format_encoder.py::test_a_table_with_other_columns_is_kept_out_of_a_shared_topic_by_name",
    ),
    "the default of a column that is a function": (
        "unit/connectors/postgres/test_rules.py::test_only_constants_are_defaults",
    ),
    "compacted topics": (
        "integration/connectors/postgres/source/test_moved_rows.py::test_what_compaction_leaves_of_a_row_is_whole",
    ),
    "`timetz`": (
        "unit/connectors/postgres/types/test_debezium_forms.py::test_a_timetz_has_no_zeros_at_the_end_of_its_fraction",
    ),
    "arrays of more dimensions": (
        "unit/schemas/test_encode.py::test_an_array_with_a_shape_of_its_own_names_it_in_a_header",
    ),
    "types without a form": (f"{TASK}::test_a_type_without_a_form_is_treated_as_the_policy_says",),
    "`column.propagate.source.type`": (
        "unit/schemas/test_envelope.py::test_columns_carry_their_source_type_and_their_identity",
    ),
    "`replace.null.with.default`": (
        "unit/connectors/postgres/config/test_posted_configs.py"
        "::test_a_posted_config_is_accepted_and_says_what_has_no_effect",
    ),
    "schema registry": (
        "integration/worker/schema_registry/test_confluent_converter.py"
        "::test_confluents_converter_reads_every_type_and_its_meaning",
    ),
    "`<topic.prefix>.watermark`": (
        "unit/worker/source/test_runner.py::test_an_idle_source_writes_a_watermark_a_second_and_no_position",
    ),
    # MySQL and MariaDB
    **dict.fromkeys(
        (
            "`snapshot`, `file` and `pos` in `source` of rows of a snapshot of MySQL",
            "`pos` in `source` inside a transaction of MariaDB",
            "`tableChanges` of schema change events",
            "schema change events of tables that stand there at the start",
            "schema change events of `CREATE INDEX` and `RENAME TABLE`, and their `thread`",
            "transaction metadata of statements about tables",
            "tombstones of tables without a key",
            "members of `enum` with a comma",
            "`uuid` of MariaDB",
            "`json` of MariaDB",
            "comments of columns",
            "the default of a `timestamp`",
        ),
        BESIDE_DEBEZIUM,
    ),
    # Metrics
    "a connector that is paused, stopped or FAILED": (
        "integration/worker/lag_probe/test_standing_tasks.py"
        "::test_a_source_that_stands_still_tells_of_what_it_does_not_read",
    ),
    "`MilliSecondsBehindSource` of an idle source": (
        "unit/worker/source/test_counters.py::test_a_source_that_waits_for_nothing_is_at_lag_0",
    ),
}
"""By the first cell of a row."""


def test_every_row_says_what_differs_and_why() -> None:
    assert len(ROWS) == sum(line.startswith("| ") for line in PAGE.splitlines()) - PAGE.count("| what |")
    assert [row[0] for row in ROWS if not row[3].endswith(".")] == []


def test_every_difference_is_shown_by_a_test_and_every_entry_is_a_difference() -> None:
    assert [row[0] for row in ROWS] == list(SHOWN_BY)


@pytest.mark.parametrize(
    "rule", [*deliberate.RULES, *deliberate.OF_REAL_WORKERS, *of_mysql.RULES], ids=lambda rule: rule.why
)
def test_every_answer_that_is_other_on_purpose_has_its_row(rule: deliberate.Rule) -> None:
    assert rule.row in SHOWN_BY


@pytest.mark.parametrize("name", sorted({name for names in SHOWN_BY.values() for name in names}))
def test_each_test_that_shows_a_difference_exists_and_can_fail(name: str) -> None:
    file, _, function = name.partition("::")
    proof = proofs.find(f"tests/{file}", function)
    assert not proof.is_skipped()
    assert proof.can_fail()
