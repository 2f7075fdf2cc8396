"""The doctor without servers: checks that hang or break, what is shown, what is hidden, and how it ends."""

from __future__ import annotations

import base64
import json
import socket
import struct
import threading
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cdcworker.connectors import checks as checkup
from cdcworker.connectors.checks import CheckResult, CheckSkipped, DoctorCheck, ExaminedTarget, Repair, examine, ok
from cdcworker.connectors.postgres.doctor.checks import CHECKS
from cdcworker.connectors.postgres.doctor.examined_server import duration, listed, size
from cdcworker.connectors.postgres.server import fixes
from cdcworker.connectors.postgres.transport import certificate
from cdcworker.schemas.errors import CdcError
from cdcworker.worker.cli.commands import doctor as command
from cdcworker.worker.cli.main import cli
from cdcworker.worker.diagnostics import doctor, doctor_kafka
from cdcworker.worker.diagnostics import doctor_machine as doctor_stack
from click.testing import CliRunner

PASSWORD = "Pa55-of-the-source"


def found(status="error", code="postgres.wal_level", name="decoding.wal_level", **more):
    return ExaminedTarget(
        DoctorCheck(name, "why", lambda _: ()), CheckResult(status, "m", "message", code, **more), 0.0
    )


# -- each check for itself --------------------------------------------------------------------------------------------


def statuses(*checks, **options):
    return [(item.check.name, item.result.status) for item in examine(checks, None, **options)]


def test_a_check_that_breaks_takes_no_other_along():
    def broken(_):
        yield ok("first")
        raise KeyError("secret-detail")

    results = list(examine([DoctorCheck("a.b", "", broken), DoctorCheck("a.c", "", lambda _: [ok("x")])], None))
    assert [item.result.status for item in results] == ["ok", "unknown", "ok"]
    assert "KeyError" in results[1].result.message
    assert "secret-detail" not in results[1].result.message


def test_a_check_that_hangs_costs_its_time_and_the_next_is_not_held_up():
    never = threading.Event()
    abandoned = []
    hanging = DoctorCheck("a.hang", "", lambda _: iter(lambda: never.wait(60), True))
    try:
        answer = statuses(
            hanging, DoctorCheck("a.b", "", lambda _: [ok("")]), timeout_s=0.05, abandon=lambda: abandoned.append(1)
        )
    finally:
        never.set()
    assert answer == [("a.hang", "unknown"), ("a.b", "ok")]
    assert abandoned == [1]


def test_foreign_errors_are_translated_and_missing_premises_are_unknown():
    def raising(exc):
        def run(_):
            raise exc

        return DoctorCheck("a.b", "", run)

    told = CdcError("postgres.permission_denied", "no", hint="grant it")
    (one,) = examine([raising(OSError())], None, translate=lambda _: told)
    assert (one.result.status, one.result.code, one.result.hint) == ("unknown", told.code, "grant it")
    (two,) = examine([raising(CheckSkipped("no connection"))], None)
    assert (two.result.status, two.result.message, two.result.code) == ("unknown", "no connection", checkup.UNKNOWN)


def test_the_table_has_every_group_of_the_reference_and_says_why():
    assert {check.group for check in CHECKS} == {"reach", "rights", "decoding", "slot", "publication", "tables", "risk"}
    assert len({check.name for check in CHECKS}) == len(CHECKS)
    assert len([*CHECKS, *doctor_stack.CHECKS, *doctor_kafka.CHECKS]) > 40
    assert all(check.why.endswith(".") for check in CHECKS)


# -- what mends it, per flavour ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("roles", "flavour"),
    [
        ((), "self-managed"), (("rds_superuser",), "rds"), (("cloudsqlsuperuser",), "cloudsql"),
        (("azure_pg_admin",), "azure"), (("supabase_admin",), "supabase"), (("neon_superuser",), "neon"),
    ],
)  # fmt: skip
def test_a_provider_is_told_by_its_roles(roles, flavour):
    assert fixes.flavour_of(roles, {}) == flavour
    assert fixes.flavour_of(roles, {}, aurora=True) == "aurora"


@pytest.mark.parametrize(
    ("flavour", "text"),
    [
        ("rds", "rds.logical_replication"), ("aurora", "modify-db-cluster-parameter-group"),
        ("cloudsql", "cloudsql.logical_decoding=on"), ("azure", "--name wal_level --value logical"),
        ("supabase", "wal_level=logical"), ("neon", "wal_level"),
    ],
)  # fmt: skip
def test_a_setting_is_changed_as_the_provider_has_it(flavour, text):
    fix = fixes.parameter(flavour, "wal_level", "logical", restart=True)
    assert fix.statements == ()
    assert text in fix.steps
    assert not fix.safe


