"""Builds the optional native parts; without a C compiler their pure-Python references are used."""

from glob import glob

from setuptools import Extension, setup


def native(name: str) -> Extension:
    path = name.replace(".", "/")
    return Extension(
        f"cdcworker.{name}",
        [f"{path}.pyx"],
        depends=sorted(glob(f"{path.rpartition('/')[0]}/*.pxi") + glob("connectors/capture/native/*.pxi")),
        optional=True,
        define_macros=[("Py_LIMITED_API", "0x030B0000"), ("CYTHON_LIMITED_API", "1")],
        py_limited_api=True,
    )


CORES = ("connectors.arrow._native", "connectors.mysql.decode._core", "connectors.postgres.decode._core")

setup(ext_modules=[native(name) for name in CORES])
