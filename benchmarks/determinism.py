"""The same bytes under every setting of MKL and torch, and how far settings are from each other.

    python benchmarks/determinism.py                  # all that is missing in results/determinism.json
    python benchmarks/determinism.py --settings compatible --threads 2 --check      # two settings of the tests: the usual one, and this

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
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks/results/determinism.json"
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
    """That of a run under a setting."""
    chosen = {name: value for name, value in os.environ.items() if name not in ("MKL_CBWR", "ATEN_CPU_CAPABILITY")}
    paths = [str(ROOT / "src"), str(ROOT / "tests"), str(ROOT)]
    number = str(threads)
    return (
        chosen
        | {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": number, "ISOMERGE_THREADS": number}
        | SETTINGS[setting]
    )


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
        given = {path.name: path for path in (inputs / name).iterdir()}
        for command in COMMANDS.keys() - {"fisher"}:
            COMMANDS[command](given, out / f"{name}, {command}")
    from isomerge.arithmetic import arithmetic_record

    (out / "arithmetic.json").write_text(json.dumps(arithmetic_record()))


def differences(one: Path, two: Path) -> dict[str, float]:
    """By output: the largest difference, in parts of the tensor's largest entry."""
    from safetensors.torch import load_file

    found = {}
    for folder in sorted(path for path in one.iterdir() if path.is_dir()):
        a, b = (load_file(place / folder.name / "model.safetensors") for place in (one, two))
        found[folder.name] = max(
            float((b[n] - x).abs().max() / x.abs().max()) for n, x in a.items() if float(x.abs().max())
        )
    return found


def run(setting: str, threads: int, inputs: Path, first: Path) -> dict[str, Any]:
    """The tests and outputs under a setting."""
    began = time.perf_counter()
    child = environment(setting, threads)
    tested = subprocess.run(
        [sys.executable, "-m", "pytest", *TESTS, *MORE, "-p", "no:cacheprovider"],
        cwd=ROOT,
        env=child,
        capture_output=True,
        text=True,
        check=False,
    )
    with tempfile.TemporaryDirectory() as place:
        out = Path(place) / "out"
        out.mkdir()
        subprocess.run([sys.executable, __file__, "--write", str(inputs), str(out)], env=child, check=True)
        arithmetic = json.loads((out / "arithmetic.json").read_text())
        apart = differences(first, out)
    return {
        "arithmetic": arithmetic,
        "passed": tested.returncode == 0,
        "tests": tested.stdout.strip().splitlines()[-1],
        "largest difference": max(apart.values()),
        "differences": {name: value for name, value in apart.items() if value},
        "seconds": round(time.perf_counter() - began),
    }


def main() -> None:
    """Run what is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--settings", nargs="+", choices=SETTINGS, default=list(SETTINGS))
    parser.add_argument("--threads", nargs="+", type=int, default=THREADS)
    parser.add_argument(
        "--check",
        action="store_true",
        help="run the tests of offsets alone and write no results; exit 1 if one fails",
    )
    parser.add_argument("--write", nargs=2, type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.write:
        write_outputs(*arguments.write)
        return
    wanted = [(setting, threads) for setting in arguments.settings for threads in arguments.threads]
    if arguments.check:
        for setting, threads in wanted:
            command = [sys.executable, "-m", "pytest", *TESTS]
            if subprocess.run(command, cwd=ROOT, env=environment(setting, threads), check=False).returncode:
                sys.exit(f"not the same bytes: {setting}, {threads} threads")
        return
    sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]
    os.environ["OMP_NUM_THREADS"] = "1"
    found: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"runs": {}}
    import torch

    import isomerge  # noqa: F401 - its mode, before torch computes

    found["machine"] = {"processor": processor(), "torch": torch.__version__, "python": platform.python_version()}
    with tempfile.TemporaryDirectory() as place:
        inputs, first = Path(place) / "inputs", Path(place) / "first"
        inputs.mkdir()
        make_inputs(inputs)
        write_first(inputs, first)
        for setting, threads in wanted:
            key = f"{setting}, {threads} threads"
            if key not in found["runs"]:
                found["runs"][key] = run(setting, threads, inputs, first)
                RESULTS.write_text(json.dumps(found, indent=1) + "\n")
                print(key, found["runs"][key]["tests"], found["runs"][key]["largest difference"], flush=True)


def write_first(inputs: Path, first: Path) -> None:
    """The outputs that all others are compared with: one thread, as the user leaves it."""
    first.mkdir()
    child = environment("as the user leaves it", 1)
    subprocess.run([sys.executable, __file__, "--write", str(inputs), str(first)], env=child, check=True)


def processor() -> str:
    """Its name, as the system tells it."""
    rows = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    return next(
        (row.partition(":")[2].strip() for row in rows if row.startswith("model name")), platform.processor()
    )


if __name__ == "__main__":
    main()
