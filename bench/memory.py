"""The most memory that each command holds on a large input."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from commands import tonne_json
from reading import sequential
from tonne.testing.processes import DebianRegistry


def peak_mib(cache: Path, *arguments: object) -> float:
    """Run a verb; the peak resident memory of its process (ru_maxrss is in KiB on Linux)."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tonne", "--quiet", "--cache", str(cache), *map(str, arguments)],
        stdout=subprocess.DEVNULL,
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"tonne {arguments[0]} exited with {process.returncode}")
    return usage.ru_maxrss / 1024


def memory_section(source: Path, registry: DebianRegistry, work: Path) -> str:
    """One run of each command."""
    size = sum(path.stat().st_size for path in source.iterdir())
    reference = f"{registry.address}/bench/memory:v1"
    rows: list[tuple[str, float]] = [("pack", peak_mib(work / "cache", "pack", source, reference))]
    shutil.rmtree(source)
    rows.append(("verify", peak_mib(work / "cache", "verify", reference)))
    rows.append(("pull", peak_mib(work / "cache", "pull", reference, work / "target")))
    rows.append(("verify a folder", peak_mib(work / "cache", "verify", reference, work / "target")))
    shutil.rmtree(work / "target")
    rows.append(("cp", peak_mib(work / "cache", "cp", reference, f"oci:{work / 'layout'}:v1")))
    shutil.rmtree(work / "layout")
    point = work / "point"
    point.mkdir()
    pid = tonne_json(work / "cache", "mount", reference, point)["pid"]
    sequential(point)
    status = Path(f"/proc/{pid}/status").read_text()
    rows.append(("mount, all of it read", int(status.split("VmHWM:")[1].split()[0]) / 1024))
    tonne_json(work / "cache", "umount", point)
    lines = "\n".join(f"| {name} | {value:.0f} MiB |" for name, value in rows)
    head = "| command | peak |\n|---|---|"
    note = f"Peak resident memory of each command on {size / 1024**3:.1f} GiB. Limit: 512 MiB."
    return f"## Memory\n\n{note}\n\n{head}\n{lines}\n"
