"""Each native decoder built with the compiler's address and undefined-behaviour sanitizers, over broken inputs: ten
thousand in CI, of every third decoder, and a million in the long tier."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import REQUIRE_PARTS

from .child import NAMES

ROOT = Path(__file__).resolve().parents[4]
SHARED = ROOT / "connectors" / "capture" / "native"
FUZZED = int(os.environ.get("CDC_FUZZ_INPUTS", "0"))
FUZZED_CI, FUZZED_LONG = 10_000, 1_000_000
CLEAN = ("-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-fno-omit-frame-pointer", "-g1", "-O1")
BUILD_S, RUN_S = 900, 3600


def run(timeout_s: int, *argv: str | Path, **environment: str) -> str:
    done = subprocess.run(
        argv,
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout_s,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    return done.stdout


def lacks(what: str) -> None:
    (pytest.fail if REQUIRE_PARTS else pytest.skip)(f"missing part {what}: the sanitized decoders cannot be built")


@pytest.fixture(scope="module")
def runtime() -> Path:
    """The address sanitizer's library, which has to be there before anything else of the process."""
    compiler = shutil.which("gcc")
    if compiler is None:
        lacks("gcc")
    assert compiler
    found = Path(run(BUILD_S, compiler, "-print-file-name=libasan.so").strip())
    if not found.is_absolute():
        lacks("libasan")
    if not Path(sysconfig.get_paths()["include"], "Python.h").is_file():
        lacks("Python.h")
    if importlib.util.find_spec("Cython") is None:
        lacks("Cython")
    return found


@pytest.fixture(scope="module")
def built(
    runtime: Path, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Path]:
    """`built(source, module name, flags)`: the extension, compiled once for the same sources and flags."""
    kept, scratch = request.config.cache.mkdir("sanitized"), tmp_path_factory.mktemp("sanitized")

    def build(source: Path, name: str, *flags: str) -> Path:
        files = sorted(
            file
            for folder in (source.parent, SHARED)
            for file in folder.iterdir()
            if file.suffix in (".pyx", ".pxd", ".pxi", ".h")
        )
        parts = [str(runtime), sys.version, name, *flags, *(file.name + file.read_text() for file in files)]
        # The cores of two databases have the same name.
        stem = name.rpartition("connectors.")[2]
        out = kept / f"{stem}-{hashlib.sha256(chr(0).join(parts).encode()).hexdigest()[:16]}.so"
        if not out.exists():
            place = scratch / stem
            place.mkdir()
            translated, made = place / f"{source.stem}.c", place / out.name
            run(BUILD_S, sys.executable, "-m", "cython", "-3", "--module-name", name, source, "-o", translated)
            include = f"-I{sysconfig.get_paths()['include']}"
            run(BUILD_S, "gcc", "-shared", "-fPIC", *flags, include, translated, "-o", made)
            for older in kept.glob(f"{stem}-*.so"):
                older.unlink(missing_ok=True)
            unfinished = kept / f"{out.name}.{os.getpid()}"
            shutil.copy(made, unfinished)
            unfinished.replace(out)
        return out

    return build


@pytest.mark.sampled(3)
@pytest.mark.timeout(BUILD_S + RUN_S)
@pytest.mark.parametrize("decoder", NAMES)
def test_a_decoder_is_clean_over_broken_inputs(decoder, built, runtime, request):
    _shake(decoder, min(FUZZED or FUZZED_CI, FUZZED_CI), built, runtime, request)


@pytest.mark.long
@pytest.mark.timeout(BUILD_S + RUN_S)
@pytest.mark.parametrize("decoder", NAMES)
def test_a_decoder_is_clean_over_a_million_broken_inputs(decoder, built, runtime, request):
    _shake(decoder, FUZZED or FUZZED_LONG, built, runtime, request)


def _shake(decoder, count, built, runtime, request):
    source = ROOT / "connectors" / f"{NAMES[decoder].replace('.', '/')}.pyx"
    native = built(source, f"cdcworker.connectors.{NAMES[decoder]}", *CLEAN)
    shaker = built(Path(__file__).with_name("shaker.pyx"), "shaker", "-O2")
    seed = int(request.config.getoption("randomly_seed", None) or 1)
    told = run(
        RUN_S, sys.executable, "-m", "tests.unit.connectors.sanitized.child", decoder, native, shaker, str(count), str(seed),
        LD_PRELOAD=str(runtime),
        ASAN_OPTIONS="detect_leaks=0",
        UBSAN_OPTIONS="print_stacktrace=1",
        PYTHONMALLOC="malloc",
    )  # fmt: skip
    assert f"inputs={count} " in told
    taken = int(told.rpartition("decoded=")[2])
    print(f"{decoder}: seed {seed}, {count} inputs, {taken} of them were decoded")
    assert count // 100 < taken < count * 2
