"""Files that the product makes are its owner's alone, and a connector reads and writes none that has a second name."""

from __future__ import annotations

import os
import stat
import subprocess
import sys

import pyarrow as pa
import pytest
from cdcworker.connectors.capture.stream.transaction_spool import NotStreamable, TransactionSpool
from cdcworker.connectors.config.allowed_paths import NOT_ALLOWED, allowed_path
from cdcworker.connectors.file.lines import NO_ACCESS, file_key
from cdcworker.connectors.file.source import FileSource
from cdcworker.connectors.file.target import FileLedger, FileTarget
from cdcworker.connectors.postgres.errors import CAPTURE
from cdcworker.connectors.scratch_folder import StateFolder, TemporaryFolder
from cdcworker.connectors.transactions.record_spool import RecordSpool
from cdcworker.connectors.warehouses.shared_keys import folder
from cdcworker.schemas.errors import CdcError
from cdcworker.worker import app
from cdcworker.worker.cli.client import files
from cdcworker.worker.cli.commands import support
from cdcworker.worker.config.file_roots import checked_roots
from cdcworker.worker.config.worker_properties import parse

WORKER = {"bootstrap.servers": "k:1", "group.id": "g"}


@pytest.fixture(autouse=True)
def open_handed():
    """The mask of a user who lets others read."""
    before = os.umask(0o000)
    yield
    os.umask(before)


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_scratch_files_are_private_whatever_the_mask(tmp_path):
    state = StateFolder(tmp_path / "sink" / "state")
    state.open()
    assert mode(state.path) == mode(tmp_path / "sink" / "state") == 0o700
    state.close()
    temporary = TemporaryFolder()
    assert mode(temporary.path) == 0o700
    temporary.close()
    spool = RecordSpool(tmp_path / "spool", memory_max=0)
    spool.put(pa.table({"a": [b"row"]}))
    assert mode(tmp_path / "spool") == 0o700
    (file,) = (tmp_path / "spool").iterdir()
    assert mode(file) == 0o600


def transaction_spool(tmp_path):
    spool = TransactionSpool(str(tmp_path), "c-0", 1 << 20, CAPTURE)
    spool.open(7)
    spool.add(1, bytes(8), b"row")
    return spool


def test_a_spool_of_transactions_is_private_and_follows_no_link(tmp_path):
    spool = transaction_spool(tmp_path)
    spool.write()
    (file,) = (tmp_path / "spool" / "c-0").glob("*/7")
    assert [mode(path) for path in (*file.parents[:3], file)] == [0o700, 0o700, 0o700, 0o600]
    victim = tmp_path / "victim"
    victim.write_text("theirs")
    file.unlink()
    file.symlink_to(victim)
    spool.add(1, bytes(8), b"row")
    with pytest.raises(NotStreamable):
        spool.write()
    assert victim.read_text() == "theirs"


def test_a_bundle_takes_the_place_of_what_was_there(tmp_path):
    victim, bundle = tmp_path / "victim", tmp_path / "bundle.tar.gz"
    victim.write_text("theirs")
    bundle.symlink_to(victim)
    support.write(bundle, {"a.json": b"{}"})
    assert victim.read_text() == "theirs"
    assert mode(bundle) == 0o600
    assert not bundle.is_symlink()
    bundle.chmod(0o644)
    support.write(bundle, {"a.json": b"{}"})
    assert mode(bundle) == 0o600, "who could read the one before could read this one"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bundle.tar.gz", "victim"]


def test_contexts_are_private(tmp_path):
    with files.locked(tmp_path / "c" / "contexts.yaml"):
        files.replace(tmp_path / "c" / "contexts.yaml", "token: x")
    assert mode(tmp_path / "c") == 0o700
    assert mode(tmp_path / "c" / "contexts.yaml") == 0o600


def test_a_worker_lets_nobody_read_what_it_and_its_children_make(tmp_path):
    config = tmp_path / "worker.properties"
    config.write_text("bootstrap.servers=127.0.0.1:1\ngroup.id=g\n")
    code = (
        "import os, sys\n"
        "from cdcworker.worker import app\n"
        "app.run_worker = lambda config: (open(sys.argv[1], 'w').close(), os.mkdir(sys.argv[1] + '.d'))\n"
        "from cdcworker.worker.cli.commands.start import start\n"
        "start.callback(__import__('pathlib').Path(sys.argv[2]))\n"
    )
    for text, wanted in (("", (0o600, 0o700)), ("files.umask=027\n", (0o640, 0o750))):
        config.write_text(f"bootstrap.servers=127.0.0.1:1\ngroup.id=g\n{text}")
        made = tmp_path / f"made{text[:5]}"
        subprocess.run([sys.executable, "-c", code, str(made), str(config)], check=True, capture_output=True)
        assert (mode(made), mode(made.with_name(made.name + ".d"))) == wanted


@pytest.mark.parametrize("text", ["8", "0x77", "rw", "07777", "-1", "777"])
def test_a_mask_is_one(text):
    with pytest.raises(CdcError, match=r"files\.umask"):
        parse({**WORKER, "files.umask": text})


# -- the file connectors ----------------------------------------------------------------------------------------------


