"""The same bytes under every setting of MKL and torch, and how far settings are from each other.

    python -m benchmarks.determinism                                     # all that is missing
    python -m benchmarks.determinism --tests 'compatible, 2 threads'     # the tests of offsets alone, under a setting; writes nothing

Under each setting the tests of determinism run (tensors at other offsets, jobs, engines), and every command of
`tests/solve/test_offsets.py` writes its output from the same inputs; the largest difference from the first
setting's output, in parts of the tensor's largest entry, is what rounding makes of it.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.harness import ROOT, Benchmark, Cells, reach_tests

SETTINGS: dict[str, dict[str, str]] = {
    "as the user leaves it": {}, "auto": {"MKL_CBWR": "AUTO"}, "compatible": {"MKL_CBWR": "COMPATIBLE"},
    "no mode": {"MKL_CBWR": ""}, "torch default": {"ATEN_CPU_CAPABILITY": "default"},
    "torch avx2": {"ATEN_CPU_CAPABILITY": "avx2"},
}  # fmt: skip
THREADS = (1, 2)
TESTS = ["tests/solve/test_offsets.py"]
MORE = [
    "tests/run/test_jobs.py::test_the_number_of_jobs_does_not_matter[llama]",
    "tests/run/test_parcels.py::test_what_travels_is_all_that_is_needed[aligned]",
    "tests/observe/test_accelerator.py::test_a_device_finds_what_the_processor_finds",
]
NAMES = ("bert", "gpt2")


def environment(setting: str, threads: int) -> dict[str, str]:
    chosen = {name: value for name, value in os.environ.items() if name not in ("MKL_CBWR", "ATEN_CPU_CAPABILITY")}
    paths = [str(ROOT / "src"), str(ROOT / "tests"), str(ROOT)]
    number = str(threads)
    own = {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": number, "ISOMERGE_THREADS": number}
    return chosen | own | SETTINGS[setting]


def make_inputs(folder: Path) -> None:
    """Two models, a base and an alignment of each name: made once, read under every setting."""
    import isomerge
    from solve.disguises import disguise, perturb, single

    for name in NAMES:
        place = folder / name
        place.mkdir()
        single(name, place / "base")
        perturb(place / "base", place / "a", 0.1)
        disguise(name, perturb(place / "base", place / "near", 0.2, seed=1), place / "b", 3)
        isomerge.align(place / "b", onto=place / "a")[0].save(place / "alignment")


def write_outputs(inputs: Path, out: Path) -> None:
    """What every command that needs no data writes."""
    from solve.test_offsets import COMMANDS

    for name in NAMES:
        models = {path.name: path for path in (inputs / name).iterdir()}
        for command in COMMANDS.keys() - {"fisher"}:
            COMMANDS[command](models, out / f"{name}, {command}")
    from isomerge.arithmetic import arithmetic_record

    (out / "arithmetic.json").write_text(json.dumps(arithmetic_record()))


def written(inputs: Path, out: Path, child: dict[str, str]) -> Path:
    out.mkdir()
    program = "import pathlib, sys; from benchmarks.determinism import write_outputs; "
    program += "write_outputs(*map(pathlib.Path, sys.argv[1:]))"
    subprocess.run([sys.executable, "-c", program, str(inputs), str(out)], env=child, check=True)
    return out


def differences(first: Path, second: Path) -> dict[str, float]:
    """By output: the largest difference, in parts of the tensor's largest entry."""
    from safetensors.torch import load_file

    largest = {}
    for folder in sorted(path for path in first.iterdir() if path.is_dir()):
        a, b = (load_file(place / folder.name / "model.safetensors") for place in (first, second))
        largest[folder.name] = max(
            float((b[n] - x).abs().max() / x.abs().max()) for n, x in a.items() if float(x.abs().max())
        )
    return largest


@cache
def prepared() -> tuple[Path, Path, tempfile.TemporaryDirectory[str]]:
    """Inputs, and the outputs that all others are compared with: one thread, as the user leaves it."""
    import isomerge  # noqa: F401 - its mode, before torch computes

    reach_tests()
    place = tempfile.TemporaryDirectory()
    inputs = Path(place.name) / "inputs"
    inputs.mkdir()
    make_inputs(inputs)
    first = written(inputs, Path(place.name) / "first", environment("as the user leaves it", 1))
    return inputs, first, place


def tested(setting: str, threads: int, *more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", *TESTS, *more, "-p", "no:cacheprovider"]
    child = environment(setting, threads)
    return subprocess.run(command, cwd=ROOT, env=child, capture_output=True, text=True, check=False)


def measure(setting: str, threads: int) -> dict[str, Any]:
    inputs, first, _ = prepared()
    began, tests = time.perf_counter(), tested(setting, threads, *MORE)
    with tempfile.TemporaryDirectory() as place:
        out = written(inputs, Path(place) / "out", environment(setting, threads))
        arithmetic, apart = json.loads((out / "arithmetic.json").read_text()), differences(first, out)
    return {
        "arithmetic": arithmetic,
        "passed": tests.returncode == 0,
        "tests": tests.stdout.strip().splitlines()[-1],
        "largest difference": max(apart.values()),
        "differences": {name: value for name, value in apart.items() if value},
        "seconds": round(time.perf_counter() - began),
    }


def machine(cells: dict[str, Any]) -> dict[str, Any]:
    import torch

    rows = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    names = (row.partition(":")[2].strip() for row in rows if row.startswith("model name"))
    processor = next(names, platform.processor())
    return {"machine": {"processor": processor, "torch": torch.__version__, "python": platform.python_version()}}


def cells(asked: argparse.Namespace | None = None) -> Cells:
    return {f"{s}, {n} threads": {"setting": s, "threads": n} for s in SETTINGS for n in THREADS}


BENCHMARK = Benchmark("determinism", cells, measure, inside="runs", about=machine)

if __name__ == "__main__":
    if "--tests" in sys.argv:
        for name in sys.argv[sys.argv.index("--tests") + 1 :]:
            run = tested(**cells()[name])
            print(run.stdout, flush=True)
            if run.returncode:
                sys.exit(f"not the same bytes: {name}")
    else:
        os.environ["OMP_NUM_THREADS"] = "1"
        BENCHMARK.main()
