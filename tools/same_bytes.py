"""Whether isomerge still writes the same bytes and says the same words: SHA-256 of what it makes of tiny models.

    python tools/same_bytes.py --check                  # what differs from tools/same_bytes.json: exit code 1
    python tools/same_bytes.py --check --only 'llama*'  # the cases whose names match; --list prints the names
    python tools/same_bytes.py --check --part 3/10      # every tenth case, from the third on
    python tools/same_bytes.py --write                  # all of the file anew
    python tools/same_bytes.py --write words            # its words alone; refused where weights differ

The cases (`same_bytes_cases`) are bound specs of every model type and toy, and commands on toys. A case has digests
of **weights**, which no refactoring may change (tensors of models, of alignments and patches; bound specs), and,
apart from these, of **words** (reports, cards, configs, what the terminal shows, the exit code), which a step may
change on purpose. What differs from run to run is taken out of words: times, memory, versions, and the folder.

Everything runs in one process that computes as all processors of a kind can (`ARITHMETIC`). Where a trial
computation gives other bits than it did on the machine that wrote the file, nothing can be compared, and the exit
code is 3: write a file of your own before your change, and check against it (``--file``).
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import hashlib
import io
import json
import multiprocessing
import os
import platform
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from same_bytes_cases import Case, Group

ROOT = Path(__file__).resolve().parents[1]
FILE = ROOT / "tools/same_bytes.json"
ARITHMETIC = {
    "MKL_CBWR": "COMPATIBLE",
    "ATEN_CPU_CAPABILITY": "default",
    "ONEDNN_MAX_CPU_ISA": "SSE41",
    "OPENBLAS_CORETYPE": "Nehalem",
    "NUMBA_CPU_NAME": "generic",
}
"""Instructions that all processors of one kind have: of MKL (as in `benchmarks/determinism.py`, "compatible"), of
the other libraries that compute, and of compiled loops."""
QUIET = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "TRANSFORMERS_VERBOSITY": "error",
    "DIFFUSERS_VERBOSITY": "error",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "PYTHONWARNINGS": "ignore",
    "COLUMNS": "160",
    "NO_COLOR": "1",
}
"""One thread, and a terminal that is the same everywhere."""
DIFFERS, CANNOT_TELL = 1, 3
WHOLE, PART = 16, 3
"""Hexadecimal digits that are kept of a file's digest, and of each of its parts' (which only name what differs)."""

# ------------------------------------------------------------------------------------------------------- digests


@dataclass(frozen=True)
class Digest:
    """Of one file: of the whole, and of its parts (tensors, lines, keys of a report) in order."""

    whole: str
    parts: Mapping[str, str]

    @classmethod
    def of(cls, parts: Mapping[str, bytes], beside: bytes = b"") -> Digest:
        """Of named parts, and of what else counts (the layout of the file)."""
        whole = hashlib.sha256(beside)
        for name, content in parts.items():
            whole.update(f"\0{name}\0{len(content)}\0".encode() + content)
        return cls(whole.hexdigest()[:WHOLE], {name: _short(content) for name, content in parts.items()})

    @property
    def kept(self) -> str:
        """As the file keeps it: names of parts are not kept."""
        return f"{self.whole} {''.join(self.parts.values())}"

    def unlike(self, kept: str) -> list[str]:
        """The names of the parts that differ from what was kept: none where their number does."""
        digits = kept.partition(" ")[2]
        if len(digits) != PART * len(self.parts):
            return []
        old = [digits[at : at + PART] for at in range(0, len(digits), PART)]
        return [name for (name, new), was in zip(self.parts.items(), old, strict=True) if new != was]


def _short(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:PART]


@dataclass(frozen=True)
class Outcome:
    """What a case made: digests by file, of weights and of words."""

    weights: dict[str, Digest] = field(default_factory=dict)
    words: dict[str, Digest] = field(default_factory=dict)

    def kept(self) -> dict[str, dict[str, str]]:
        """As the file keeps it."""
        return {
            kind: {name: digest.kept for name, digest in digests.items()}
            for kind, digests in self.by_kind().items()
        }

    def by_kind(self) -> dict[str, dict[str, Digest]]:
        """Weights and words."""
        return {"weights": self.weights, "words": self.words}

    def unlike(self, case: str, kept: Mapping[str, Mapping[str, str]]) -> Iterator[tuple[str, str]]:
        """What differs from what was kept: ``weights`` or ``words``, and a sentence that names it."""
        if not kept:
            yield "weights" if self.weights else "words", f"{case} is new"
            return
        for kind, digests in self.by_kind().items():
            old = kept.get(kind, {})
            for name in sorted(digests.keys() | old.keys()):
                if name not in old:
                    yield kind, f"{case}: {kind}: {name} is new"
                elif name not in digests:
                    yield kind, f"{case}: {kind}: {name} is missing"
                elif digests[name].kept != old[name]:
                    yield kind, f"{case}: {kind}: {name} differs{_where(digests[name], old[name])}"


def _where(digest: Digest, kept: str) -> str:
    if not digest.parts:
        return f": {digest.whole}, not {kept.strip()}"
    parts = digest.unlike(kept)
    if not parts:
        return " in its layout, or in the number of its parts"
    return f" in {', '.join(parts[:6])}{f' and {len(parts) - 6} more' if len(parts) > 6 else ''}"


def file_digests(path: Path, name: str, folder: Path) -> Outcome:
    """Of one file that a command wrote, named ``name``, in ``folder`` or below it.

    Tensors of safetensors files and where they lie in it are weights; all else is words.
    """
    content = path.read_bytes()
    if path.suffix == ".safetensors":
        size = int.from_bytes(content[:8], "little")
        header = json.loads(content[8 : 8 + size])
        words = header.pop("__metadata__", None)
        parts, start = {}, 8 + size
        for tensor, row in header.items():
            first, last = row["data_offsets"]
            parts[tensor] = f"{row['dtype']}{row['shape']}".encode() + content[start + first : start + last]
        layout = json.dumps([header, len(content) - start]).encode()
        metadata = {f"{name} metadata": _of_json(words, folder)} if words else {}
        return Outcome({name: Digest.of(parts, layout)}, metadata)
    if path.suffix == ".json":
        return Outcome(words={name: _of_json(json.loads(content), folder)})
    if path.suffix in (".png", ".lock"):  # a picture's bytes are those of the library that draws it
        return Outcome(words={name: Digest.of({})})
    return Outcome(words={name: _of_text(content.decode(), folder)})


def _of_json(content: Any, folder: Path) -> Digest:
    rows = content if isinstance(content, dict) else {"all": content}
    kept = {str(key): settled(row, folder) for key, row in rows.items() if key not in VOLATILE}
    return Digest.of({key: json.dumps(row).encode() for key, row in kept.items()})


def _of_text(text: str, folder: Path) -> Digest:
    lines = [line for line in settled(text, folder).splitlines() if not PROGRESS.match(line)]
    return Digest.of({f"line {number}": line.encode() for number, line in enumerate(lines, 1)})


VOLATILE = {
    "seconds", "peak_memory", "memory", "version", "isomerge_version", "transformers_version", "_diffusers_version",
    "torch", "created", "date", "started", "finished", "threads", "machine",
    "digest", "files",
}  # fmt: skip
"""Keys whose values are of the run, not of what was asked for; the last two are digests of files."""
PROGRESS = re.compile(r".*: \d+%(, .*)?$")
"""How far a run is, which is told every few seconds."""
TIMES = re.compile(r"\b\d+(?:\.\d+)? (?:s|ms|min|minutes|seconds|[KMG]i?B)\b")


def settled(content: Any, folder: Path) -> Any:
    """JSON or text without what differs from run to run."""
    if isinstance(content, dict):
        return {str(key): settled(row, folder) for key, row in content.items() if key not in VOLATILE}
    if isinstance(content, list):
        return [settled(row, folder) for row in content]
    if not isinstance(content, str):
        return content
    from isomerge import __version__

    return TIMES.sub("AMOUNT", content.replace(str(folder), "FOLDER").replace(__version__, "VERSION"))


# --------------------------------------------------------------------------------------------------------- running


class Room:
    """Folders of groups of cases, and what their cases made: every case runs once."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.made: dict[str, Outcome] = {}
        self._prepared: set[str] = set()

    def run(self, group: Group, case: Case) -> Outcome:
        """What a case makes, after those that it needs."""
        if case.name not in self.made:
            for needed in case.needs:
                self.run(group, group.cases[needed])
            folder = self.root / group.folder
            with _in(folder):
                if group.name not in self._prepared:
                    self._prepared.add(group.name)
                    group.prepare(folder)
                self.made[case.name] = _outcome(case, folder)
        return self.made[case.name]

    def leave(self, group: Group) -> None:
        """Remove a group's folder."""
        shutil.rmtree(self.root / group.folder, ignore_errors=True)
        self._prepared.discard(group.name)


