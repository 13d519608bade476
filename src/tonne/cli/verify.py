"""`tonne verify`: an image, a part of it, or a folder against it."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import click

from tonne.cli.amounts import amount, name_fields, shown
from tonne.cli.session import Session
from tonne.cli.stream import DocumentStream
from tonne.errors import UsageError, VerifyFailed
from tonne.heap import tame_allocator
from tonne.image.match import Selection
from tonne.image.opening import Image
from tonne.image.verify import verify_blobs, verify_image, verify_sample
from tonne.image.verify_folder import verify_folder
from tonne.image.verify_frames import Finding, Verdict, VerifyReport


@click.command("verify")
@click.argument("ref")
@click.argument("folder", metavar="[DIR]", required=False, type=click.Path(path_type=Path))
@click.option("--packs", is_flag=True, help="The SHA-256 of every whole blob too.")
@click.option("--sample", metavar="SHARE", help="A random part of the frames: 1%, 0.01%, or a number such as 200.")
@click.option("--seed", type=click.IntRange(min=0), help="Take the sample that this seed took before.")
@click.option("--include", multiple=True, metavar="GLOB", help="With DIR: only what matches.")
@click.option("--exclude", multiple=True, metavar="GLOB", help="With DIR: not what matches.")
@click.pass_obj
def command(
    session: Session,
    ref: str,
    folder: Path | None,
    packs: bool,
    sample: str | None,
    seed: int | None,
    include: tuple[str, ...],
    exclude: tuple[str, ...],
) -> None:
    """Check every frame and file of the image REF, or the files of DIR (pulled or mounted) against it.

    Frames are read from the registry, past the cache; what the cache holds of them is checked as well, and dropped if
    it is wrong.  With DIR types, sizes, contents, modes, times and links are compared, and what is missing or extra is
    named.  Exit status 6 when anything is wrong.
    """
    if folder is not None and (packs or sample):
        raise UsageError("DIR goes without --packs and --sample")
    if folder is None and (include or exclude):
        raise UsageError("--include and --exclude need DIR")
    tame_allocator()
    image = session.image(ref, store=session.store() if folder is not None else None)
    telling = _Telling(session, ref, image)
    if folder is not None:
        report = verify_folder(image.index, folder, session.progress, telling.file, Selection(include, exclude))
    elif sample is not None:
        share, count = _parse_sample(sample)
        report = verify_sample(image, session.settings, session.progress, share, count, seed, session.store())
        for finding in report.findings:
            telling.finding(finding)
    else:
        report = verify_image(image, session.settings, session.progress, telling.file, session.store())
        for finding in report.findings:
            if finding.path is None:
                telling.finding(finding)
    if packs:
        before = len(report.findings)
        verify_blobs(image, session.settings, session.progress, report)
        for finding in report.findings[before:]:
            telling.finding(finding)
    session.progress.close()
    telling.end(report, folder)
    if not report.good:
        where = str(folder) if folder is not None else ref
        raise VerifyFailed(
            "the check found differences",
            where=where,
            why=f"{report.findings_count} in all",
            findings=report.findings_count,
        )


def _parse_sample(text: str) -> tuple[float | None, int | None]:
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*(%?)\s*", text)
    value = float(match[1]) if match else 0.0
    if match is None or value <= 0 or (match[2] and value > 100) or (not match[2] and "." in match[1]):
        raise UsageError(
            "that is no sample", where=text, todo="write it as 1%, 0.01% or a number of frames such as 200"
        )
    return (value / 100, None) if match[2] else (None, int(match[1]))


class _Telling:
    """Writes verdicts as they come."""

    def __init__(self, session: Session, ref: str, image: Image) -> None:
        self._quiet = session.quiet
        self._findings: list[dict[str, Any]] = []
        self._out = None
        if session.as_json:
            self._out = DocumentStream(sys.stdout, "files", {"reference": ref, "digest": str(image.digest)})

    def file(self, verdict: Verdict) -> None:
        if self._out is not None:
            item = {**name_fields(verdict.path), "good": verdict.good, "sizeBytes": verdict.size_bytes}
            if verdict.findings:
                item["findings"] = [_document(finding) for finding in verdict.findings]
            if verdict.findings_more:
                item["findingsMore"] = verdict.findings_more
            self._out.item(item)
        elif verdict.good:
            if not self._quiet:
                print(f"ok   {shown(verdict.path)}")
        else:
            for finding in verdict.findings:
                self.finding(finding)
            if verdict.findings_more:
                print(f"BAD  {shown(verdict.path)}; {verdict.findings_more} more")

    def finding(self, finding: Finding) -> None:
        if self._out is not None:
            self._findings.append(_document(finding))
        else:
            print(f"BAD  {_line(finding)}")

    def end(self, report: VerifyReport, folder: Path | None) -> None:
        if self._out is not None:
            self._out.end(
                {
                    "good": report.good,
                    "frames": report.frames,
                    "framesChecked": report.frames_checked,
                    "storedBytes": report.stored_bytes,
                    "filesChecked": report.files_checked,
                    "filesBad": report.files_bad,
                    "blobsChecked": report.blobs_checked,
                    "seed": report.seed,
                    "findings": self._findings,
                    "findingsCount": report.findings_count,
                }
            )
            return
        if folder is not None:
            print(f"{report.files_checked} files and links checked, {report.files_bad} bad")
        else:
            files = f", {report.files_checked} files" if report.seed is None else ""
            print(
                f"{report.frames_checked} of {report.frames} frames checked{files}, {amount(report.stored_bytes)} read"
            )
            if report.seed is not None:
                print(f"the sample can be taken again with --seed {report.seed}")
            if report.blobs_checked:
                print(f"{report.blobs_checked} whole blobs checked")
        print("all is well" if report.good else f"{report.findings_count} differences")
        sys.stdout.flush()


def _line(finding: Finding) -> str:
    parts = [shown(finding.path)] if finding.path is not None else []
    if finding.file_offset is not None:
        parts[-1:] = [f"{parts[-1]} at {finding.file_offset}"] if parts else []
    parts.append(f"{finding.what}: {finding.why}")
    if finding.frame is not None:
        parts.append(f"frame {finding.frame}, {finding.length} bytes at {finding.pack_offset} of {finding.pack}")
    elif finding.pack:
        parts.append(finding.pack)
    if finding.origin:
        parts.append(finding.origin)
    return "; ".join(parts)


def _document(finding: Finding) -> dict[str, Any]:
    document: dict[str, Any] = {"what": finding.what, "why": finding.why}
    if finding.path is not None:
        document |= name_fields(finding.path)
    for key, value in (
        ("fileOffset", finding.file_offset),
        ("frame", finding.frame),
        ("pack", finding.pack or None),
        ("packOffset", finding.pack_offset),
        ("length", finding.length),
        ("origin", finding.origin or None),
    ):
        if value is not None:
            document[key] = value
    return document
