"""Unpacks programs of Debian's packages into a folder, without installing them: `debian_packages.py LOCK FOLDER`.

`apt-get download` fetches them from where the machine has its packages from, and `dpkg-deb` unpacks them: neither needs to be root. The lock
holds a version and a hash of each.
"""

from __future__ import annotations

import hashlib
import json
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path


def locked(lock: Path) -> dict[str, dict[str, str]]:
    """Returns package → version and hash for this machine."""
    found: dict[str, dict[str, str]] = json.loads(lock.read_text(encoding="utf-8")).get(platform.machine(), {})
    return found


def unpack(lock: Path, folder: Path) -> None:
    """Fills the folder, or leaves nothing of it."""
    packages = locked(lock)
    programs = [shutil.which(name) for name in ("apt-get", "dpkg-deb")]
    if not packages or not all(programs):
        sys.exit(f"there are no such packages for this machine ({platform.machine()})")
    fetch, open_package = map(str, programs)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        wanted = [f"{name}={one['version']}" for name, one in packages.items()]
        subprocess.run([fetch, "--quiet", "--quiet", "download", *wanted], cwd=scratch, check=True)
        made = Path(scratch) / "unpacked"
        for name, one in packages.items():
            (file,) = Path(scratch).glob(f"{name}_*.deb")
            if hashlib.sha256(file.read_bytes()).hexdigest() != one["sha256"]:
                sys.exit(f"the package {name} has another hash than the lock")
            subprocess.run([open_package, "--extract", str(file), str(made)], check=True)
        shutil.rmtree(folder, ignore_errors=True)
        made.replace(folder)


if __name__ == "__main__":
    try:
        unpack(Path(sys.argv[1]), Path(sys.argv[2]))
    except subprocess.CalledProcessError:
        sys.exit("the locked packages cannot be had from where this machine has its packages from")
