"""What the command line says of an output that is checked: ``isomerge fsck``."""

from __future__ import annotations

from typing import Any

from isomerge.cli.console import Voice, size_text
from isomerge.options.requests import checking as asked_for


def tell_fsck(voice: Voice, asked: asked_for.Fsck, report: dict[str, Any]) -> int | None:
    """Whether it is sound, what is wrong with it, and what became of the inputs."""
    rows = report["files"] if voice.verbose else [row for row in report["files"] if row["state"] != "ok"]
    if rows:
        voice.table("", ["file", "bytes", "crc32", ""], [_cells(row) for row in rows])
    for problem in report["problems"]:
        voice.say(f"{problem['file']}: {problem['problem']}")
    nbytes = size_text(sum(row["bytes"] for row in report["files"]))
    state = "Sound" if report["sound"] else "Damaged"
    voice.say(f"{state}: {len(report['files'])} files, {nbytes}, {len(report['problems'])} problems.", "bold")
    if report["strangers"] and report["sound"]:
        voice.say(f"Beside them, without checksums in the report: {', '.join(report['strangers'][:8])}.")
    if report["report"] == "unknown":
        voice.say("Note: an earlier version wrote the report, without a digest of it: edits of it are not noticed.")
    _say_inputs(voice, report["inputs"])
    return None if report["sound"] else 1


def _cells(row: dict[str, Any]) -> list[str]:
    return [row["file"], f"{row['bytes']:,}", row["crc32"], row["state"]]


def _say_inputs(voice: Any, inputs: list[dict[str, Any]]) -> None:
    """What has become of the inputs: a count, and those that changed."""
    counts = {state: sum(row["state"] == state for row in inputs) for state in ("unchanged", "changed", "absent")}
    said = [f"{count} {state}" for state, count in counts.items() if count]
    if said:
        voice.say(f"Inputs, {len(inputs)} files: {', '.join(said)} since.")
    rows = inputs if voice.verbose else [row for row in inputs if row["state"] == "changed"]
    if rows:
        cells = [[f"{row['model']}: {row['file']}", *_cells(row)[1:]] for row in rows]
        voice.table("", ["input", "bytes", "crc32", ""], cells)