def test_the_own_server_is_changed_by_statements():
    fix = fixes.parameter("self-managed", "max_wal_senders", "20", restart=True)
    assert (fix.statements, fix.steps) == (("ALTER SYSTEM SET max_wal_senders = '20'",), "Then restart the server.")
    assert (
        "SELECT pg_reload_conf()"
        in fixes.parameter("self-managed", "wal_sender_timeout", "1s", restart=False).statements
    )


def test_names_in_statements_are_quoted():
    role = 'a"; drop table x; --'
    assert fixes.replication_right("self-managed", role).statements == (
        'ALTER ROLE "a""; drop table x; --" REPLICATION',
    )
    assert fixes.replication_right("rds", role).statements == ('GRANT rds_replication TO "a""; drop table x; --"',)
    assert fixes.add_tables("p", [("s", 't"')]).statements == ('ALTER PUBLICATION "p" ADD TABLE ONLY "s"."t"""',)


def test_numbers_are_told_in_words_of_people():
    assert [size(number) for number in (None, 12, 1536, 3 << 40)] == ["unknown", "12 B", "1.5 kB", "3.0 TB"]
    assert [duration(number) for number in (5, 600, 7300, 900_000)] == ["5 s", "10 min", "2.0 h", "10 days"]
    assert listed([str(number) for number in range(4)], 2) == "0, 1 and 2 more"


# -- the certificate --------------------------------------------------------------------------------------------------

CERTIFICATE = base64.b64decode(
    "MIIBfzCCASWgAwIBAgIUSq6507etVtqRngkt2MFGkQRsLH0wCgYIKoZIzj0EAwIwFTETMBEGA1UEAwwKZGIuZXhhbXBsZTAeFw0y"
    "NjExMjExNjE1NDJaFw0yNzEyMjYxNjE1NDJaMBUxEzARBgNVBAMMCmRiLmV4YW1wbGUwWTATBgcqhkjOPQIBBggqhkjOPQMBBwNC"
    "AAQLV/bJKqKD4P1JAncQSzc/dC2+i35tE4DmoQN2qB5aHfxJ+BvGQWBUPh+quhWURsr5F1XNo35/3msDd70AJIgVo1MwUTAdBgNV"
    "HQ4EFgQU64SCL5ehym/Tmwyz8e8JphwY1YMwHwYDVR0jBBgwFoAU64SCL5ehym/Tmwyz8e8JphwY1YMwDwYDVR0TAQH/BAUwAwEB"
    "/zAKBggqhkjOPQQDAgNIADBFAiAROQjk5bmNIKhWytehtOD8cVA7xsi6kLf/64u874V2bwIhANobSTTr5F0E8OXSGkQSgLrkbV4z"
    "II4O3HEFnkbTjliU"
)


def test_the_end_of_a_certificate_is_read():
    assert certificate.end_of(CERTIFICATE) == datetime(2027, 12, 26, 16, 15, 42, tzinfo=UTC)


@pytest.mark.parametrize("cut", [0, 1, 5, 60, 200])
def test_a_cut_certificate_is_an_error_and_nothing_else(cut):
    with pytest.raises(CdcError):
        certificate.end_of(CERTIFICATE[:cut])


# -- the target -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "dsn",
    [
        f"postgresql://u:{PASSWORD}@db:5433/shop?sslmode=require",
        f"host=db port=5433 user=u password={PASSWORD} dbname=shop sslmode=require\n",
    ],
)
def test_a_connection_string_is_a_config(dsn):
    target = doctor.target("x", doctor.from_connection_string(dsn))
    assert target.config["database.hostname"] == "db"
    assert target.config["database.port"] == "5433"
    assert target.config["database.dbname"] == "shop"
    assert target.config["database.sslmode"] == "require"
    assert target.secrets == (PASSWORD,)


def test_a_connection_string_that_is_none_is_not_repeated():
    with pytest.raises(CdcError) as refused:
        doctor.from_connection_string(f"nonsense {PASSWORD}")
    assert PASSWORD not in str(refused.value)


def test_secrets_are_cut_out_of_everything_that_is_told():
    target = doctor.target("x", doctor.from_connection_string(f"postgresql://u:{PASSWORD}@db/shop"))
    fix = Repair((f"a {PASSWORD}",), f"b {PASSWORD}")
    result = target.redacted(CheckResult("error", f"c {PASSWORD}", f"d {PASSWORD}", hint=f"e {PASSWORD}", fix=fix))
    assert PASSWORD not in str(result)


