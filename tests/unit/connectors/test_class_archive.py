"""The archive of classes: used when it fits, made from what a run recorded, never in the way of a start."""

import os
import sys
import time

import pytest
from cdcworker.connectors.class_archive import KEPT, MAKE_S_MAX, RETRY_S, ClassArchive

JAVA = """#!{python}
import sys
options = dict(word.partition("=")[::2] for word in sys.argv)
names = open(options["-XX:SharedClassListFile"]).read()
{act}
"""


@pytest.fixture
def make(tmp_path):
    """An archive over a program that stands for Java: `act` is what it does when it is to make one."""

    def build(act='open(options["-XX:SharedArchiveFile"], "w").write(names)', jar="a.jar"):
        program = tmp_path / "java"
        if not program.exists():
            program.write_text(JAVA.format(python=sys.executable, act=act))
            program.chmod(0o700)
        if not (tmp_path / jar).exists():
            (tmp_path / jar).write_text("jar")
        return ClassArchive(tmp_path / "cache", str(program), [str(tmp_path / jar)], ["-Dflag=1"])

    return build


def recorded(tmp_path, text="java/lang/Object\njava/lang/Str"):
    path = tmp_path / "recorded"
    path.write_text(text)
    return path


def using(archive, tmp_path):
    return any(word.startswith("-XX:SharedArchiveFile") for word in archive.options(tmp_path / "r"))


def test_the_first_run_records_and_the_next_one_uses_what_was_made(make, tmp_path):
    archive = make()
    assert archive.options(tmp_path / "r") == [f"-XX:DumpLoadedClassList={tmp_path / 'r'}"]
    archive.make_in_background(recorded(tmp_path)).join(20)
    assert archive.path.read_text() == "java/lang/Object\n"  # the half line is left out
    assert using(archive, tmp_path)
    assert [path.suffix for path in archive.path.parent.iterdir() if path != archive.path] == [".lock"]


def test_another_jar_asks_for_another_archive(make, tmp_path):
    make().make_in_background(recorded(tmp_path)).join(20)
    assert not using(make(jar="b.jar"), tmp_path)
    (tmp_path / "a.jar").write_text("newer")
    assert not using(make(), tmp_path)


def test_what_cannot_be_made_is_not_tried_again_for_a_day(make, tmp_path):
    archive = make("sys.exit(3)")
    archive.make_in_background(recorded(tmp_path)).join(20)
    assert not archive.path.exists()
    assert archive.options(tmp_path / "r") == []
    old = time.time() - RETRY_S - 1
    os.utime(archive.path.with_suffix(".failed"), (old, old))
    assert archive.options(tmp_path / "r") != []


def test_a_stop_ends_the_making_and_leaves_no_half_archive(make, tmp_path):
    archive = make('open(options["-XX:SharedArchiveFile"], "w").write("half"); import time; time.sleep(60)')
    archive.make_in_background(recorded(tmp_path), lambda: True).join(20)
    assert [path.suffix for path in archive.path.parent.iterdir()] == [".lock"]


def test_one_that_kept_java_from_starting_is_dropped(make, tmp_path):
    archive = make()
    archive.make_in_background(recorded(tmp_path)).join(20)
    archive.distrust()
    assert not using(archive, tmp_path)


def test_only_the_last_used_are_kept(make, tmp_path):
    for number in range(KEPT + 2):
        archive = make(jar=f"{number}.jar")
        archive.make_in_background(recorded(tmp_path)).join(20)
        os.utime(archive.path, (number + 1, number + 1))
    assert len(list(archive.path.parent.glob("*.jsa"))) == KEPT


def test_what_was_left_half_made_goes_when_another_is_made(make, tmp_path):
    archive = make()
    folder = archive.path.parent
    folder.mkdir(parents=True)
    old, young = folder / ".old", folder / ".young.classes"
    for path in (old, young):
        path.write_text("half")
    past = time.time() - MAKE_S_MAX - 60
    os.utime(old, (past, past))
    archive.make_in_background(recorded(tmp_path)).join(20)
    assert archive.path.exists()
    assert not old.exists()
    assert young.exists()


def test_without_a_record_nothing_is_made(make, tmp_path):
    assert make().make_in_background(tmp_path / "none") is None