@contextlib.contextmanager
def _in(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    folder.mkdir(exist_ok=True)
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def _outcome(case: Case, folder: Path) -> Outcome:
    import torch

    torch.manual_seed(0)
    if case.specs is not None:
        return Outcome({name: Digest.of(parts) for name, parts in case.specs().items()})
    before = set(folder.rglob("*"))
    found = Outcome()
    if case.command:
        code, out, err = command(case.command)
        if "SAME_BYTES_PRINT" in os.environ:
            print(f"--- {case.name}: {' '.join(case.command)}\n{out}{err}--- exit code {code}", file=sys.stderr)
        said = {"stdout": _of_text(out, folder), "stderr": _of_text(err, folder)}
        found.words.update({"exit code": Digest(str(code), {}), **said})
    for path in sorted(set(folder.rglob("*")) - before if case.command else before):
        if path.is_file() and path.suffix != ".lock":
            digests = file_digests(path, path.relative_to(folder).as_posix(), folder)
            found.weights.update(digests.weights)
            found.words.update(digests.words)
    return found


def command(words: Iterable[str]) -> tuple[int, str, str]:
    """Run the program in this process: its exit code, and what it prints."""
    from isomerge.cli.app import main as program

    out, err = io.StringIO(), io.StringIO()
    before, sys.argv, code = sys.argv, ["isomerge", *words], 0
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            program()
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    finally:
        sys.argv = before
        gc.unfreeze()
    return code, out.getvalue(), err.getvalue()


def trial() -> str:
    """A digest of products, decompositions and functions of this machine, and of who made its processor: where it
    differs, weights do. (MKL takes other ways for small matrices on AMD's, also where it is to be compatible.)"""
    import numpy as np
    import scipy.linalg
    import torch

    drawn = torch.randn(67, 67, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    single = drawn.float()
    square = drawn @ drawn.T
    made = [drawn, square, single @ single]
    made += [torch.linalg.svd(drawn)[1], torch.linalg.eigh(square)[0], torch.linalg.qr(single)[1]]
    made += [single.exp(), single.tanh(), single.softmax(1), single.sum(0), drawn.sin()]
    arrays = [tensor.numpy() for tensor in made]
    array = drawn.numpy()
    arrays += [np.exp(array), array @ array, scipy.linalg.svdvals(array), np.log(np.abs(array))]
    content = b"".join(np.ascontiguousarray(x).tobytes() for x in arrays) + _of_processor("vendor_id").encode()
    return hashlib.sha256(content).hexdigest()[:WHOLE]


def _of_processor(key: str) -> str:
    """What Linux says of the first processor; elsewhere what Python knows."""
    rows = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    values = (row.partition(":")[2].strip() for row in rows if row.partition(":")[0].strip() == key)
    return next(values, platform.processor())


def machine() -> dict[str, str]:
    """What the file was written on; `trial` decides."""
    import torch
    import transformers

    versions = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
    return {"trial": trial(), "processor": _of_processor("model name"), **versions}


# ---------------------------------------------------------------------------------------------------------- command


def environment() -> dict[str, str]:
    """The environment that cases run in."""
    paths = os.pathsep.join(str(ROOT / name) for name in ("src", "tests", "tools"))
    return {**os.environ, **ARITHMETIC, **QUIET, "PYTHONPATH": paths, "PYTHONHASHSEED": "0", "SAME_BYTES": "1"}


def _run_groups(arguments: tuple[str, list[str]]) -> dict[str, Outcome]:
    """The cases of these names of one group, in a folder of its own."""
    from same_bytes_cases import groups

    name, wanted = arguments
    group = groups()[name]
    with tempfile.TemporaryDirectory(dir=_memory()) as place:
        _set_cache(Path(place))
        room = Room(Path(place).resolve())
        found = {case: room.run(group, group.cases[case]) for case in wanted}
        os.environ.pop("ISOMERGE_CACHE", None)
    return found


def _memory() -> str | None:
    """A folder in memory, where there is one: commands flush what they write to the disk."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def _set_cache(place: Path) -> None:
    os.environ["ISOMERGE_CACHE"] = str(place / "answers")


def outcomes(wanted: Mapping[str, list[str]], jobs: int) -> Iterator[tuple[str, Outcome]]:
    """What the cases make, group by group; progress on stderr."""
    total, done, began = sum(map(len, wanted.values())), 0, time.monotonic()
    with contextlib.ExitStack() as stack:
        if jobs > 1:
            pool = stack.enter_context(multiprocessing.get_context("spawn").Pool(jobs))
            made = pool.imap(_run_groups, wanted.items())
        else:
            made = map(_run_groups, wanted.items())
        for group, found in zip(wanted, made, strict=True):
            done += len(found)
            print(f"{done:4}/{total}  {time.monotonic() - began:5.0f} s  {group}", file=sys.stderr, flush=True)
            yield from found.items()


def chosen(patterns: list[str], part: str) -> dict[str, list[str]]:
    """By group: the names of the cases that match a pattern, of every N-th case from the K-th on."""
    from same_bytes_cases import groups

    number, _, count = part.partition("/")
    names = [(group.name, case) for group in groups().values() for case in group.cases]
    names = [names[k] for k in range(int(number) - 1, len(names), int(count))]
    found: dict[str, list[str]] = {}
    for group, case in names:
        if any(fnmatchcase(case, pattern) or pattern in case for pattern in patterns):
            found.setdefault(group, []).append(case)
    return found


def written(file: Path, cases: Mapping[str, Any], on: Mapping[str, str]) -> None:
    """Write the file: one case to a line."""
    rows = [f"{json.dumps(name)}: {json.dumps(row, separators=(',', ':'))}" for name, row in cases.items()]
    file.write_text('{"machine": ' + json.dumps(on) + ',\n"cases": {\n' + ",\n".join(rows) + "\n}}\n")


def serve() -> None:
    """Answer the name of a case, a line of stdin, by what differs from the file: what the tests talk to."""
    from same_bytes_cases import groups

    kept = json.loads(FILE.read_text())["cases"]
    print(
        json.dumps({"machine": machine(), "cases": [case for group in groups().values() for case in group.cases]})
    )
    sys.stdout.flush()
    with tempfile.TemporaryDirectory(dir=_memory()) as place:
        _set_cache(Path(place))
        room = Room(Path(place).resolve())
        for line in sys.stdin:
            case = line.rstrip("\n")
            group = groups()[case.partition(": ")[0]]
            made = room.run(group, group.cases[case])
            print(json.dumps([sentence for _, sentence in made.unlike(case, kept[case])]), flush=True)


def main(words: list[str] | None = None) -> int:
    """Run the cases that are asked for; 0 where all is the same."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--check", action="store_true", help="name what differs from the file")
    what.add_argument(
        "--write", nargs="?", const="all", choices=("all", "words"), help="write the file, or its words"
    )
    what.add_argument("--list", action="store_true", help="print the names of the cases")
    what.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument(
        "--only", nargs="+", default=["*"], metavar="PATTERN", help="cases whose names match, or have this in them"
    )
    parser.add_argument("--part", default="1/1", metavar="K/N", help="every N-th case, from the K-th on")
    parser.add_argument("--jobs", type=int, default=1, help="processes (1)")
    parser.add_argument("--file", type=Path, default=FILE, help="of digests (tools/same_bytes.json)")
    parser.add_argument("--print", action="store_true", help="what the commands print as well")
    asked = parser.parse_args(words)
    if asked.print:
        os.environ["SAME_BYTES_PRINT"] = "1"
    if asked.serve:
        serve()
        return 0
    wanted = chosen(asked.only, asked.part)
    if asked.list:
        print(*(case for cases in wanted.values() for case in cases), sep="\n")
        return 0
    return _compare(asked, wanted)


def _compare(asked: argparse.Namespace, wanted: Mapping[str, list[str]]) -> int:
    if not wanted:
        print("no case is named like that: --list prints their names")
        return 2
    document = json.loads(asked.file.read_text()) if asked.file.exists() else {"machine": {}, "cases": {}}
    kept, on = document["cases"], machine()
    whole = asked.only == ["*"] and asked.part == "1/1"
    begins = asked.write == "all" and (whole or not kept)
    if on["trial"] != document["machine"].get("trial") and not begins:
        print(f"{asked.file} was written on {document['machine']}; this machine computes otherwise ({on}):")
        print("write a file before your change (--write --file FILE), and check against it (--check --file FILE)")
        return CANNOT_TELL
    made = dict(outcomes(wanted, asked.jobs))
    unlike = [row for name, found in made.items() for row in found.unlike(name, kept.get(name, {}))]
    weights = [sentence for kind, sentence in unlike if kind == "weights"]
    print(*(sentence for _, sentence in unlike), sep="\n", end="\n" if unlike else "")
    told = f"{len(made)} cases: {len(weights)} of weights differ, {len(unlike) - len(weights)} of words"
    if asked.check:
        print(told)
        return DIFFERS if unlike else 0
    if asked.write == "words" and weights:
        print(f"{told}; nothing was written, as weights differ")
        return DIFFERS
    new = {name: found.kept() for name, found in made.items()}
    from same_bytes_cases import groups

    order = [case for group in groups().values() for case in group.cases]
    every = new if whole else {**kept, **new}
    written(asked.file, {name: every[name] for name in order if name in every}, on)
    print(f"{told}; written to {asked.file}")
    return 0


if __name__ == "__main__":
    if "SAME_BYTES" not in os.environ:  # what libraries compute with is decided before they are loaded
        os.execve(sys.executable, [sys.executable, *sys.argv], environment())
    sys.exit(main())