def test_a_masked_secret_is_asked_for():
    with pytest.raises(CdcError) as refused:
        doctor.target("x", {**doctor.from_connection_string("postgresql://u@db/shop"), "database.password": "****"})
    assert refused.value.code == "config.masked_value"
    assert "--password-env" in refused.value.hint


def test_a_connector_without_a_table_of_checks_gets_those_of_validation(tmp_path):
    config = {"connector.class": "datagen", "topic.prefix": "g", "name": "g"}
    (item,) = doctor.target("g", config).examine(deep=False)
    assert item.result.status == "ok"


# -- how it ends ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("items", "code"),
    [
        ([found("ok"), found("warning"), found("note"), found("unknown")], 0),
        ([found("error")], 1),
        ([found("error", "postgres.unreachable", "reach.tcp")], 3),
        ([found("error", "postgres.authentication_failed", "reach.connection")], 1),
        ([found("error", "postgres.slot_lost", "slot.state")], 1),
        ([], 0),
    ],
)
def test_only_errors_block(items, code):
    assert doctor.exit_code(items) == code
    assert doctor.summary(items).startswith("something" if code else "nothing")


def test_only_safe_statements_are_applied_and_each_once():
    safe = found(fix=Repair(("a",), safe=True))
    items = [safe, safe, found(fix=Repair(("b",))), found(fix=Repair(steps="c", safe=True)), found()]
    assert doctor.safe_fixes(items) == [safe]


def test_a_row_has_the_form_of_the_reference():
    item = found(fix=Repair(("a",), "then b", safe=True), key="slot.name")
    row = doctor.row(item)
    assert (row["severity"], row["code"], row["configPath"]) == ("error", "postgres.wal_level", "/config/slot.name")
    assert row["fix"] == {"op": "sql", "value": ["a"], "steps": "then b", "safe": True}
    assert row["suggestion"] == "a; then b"
    fine = doctor.row(found("ok"))
    assert (fine["code"], fine["suggestion"], fine["fix"]) == (None, None, None)


def test_lines_are_ascii_without_colour_and_obey_nothing_of_others():
    item = ExaminedTarget(
        DoctorCheck("a.b", "why.", lambda _: ()), CheckResult("error", "m\x1b[2J", "x", hint="h"), 0.0
    )
    text = "\n".join(command.lines(item, colour=False))
    assert text.isascii()
    assert "\x1b" not in text
    assert text.splitlines()[0].startswith("  error")
    assert "✗" in "\n".join(command.lines(item, colour=True))


# -- the command ------------------------------------------------------------------------------------------------------


def run(*arguments, **options):
    return CliRunner().invoke(cli, ["doctor", *arguments], **options)


@pytest.mark.parametrize("target", [f"postgresql://u:{PASSWORD}@h/d", f"host=h password={PASSWORD}"])
def test_a_connection_string_in_an_argument_is_refused_and_not_repeated(target):
    answer = run(target)
    assert answer.exit_code == 2
    assert "--dsn-env" in answer.output
    assert PASSWORD not in answer.output


@pytest.mark.parametrize(
    "arguments",
    [
        ("--apply",), ("--apply", "--yes"), ("x.json", "--dsn-env", "HOME"), ("--dsn-env", "NO_SUCH_VARIABLE"),
        ("--dsn-env", "HOME", "--dsn-file", __file__), ("no-such-file.json",),
    ],
)  # fmt: skip
def test_what_cannot_be_meant_is_a_usage_error(arguments):
    assert run(*arguments).exit_code == 2


def test_a_config_that_is_not_valid_is_exit_code_2(tmp_path):
    path = tmp_path / "c.json"
    path.write_text(json.dumps({"name": "c", "config": {"connector.class": "postgres"}}))
    answer = run(str(path), "--json")
    assert answer.exit_code == 2
    assert json.loads(answer.stdout)["error"]["code"] == "config.invalid"


def test_the_list_of_checks_needs_nothing():
    answer = run("--list", "--json")
    assert answer.exit_code == 0
    assert len(json.loads(answer.stdout)["result"]) > 40
    assert "decoding.wal_level" in run("--list").output


