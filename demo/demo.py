"""The main job, shown: pack, mount, load, pull and verify real models; then mount 10 TB.

Starts everything that it needs on loopback, in a temporary folder, and stops and removes it at the end.
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from models import generated_model, real_model, with_one_shard_changed
from parts import Computed, Tonne, compare_tensors, read_all_s
from tonne.cli.amounts import amount
from tonne.cli.environment import parse_size
from tonne.testing.processes import DebianRegistry

MIB = 1024 * 1024
GIB = 1024 * MIB


class Demo:
    """Runs the steps and collects the table's rows."""

    def __init__(self, work: Path, console: Console) -> None:
        self.work = work
        self.console = console
        self.rows: list[tuple[str, ...]] = []

    def say(self, text: str) -> None:
        self.console.print(f"[bold]{text}[/bold]" if self.console.is_terminal else text, highlight=False)

    def model(self, name: str, source: Path, registry: DebianRegistry, new_version: Path | None) -> None:
        """Pack, mount with an empty cache, load, compare, pull, verify, pack a second version."""
        tonne = Tonne(self.work / f"cache-{name}")
        reference = f"{registry.address}/demo/{name}:v1"
        self.say(f"{name}: packing {source.name}")
        packed = tonne.json("pack", source, reference)
        point = self.work / f"mount-{name}"
        point.mkdir()
        before = registry.bytes_sent()
        began = time.perf_counter()
        with tonne.mounted(reference, point):
            mount_s = time.perf_counter() - began
            shard = sorted(source.rglob("*.safetensors"))[0].relative_to(source)
            began = time.perf_counter()
            first = compare_tensors(source / shard, point / shard, only_first=True)
            tensor_s = time.perf_counter() - began
            fetched = registry.bytes_sent() - before
            self.say(f"{name}: mounted in {mount_s * 1000:.0f} ms; first tensor ({first}) is equal; loading the rest")
            tensors = sum(
                compare_tensors(path, point / path.relative_to(source))
                for path in sorted(source.rglob("*.safetensors"))
            )
            self.say(f"{name}: {tensors} tensors loaded from the mount by safetensors, all equal to the source")
        with Tonne(self.work / f"cold-{name}").mounted(reference, point):
            size, seconds = read_all_s(point)
        target = self.work / f"pull-{name}"
        tonne.run("pull", reference, target)
        tonne.run("verify", reference, target)
        new = "-"
        if new_version is not None:
            self.say(f"{name}: packing v2, one shard changed")
            second = tonne.json("pack", new_version, f"{registry.address}/demo/{name}:v2", "--base", reference)
            new = f"{amount(second['new']['storedBytes'])} of {amount(second['contentBytes'])}"
        self.rows.append(
            (
                name,
                amount(packed["contentBytes"]),
                amount(packed["storedBytes"]),
                f"{mount_s * 1000:.0f} ms",
                amount(fetched),
                f"{tensor_s * 1000:.0f} ms",
                f"{size / seconds / GIB:.2f} GiB/s",
                new,
            )
        )

    def table(self) -> None:
        table = Table(title="real bytes, Debian's docker-registry on loopback, empty cache")
        for head in (
            "model",
            "raw",
            "stored",
            "time to mount",
            "fetched before first tensor",
            "time to first tensor",
            "full read, cold",
            "new in v2",
        ):
            table.add_column(head, justify="left" if head == "model" else "right")
        for row in self.rows:
            table.add_row(*row)
        self.console.print(table)

    def ten_terabytes(self, size: str, files: int, reads: int) -> None:
        """Mount a computed image, read at random places, check every byte."""
        self.say(f"{size}: computing an image of {files} files (content is computed when it is asked for)")
        with Computed(parse_size(size, "--computed"), files) as computed:
            tonne = Tonne(self.work / "cache-computed")
            point = self.work / "mount-computed"
            point.mkdir()
            before = computed.bytes_sent()
            began = time.perf_counter()
            with tonne.mounted(computed.reference, point) as pid:
                mount_ms = (time.perf_counter() - began) * 1000
                mount_kib = (computed.bytes_sent() - before) / 1024
                wrong, total = computed.check_random_reads(point, reads)
                rss_mib = peak_rss_mib(pid)
        if wrong:
            raise SystemExit(f"{wrong} of {reads} reads were wrong")
        table = Table(title=f"{size} in {files} files, served on loopback")
        for head in ("mounted in", "fetched to mount", f"{reads} random reads of 4 KiB", "memory of the mount, peak"):
            table.add_column(head, justify="right")
        table.add_row(
            f"{mount_ms:.0f} ms", f"{mount_kib:.0f} KiB", f"all right ({amount(total)})", f"{rss_mib:.0f} MiB"
        )
        self.console.print(table)


def peak_rss_mib(pid: int) -> float:
    """The most memory that a process held, from /proc (VmHWM)."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise AssertionError("no VmHWM")


def main() -> None:
    """Everything, or a smaller version of it for tests."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--generated-mib", type=int, default=1024, help="size of the generated model")
    parser.add_argument("--computed", default="10TB", help="size of the computed image")
    parser.add_argument("--files", type=int, default=400, help="its files")
    parser.add_argument("--reads", type=int, default=200, help="random reads of it")
    options = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 140)
    began = time.perf_counter()
    with contextlib.ExitStack() as stack:
        work = Path(tempfile.mkdtemp(prefix="tonne-demo-"))
        stack.callback(shutil.rmtree, work, ignore_errors=True)
        demo = Demo(work, console)
        registry = stack.enter_context(DebianRegistry(work / "registry"))
        demo.say(f"registry on {registry.address}")
        demo.model("minilm", real_model(work / "minilm"), registry, None)
        generated = generated_model(work / "generated", options.generated_mib * MIB)
        changed = with_one_shard_changed(generated, work / "generated-v2")
        demo.model("generated", generated, registry, changed)
        demo.table()
        demo.ten_terabytes(options.computed, options.files, options.reads)
    demo.say(f"done in {time.perf_counter() - began:.0f} s; everything that was started is stopped and removed")


if __name__ == "__main__":
    main()
