"""What /proc says of processes, and that nobody else's process is killed."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys

import pytest
from cdcworker.worker.linux.procfs import (
    PAGE_BYTES,
    TICKS_PER_S,
    children_of,
    descendants_of,
    kill,
    parse_stat,
    read_stat,
)


@pytest.fixture
def child():
    """A process that has told that it runs."""
    program = "import sys; print(flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as started:
        started.stdout.readline()
        yield started
        started.kill()


def test_the_name_of_a_program_moves_no_field():
    rest = b" ".join([b"S", b"11", b"12", b"13", *[b"0"] * 7, b"50", b"25", *[b"0"] * 6, b"777", b"0", b"3", b"0"])
    for name in (b"sh", b"a) R 1 (b", b"with blanks)"):
        stat = parse_stat(7, b"7 (" + name + b") " + rest)
        assert (stat.pid, stat.state, stat.parent, stat.group, stat.session) == (7, "S", 11, 12, 13)
        assert (stat.cpu_s, stat.start, stat.rss_bytes) == (75 / TICKS_PER_S, 777, 3 * PAGE_BYTES)


def test_children_and_their_children_are_found(child):
    assert read_stat(child.pid).parent == os.getpid()
    assert child.pid in children_of(os.getpid())
    assert child.pid in descendants_of([os.getpid()])
    assert descendants_of([child.pid]) == [child.pid]


def test_a_process_of_another_start_is_not_killed(child):
    start = read_stat(child.pid).start
    assert kill(child.pid, start + 1) is None
    assert child.poll() is None
    descriptor = kill(child.pid, start)
    assert select.select([descriptor], [], [], 20)[0], "it has not ended"
    os.close(descriptor)
    assert child.wait(20) == -signal.SIGKILL


def test_there_is_nothing_to_kill_where_a_process_has_ended(child):
    child.kill()
    child.wait(20)
    assert kill(child.pid) is None
    assert read_stat(child.pid) is None
