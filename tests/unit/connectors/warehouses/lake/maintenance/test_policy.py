"""The keys `maintenance.*`: what they say, and what is refused."""

from __future__ import annotations

import datetime as dt

import pytest
from cdcworker.connectors.spark.config import CONFIG_DEF
from cdcworker.connectors.warehouses.lake.maintenance.policy import (
    MaintenancePolicy,
    MaintenanceWindow,
    policy_of,
    window_of,
)
from cdcworker.connectors.warehouses.lake.maintenance_run import is_open

SINK = {"name": "lake", "connector.class": "spark", "topics": "shop.public.orders"}


def config(**keys):
    given = {name.replace("_", "."): value for name, value in keys.items()}
    return {**SINK, "warehouse": "iceberg", "warehouse.path": "/lake", **given}


def problems(**keys):
    return {value.name for value in CONFIG_DEF.validate(config(**keys)) if value.errors}


def test_what_is_not_given_is_the_policy_of_a_writer():
    assert policy_of(CONFIG_DEF.parse(config())) == MaintenancePolicy()


def test_keys_say_when_and_how_much():
    told = policy_of(
        CONFIG_DEF.parse(
            config(
                maintenance_interval_ms="60000",
                maintenance_window="22:00-04:30",
                maintenance_compaction_enable="false",
                maintenance_compaction_file_bytes="2000000",
                maintenance_compaction_run_bytes="9000000",
                maintenance_compaction_run_files="20",
                maintenance_expiry_enable="false",
                maintenance_expiry_age_ms="120000",
                maintenance_expiry_keep="5",
                maintenance_orphans_enable="true",
                maintenance_orphans_age_ms="7200000",
            )
        )
    )
    assert told == MaintenancePolicy(
        60, MaintenanceWindow(22 * 60, 4 * 60 + 30), False, 2_000_000, 9_000_000, 20, False, 120, 5, True, 7200
    )


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("maintenance_interval_ms", "9999"),
        ("maintenance_window", "22-04"),
        ("maintenance_window", "24:00-04:00"),
        ("maintenance_window", "04:00-04:00"),
        ("maintenance_window", "4:00-5:00"),
        ("maintenance_compaction_file_bytes", "1000"),
        ("maintenance_expiry_age_ms", "59999"),
        ("maintenance_expiry_keep", "-2"),
        ("maintenance_orphans_age_ms", "3599999"),
    ],
)
def test_a_value_that_would_harm_readers_or_means_nothing_is_refused(key, value):
    assert problems(**{key: value}) == {key.replace("_", ".")}


def test_a_run_that_could_make_no_file_is_refused():
    assert problems(maintenance_compaction_run_bytes="1048576") == {"maintenance.compaction.run.bytes"}


@pytest.mark.parametrize(
    ("window", "minutes"),
    [
        ("", {0, 719, 1439}),
        ("01:00-02:00", {60, 119}),
        ("23:00-01:00", {0, 59, 1380, 1439}),
    ],
)
def test_a_window_holds_its_minutes_also_over_midnight(window, minutes):
    asked = {0, 59, 60, 119, 120, 719, 1379, 1380, 1439} if window else {0, 719, 1439}
    policy = MaintenancePolicy(window=window_of(window))
    day = dt.datetime(2026, 1, 2, tzinfo=dt.UTC)
    assert {minute for minute in asked if is_open(policy, day + dt.timedelta(minutes=minute))} == minutes
