"""What the command line says of an output that is checked: ``isomerge fsck``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from isomerge.cli.console import Voice
from isomerge.evidence.report.numerals import size_text
from isomerge.options.requests import checking as asked_for

if TYPE_CHECKING:
    from isomerge.checkpoint.checksums import Checksum
    from isomerge.run.fsck import Checkup
    from isomerge.run.provenance import InputFile


def tell_fsck(voice: Voice, asked: asked_for.Fsck, report: Checkup) -> int | None:
    """Whether it is sound, what is wrong with it, and what became of the inputs."""
    files, problems = report.files, report.problems
    shown = [each for each in files if voice.verbose or each.state != "ok"]
    if shown:
        cells = [_cells(each.file, each.checksum, each.state) for each in shown]
        voice.table(["file", "bytes", "crc32", ""], cells)
    voice.say(*(f"{problem.file}: {problem.problem}" for problem in problems))
    nbytes = size_text(sum(each.checksum.nbytes for each in files))
    state = "Sound" if report.sound else "Damaged"
    wrong = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
    voice.say(f"{state}: {len(files)} files, {nbytes}, {wrong}.", style="bold")
    if report.strangers and report.sound:
        voice.say(f"Beside them, without checksums in the report: {', '.join(report.strangers[:8])}.")
    _say_inputs(voice, report.inputs)
    return None if report.sound else 1


def _cells(file: str, checksum: Checksum, state: str | None) -> list[str]:
    return [file, f"{checksum.nbytes:,}", checksum.document()["crc32"], state or ""]


def _say_inputs(voice: Voice, inputs: Sequence[InputFile]) -> None:
    """What has become of the inputs: a count, and those that changed."""
    counts = {state: sum(each.state == state for each in inputs) for state in ("unchanged", "changed", "absent")}
    said = [f"{count} {state}" for state, count in counts.items() if count]
    if said:
        voice.say(f"Inputs, {len(inputs)} files: {', '.join(said)} since.")
    if shown := [each for each in inputs if voice.verbose or each.state == "changed"]:
        cells = [_cells(f"{each.model}: {each.file}", each.checksum, each.state) for each in shown]
        voice.table(["input", "bytes", "crc32", ""], cells)