def test_an_unreachable_server_is_exit_code_3_in_one_envelope(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    monkeypatch.setenv("THE_DSN", f"postgresql://u:{PASSWORD}@127.0.0.1:{port}/d")
    answer = run("--dsn-env", "THE_DSN", "--json", "--check", "reach", "--check", "decoding.wal*")
    assert answer.exit_code == 3
    envelope = json.loads(answer.stdout)
    assert (envelope["ok"], envelope["error"]) == (False, None)
    by_name = {row["check"]: row for row in envelope["result"]["checks"]}
    assert by_name["reach.tcp"]["severity"] == "error"
    assert by_name["decoding.wal_level"]["severity"] == "unknown"
    assert {row["check"].partition(".")[0] for row in envelope["result"]["checks"]} == {"reach", "decoding"}
    assert PASSWORD not in answer.output


# -- this machine -----------------------------------------------------------------------------------------------------


def test_the_machine_answers_every_check():
    items = list(doctor_stack.examine_stack(doctor_stack.DoctorMachine()))
    assert {item.check.name for item in items} == {check.name for check in doctor_stack.CHECKS}
    assert not [item for item in items if item.result.status == "error"]


def test_the_limit_of_a_container_is_what_counts(tmp_path):
    (tmp_path / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable: 8388608 kB\n")
    machine = doctor_stack.DoctorMachine(meminfo=tmp_path / "meminfo", cgroup=tmp_path)
    assert [item.status for item in doctor_stack._memory(machine)] == ["ok"]
    (tmp_path / "memory.max").write_text(f"{2 << 30}\n")
    (tmp_path / "memory.current").write_text(f"{(2 << 30) - 1000}\n")
    assert [item.status for item in doctor_stack._memory(machine)] == ["warning"]
    (tmp_path / "memory.max").write_text("max\n")
    assert [item.status for item in doctor_stack._memory(machine)] == ["ok"]


def test_a_missing_java_and_missing_libraries_are_warnings_that_say_how(monkeypatch, tmp_path):
    monkeypatch.setenv("CDC_CACHE_DIR", str(tmp_path))
    results = list(doctor_stack._jars(doctor_stack.DoctorMachine()))
    assert [item.status for item in results] == ["warning", "warning"]
    assert results[0].fix.steps == "cdcworker jars fetch spark"
    monkeypatch.setattr("cdcworker.worker.java.runtime.candidates", lambda _: iter(()))
    assert [item.status for item in doctor_stack._java(doctor_stack.DoctorMachine())] == ["warning"]


class Broker(threading.Thread):
    """Says what it can, as ApiVersions version 0."""

    def __init__(self, able):
        super().__init__(daemon=True)
        self.able = able
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]

    def run(self):
        connection, _ = self.listener.accept()
        with connection:
            (wanted,) = struct.unpack(">i", connection.recv(4))
            request = connection.recv(wanted)
            body = request[4:8] + struct.pack(">hi", 0, len(self.able))
            body += b"".join(struct.pack(">hhh", key, 0, highest) for key, highest in self.able.items())
            # In two parts, as the network may deliver it.
            connection.sendall(struct.pack(">i", len(body)) + body[:7])
            connection.sendall(body[7:])


@pytest.mark.parametrize(
    ("able", "status", "measured"),
    [
        ({1: 18, 22: 5, 75: 0}, "ok", "Kafka 4.1 or newer"),
        ({1: 12, 22: 4}, "ok", "Kafka 2.7 or newer"),
        ({1: 11, 22: 1}, "error", "older than 2.5"),
    ],
)
def test_the_release_of_a_broker_follows_from_what_it_can(able, status, measured):
    broker = Broker(able)
    broker.start()
    machine = doctor_stack.DoctorMachine({"bootstrap.servers": f"127.0.0.1:{broker.port}"}, "g")
    (result,) = doctor_kafka._version(machine)
    broker.join(10)
    broker.listener.close()
    assert (result.status, result.measured) == (status, measured)


def test_a_broker_behind_tls_is_not_asked():
    machine = doctor_stack.DoctorMachine({"bootstrap.servers": "h:1", "security.protocol": "SSL"}, "g")
    assert [item.status for item in doctor_kafka._version(machine)] == ["unknown"]


def test_no_module_of_the_doctor_opens_anything_when_imported():
    room = Path(doctor.__file__).parents[1]
    for name in ("diagnostics/doctor.py", "diagnostics/doctor_machine.py", "cli/commands/doctor.py"):
        top = [line for line in (room / name).read_text().splitlines() if line.startswith(("import ", "from "))]
        assert not [line for line in top if "psycopg" in line or "confluent" in line or "httpx" in line]