@pytest.fixture
def theirs(tmp_path):
    """A file of somebody's outside of the folders of connectors."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "open").mkdir()
    found = tmp_path / "outside" / "secret"
    found.write_text("a secret\n")
    return found


def source(path):
    from cdcworker.connectors.api.context import TaskContext

    context = TaskContext("c", 0, 1, "i", str(path.parent), stopping=lambda: False, file_roots=(str(path.parent),))
    config = {"connector.class": "file", "file": str(path), "topic": "t"}
    return FileSource(config).task(config, context)


def read(task):
    task.open(None)
    task.poll()


def test_a_file_with_a_second_name_is_neither_read_nor_written(tmp_path, theirs):
    linked = tmp_path / "open" / "linked"
    linked.hardlink_to(theirs)
    task = source(linked)
    with pytest.raises(CdcError, match="second name") as caught:
        read(task)
    assert caught.value.code == NO_ACCESS
    task.close()
    target = FileTarget(linked, "c", (1, 0))
    with pytest.raises(CdcError, match="second name") as caught:
        target.open()
    assert caught.value.code == NO_ACCESS
    assert theirs.read_text() == "a secret\n"
    assert os.listdir(linked.parent) == ["linked"]


def test_what_the_sink_makes_beside_its_file_goes_through_no_link(tmp_path, theirs):
    path = tmp_path / "open" / "target"
    for make in ("symlink_to", "hardlink_to"):
        part = path.with_name(".target.ledger-1-0.json.part")
        getattr(part, make)(theirs)
        target = FileTarget(path, "c", (1, 0))
        target.open()
        target.append(b"row\n", {("t", 0): 1})
        target.close()
        assert theirs.read_text() == "a secret\n"
        for found in path.parent.iterdir():
            found.unlink()


@pytest.mark.parametrize("make", ["symlink_to", "hardlink_to"])
def test_a_ledger_is_read_through_no_link(tmp_path, theirs, make):
    path = tmp_path / "open" / "target"
    theirs.write_text('{"v": 1, "owner": "c", "epoch": [9, 0], "length": 0, "offsets": {}}')
    getattr(path.with_name(".target.ledger-9-0.json"), make)(theirs)
    with pytest.raises(CdcError) as caught:
        FileTarget(path, "c", (1, 0)).open()
    assert caught.value.code == NO_ACCESS


@pytest.mark.parametrize(
    "name", [".target.ledger-9-0.json", ".target.ledger-9-0.json.part", ".target.new-9-0", ".a.b.ledger-1-1.json"]
)
def test_no_connectors_file_is_another_ones_ledger(name):
    validator = file_key("x").validator
    assert validator(f"/open/{name}")
    for fine in ("/open/target", "/open/.hidden", "/open/ledger-1.json", "/open/x.new-1"):
        assert validator(fine) is None


def test_a_file_of_a_sink_is_as_the_mask_says(tmp_path):
    os.umask(0o077)
    target = FileTarget(tmp_path / "target", "c", (1, 0))
    target.open()
    target.close()
    assert {mode(path) for path in tmp_path.iterdir()} == {0o600}
    assert FileLedger("c", (1, 0), 0) == target._ledger


def test_a_warehouse_that_is_a_link_is_judged_by_where_it_leads(tmp_path, theirs):
    (tmp_path / "open" / "lake").symlink_to(theirs.parent)
    roots = [str(tmp_path / "open")]
    with pytest.raises(CdcError) as caught:
        folder({"warehouse.path": str(tmp_path / "open" / "lake")}, roots)
    assert caught.value.code == NOT_ALLOWED
    assert folder({"warehouse.path": str(tmp_path / "open" / "other")}, roots) == str(tmp_path / "open" / "other")
    assert allowed_path(str(tmp_path / "open" / "x"), roots)


def test_the_default_folder_is_made_for_the_worker_alone(tmp_path):
    root = tmp_path / "cdcworker"
    assert checked_roots([str(root)], str(root)) == []
    assert mode(root) == 0o700
    assert checked_roots([str(root)], str(root)) == []


@pytest.mark.parametrize(("bits", "is_fine"), [(0o777, False), (0o1777, True), (0o775, True), (0o702, False)])
def test_a_worker_does_not_start_with_a_default_folder_that_others_may_change(tmp_path, bits, is_fine):
    root = tmp_path / "cdcworker"
    root.mkdir()
    root.chmod(bits)
    if is_fine:
        assert checked_roots([str(root)], str(root)) == []
        return
    with pytest.raises(CdcError, match=r"file\.connector\.paths.*written by every user"):
        checked_roots([str(root)], str(root))
    # One that the operator has named may be an empty volume of a pod, say: it is told.
    assert "written by every user" in checked_roots([str(root)])[0]


@pytest.mark.parametrize("asked", ["stat", "lstat"])
def test_a_default_folder_of_another_user_or_a_link_of_his_is_refused(tmp_path, monkeypatch, asked):
    root, real = tmp_path / "cdcworker", getattr(os, asked)
    root.mkdir(0o700)

    def theirs(path, *more, **options):
        found = real(path, *more, **options)
        return os.stat_result((*found[:4], 12345, *found[5:])) if path == str(root) else found

    monkeypatch.setattr(os, asked, theirs)
    with pytest.raises(CdcError, match="belongs to another user"):
        checked_roots([str(root)], str(root))


def test_a_worker_asks_before_it_does_anything_else(tmp_path, monkeypatch):
    def refuse(folders):
        raise ZeroDivisionError

    config, _ = parse(WORKER)
    monkeypatch.setattr(app, "checked_roots", refuse)
    with pytest.raises(ZeroDivisionError):
        app.App(config)
