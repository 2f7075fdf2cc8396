"""Builds the optional native decoder; without a C compiler the pure-Python reference is used."""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "cdcworker.connectors.spark._native",
            ["connectors/spark/_native.pyx"],
            optional=True,
            define_macros=[("Py_LIMITED_API", "0x030B0000"), ("CYTHON_LIMITED_API", "1")],
            py_limited_api=True,
        )
    ]
)
