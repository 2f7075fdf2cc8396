"""`cdcworker spark-archive`: writes the Python environment that executors of a Spark cluster need, as one file."""

from __future__ import annotations

from pathlib import Path

import click
from cdcworker.worker.cli.client.remote import json_option
from cdcworker.worker.cli.commands.context import tell


@click.command("spark-archive")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@json_option
def spark_archive(file: Path) -> None:
    """Write FILE (a .tar.gz) with the Python packages that executors of a Spark cluster need of this worker.

    A sink names it: spark.archives=/path/FILE#environment and spark.pyspark.python=./environment/bin/python. The
    executors' machines need the same Python as this one (such as python3.11), by its name on their PATH.
    """
    from cdcworker.connectors.spark.runtime.executor_archive import PYTHON, pack

    if not file.name.endswith((".tar.gz", ".tgz")):
        raise click.BadParameter("expects a name that ends with .tar.gz or .tgz", param_hint="FILE")
    pack(file)
    path = file.resolve()
    size = path.stat().st_size
    result = {"file": str(path), "bytes": size, "python": PYTHON}
    tell(result, f"{path} ({size / 1e6:.0f} MB), for {PYTHON} on the executors' machines")
