"""The native core built with the compiler's address and undefined-behaviour sanitizers, over a million broken messages."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
INPUTS = int(os.environ.get("CDC_FUZZ_INPUTS", "1000000"))
FLAGS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-fno-omit-frame-pointer", "-g", "-O1")


def run(*argv: str | Path, **environment: str) -> str:
    done = subprocess.run(
        argv, cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True, check=False, timeout=3600
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    return done.stdout


def built(folder: Path, compiler: str) -> Path:
    pytest.importorskip("Cython", reason="no Cython")
    for source in (ROOT / "connectors/postgres").glob("_*.p[xy][ix]"):
        shutil.copy(source, folder)
    run(
        sys.executable,
        "-m",
        "cython",
        "-3",
        "--module-name",
        "cdcworker.connectors.postgres._core",
        folder / "_core.pyx",
    )
    out = folder / "_core.so"
    include = f"-I{sysconfig.get_paths()['include']}"
    run(compiler, "-shared", "-fPIC", *FLAGS, include, folder / "_core.c", "-o", out)
    return out


@pytest.mark.long
@pytest.mark.timeout(3700)
def test_the_core_is_clean_over_a_million_broken_messages(tmp_path):
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("no compiler with sanitizers (gcc)")
    runtime = Path(run(compiler, "-print-file-name=libasan.so").strip())
    if not runtime.is_absolute():
        pytest.skip("the compiler has no address sanitizer")
    told = run(
        sys.executable, "-m", "tests.unit.postgres.sanitized_child", built(tmp_path, compiler), str(INPUTS), "1",
        LD_PRELOAD=str(runtime),
        ASAN_OPTIONS="detect_leaks=0",
        UBSAN_OPTIONS="print_stacktrace=1",
        PYTHONMALLOC="malloc",
    )  # fmt: skip
    assert f"inputs={INPUTS} " in told
    assert int(told.rpartition("decoded=")[2]) > INPUTS // 100
