"""The machine that the doctor examines, and the worker's configuration as far as one was named."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class DoctorMachine:
    """`kafka`: the clients' properties, empty when no worker's configuration was named."""

    kafka: Mapping[str, str] = field(default_factory=dict, repr=False)
    group_id: str = ""
    properties: Mapping[str, str] = field(default_factory=dict, repr=False)
    deep: bool = False
    meminfo: Path = Path("/proc/meminfo")
    cgroup: Path = Path("/sys/fs/cgroup")
