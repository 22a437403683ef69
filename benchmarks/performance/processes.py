"""Commands measured from outside: wall and processor seconds, and the peak of anonymous memory (Linux)."""

from __future__ import annotations

import mmap
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

PROGRAM = str(Path(sys.executable).parent / "isomerge")
PAUSE = 0.02
"""Seconds between two looks at the memory."""
AT_HAND = 6 << 30
"""Bytes of free memory that the system has just had in use when a run starts: more than any row here takes."""
LIBRARIES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def anonymous_bytes(pid: int) -> int:
    """RssAnon of a process and all of its children; 0 once it is gone."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
        threads = list(Path(f"/proc/{pid}/task").iterdir())
        children = {child for thread in threads for child in (thread / "children").read_text().split()}
    except OSError:
        return 0
    own = next((int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("RssAnon")), 0)
    return own + sum(anonymous_bytes(int(child)) for child in children)


def processor_seconds(pid: int) -> float:
    """What a process has used, user and system, with the children that it has waited for; 0 once it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def environment(threads: int) -> dict[str, str]:
    """Variables for a command: so many threads of the numerical libraries, nothing from the network, modules
    compiled once.

    What pip installs is compiled; a checkout is too, after its first start, unless Python is told to keep nothing:
    then every start compiles all of isomerge anew, and nothing of what it is compared with.
    """
    own = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**own, **dict.fromkeys(LIBRARIES, str(threads)), "HF_HUB_OFFLINE": "1"}


def into_page_cache(folders: Iterable[Path]) -> None:
    """Read all weights: some systems give cached pages back while a long run goes on, and what comes next would
    pay."""
    for folder in folders:
        for file in folder.glob("*.safetensors"):
            with file.open("rb") as stream:
                while stream.read(1 << 24):
                    pass


def memory_at_hand() -> None:
    """Take memory and give it back: a virtual machine whose host takes what is free pays for every page that it
    uses anew, several times what writing it costs, and the row that comes after a long pause would pay for all."""
    mmap.mmap(-1, AT_HAND, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE).close()


def measure(
    command: Sequence[str],
    *,
    threads: int,
    log: Path,
    inputs: Iterable[Path] = (),
    limit: float | None = None,
) -> dict[str, Any]:
    """One run of a command from start to end: imports, and flushing of what it flushes, included.

    Args:
        command: what is run.
        threads: of the numerical libraries.
        log: where its output goes.
        inputs: folders whose weights are in the page cache when it starts.
        limit: processor seconds of its own after which it is stopped (others may use the machine as well); None:
            never.

    Returns:
        ``seconds``, ``cpu_seconds`` (user and system, with children), ``peak_anonymous_bytes``, ``load`` before and
        after; ``work_seconds`` where the last line of its output is a number; ``stopped`` where it took too long.

    Raises:
        RuntimeError: the command failed.
    """
    os.sync()  # nobody pays for what the run before has written
    into_page_cache(inputs)
    memory_at_hand()
    settings = environment(threads)
    load, before = os.getloadavg()[0], resource.getrusage(resource.RUSAGE_CHILDREN)
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as stream:
        start, peak, stopped = time.perf_counter(), 0, False
        process = subprocess.Popen(list(command), env=settings, stdout=stream, stderr=stream)
        while process.poll() is None:
            peak = max(peak, anonymous_bytes(process.pid))
            time.sleep(PAUSE)
            if limit is not None and not stopped and processor_seconds(process.pid) > limit:
                process.kill()
                stopped = True
        seconds = time.perf_counter() - start
    if process.returncode and not stopped:
        raise RuntimeError(f"{' '.join(map(str, command))} failed: see {log}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    figures: dict[str, Any] = {
        "seconds": round(seconds, 3),
        "cpu_seconds": round(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 3),
        "peak_anonymous_bytes": peak, "load": [round(load, 2), round(os.getloadavg()[0], 2)],
    }  # fmt: skip
    if stopped:
        return {**figures, "stopped": True}
    last = log.read_text().strip().rpartition("\n")[2]
    if last.replace(".", "", 1).isdigit():
        figures["work_seconds"] = round(float(last), 3)
    return figures
