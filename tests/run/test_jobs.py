"""Units by several jobs: the same bytes for any number, within the memory that is allowed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import isomerge
from depth import EVERY
from isomerge.models.peak_memory import free_memory
from isomerge.models.recognised import recognise
from isomerge.models.unit_plan import make_plan
from isomerge.run.cost import LIBRARIES, Needs, memory_needed
from isomerge.run.unit_work import UnitWork
from isomerge.solve.pairs.stream_descent import StreamSolver
from solve.disguises import disguise, files_of, perturb, single
from toys import save_toy

pytestmark = [
    pytest.mark.in_few_sweeps("how far streams of strangers settle does not matter here"),
    pytest.mark.matched("of layers: else strangers' streams are matched as well, and small changes not at all"),
]

MERGES: dict[str, dict[str, Any]] = {
    "gpt2": {},
    "llama": {"spaces": "all"},
    "mixtral": {"method": "ties", "parameters": {"density": 0.5}},
    "t5-gated": {"method": "dare_linear", "parameters": {"density": 0.5}},
    "bert": {"method": "karcher"},
}


def weights_of(folder: Path) -> dict[str, bytes]:
    """All that a run writes, but for the report, which names the folder of its inputs."""
    return {name: data for name, data in files_of(folder).items() if name != "isomerge.json"}


@pytest.mark.parametrize("name", [n for n in MERGES if EVERY or n not in ("bert", "gpt2", "t5-gated")])
def test_the_number_of_jobs_does_not_matter(name: str, tmp_path: Path) -> None:
    """Merging and aligning by one job, two and four: byte by byte."""
    a = single(name, tmp_path / "a")
    b = disguise(name, perturb(a, tmp_path / "near", 0.2), tmp_path / "b", 3)
    how = dict(MERGES[name])
    if how.get("method", "linear") not in ("linear", "karcher"):
        how["base_model"] = save_toy(name, tmp_path / "base", seed=0, dtype=torch.float32)
    merged, aligned = [], []
    for jobs in (1, 2, 4):
        isomerge.merge([a, b], out=tmp_path / f"m{jobs}", jobs=jobs, **how)
        isomerge.align(b, onto=a, out=tmp_path / f"a{jobs}", jobs=jobs)
        merged.append(weights_of(tmp_path / f"m{jobs}"))
        aligned.append(weights_of(tmp_path / f"a{jobs}"))
    assert merged[0] == merged[1] == merged[2]
    assert aligned[0] == aligned[1] == aligned[2]
    assert merged[0]["model.safetensors"] != aligned[0]["model.safetensors"]


def test_jobs_work_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two units are inside at once, and one job has but one."""
    import threading

    a = single("gpt2", tmp_path / "a")
    b = disguise("gpt2", a, tmp_path / "b", 3)
    one_unit, lock, inside, most = UnitWork.solve, threading.Lock(), [0], [0]
    together = threading.Event()

    def counted(*given: Any) -> Any:
        with lock:
            inside[0] += 1
            most[0] = max(most[0], inside[0])
            if inside[0] == 2:
                together.set()
        together.wait(5 if jobs > 1 else 0)
        found = one_unit(*given)
        with lock:
            inside[0] -= 1
        return found

    monkeypatch.setattr(UnitWork, "solve", counted)
    for jobs in (1, 2):
        most[0] = 0
        isomerge.merge([a, b], out=tmp_path / f"out-{jobs}", jobs=jobs)
        assert most[0] == jobs + 1 or most[0] == jobs  # one more is begun when one is done and not yet taken


def test_units_have_one_thread_each_without_jobs_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums depend on the number of threads: what `--jobs` gives each unit it has without, so that the bytes are the
    same."""
    a = single("gpt2", tmp_path / "a")
    b = disguise("gpt2", a, tmp_path / "b", 3)
    seen: list[int] = []
    solve, before = UnitWork.solve, torch.get_num_threads()
    monkeypatch.setattr(UnitWork, "solve", lambda *given: [solve(*given), seen.append(torch.get_num_threads())][0])
    torch.set_num_threads(2)
    try:
        isomerge.merge([a, b], out=tmp_path / "unasked")
        isomerge.merge([a, b], out=tmp_path / "asked", jobs=3)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert set(seen) == {1}
    assert weights_of(tmp_path / "unasked") == weights_of(tmp_path / "asked")


def test_a_budget_that_is_too_small_is_refused(tmp_path: Path) -> None:
    """Before anything is written, naming the unit; a larger one gives the same bytes."""
    a = single("gpt2", tmp_path / "a")
    b = disguise("gpt2", a, tmp_path / "b", 3)
    with pytest.raises(
        isomerge.IsomergeError, match=r"max_memory=0\.3GB\) is too little: the unit of .* needs about 0\.36 GB"
    ):
        isomerge.merge([a, b], out=tmp_path / "out", max_memory="300MB")
    assert not (tmp_path / "out").exists()
    isomerge.merge([a, b], out=tmp_path / "out", jobs=4, max_memory=int(LIBRARIES) + 200_000)
    isomerge.merge([a, b], out=tmp_path / "alone", jobs=1)
    assert weights_of(tmp_path / "out") == weights_of(tmp_path / "alone")
    with pytest.raises(isomerge.IsomergeError, match="jobs=0"):
        isomerge.merge([a, b], out=tmp_path / "none", jobs=0)


def test_a_budget_bounds_what_passes_keep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The residual streams' passes keep the units that the budget leaves room for, and read the others again: the
    same bytes."""
    a = single("llama", tmp_path / "a")
    b = disguise("llama", a, tmp_path / "b", 3)
    plan = make_plan(recognise(b), [recognise(a)], "all")
    need, largest = memory_needed(plan, [recognise(b), recognise(a)], Needs(True))
    assert largest in plan.units
    kept: list[int] = []
    solve = StreamSolver.solve
    monkeypatch.setattr(StreamSolver, "solve", lambda self: [solve(self), kept.append(len(self.units._cache))][0])
    found = []
    half = 4 * sum(t.numel() for t in load_file(a / "model.safetensors").values())  # of both models, in float32
    for more in (0, half, None):
        limit = None if more is None else int(need) + 1 + more
        kept.clear()
        isomerge.align(b, onto=a, out=tmp_path / f"out-{more}", spaces="all", max_memory=limit)
        found.append(kept[0])
    assert 0 == found[0] < found[1] < found[2] == len(plan.units)
    assert (
        weights_of(tmp_path / "out-0") == weights_of(tmp_path / f"out-{half}") == weights_of(tmp_path / "out-None")
    )
    with pytest.raises(isomerge.IsomergeError, match=r"max_memory=.* is too little"):
        isomerge.align(b, onto=a, out=tmp_path / "none", spaces="all", max_memory=int(need) - 1)
    assert not list(tmp_path.glob("*none*"))


def test_free_memory_is_what_the_narrower_of_system_and_group_leaves(tmp_path: Path) -> None:
    """Of a made-up system; and of this one it is something."""
    assert 1e6 < free_memory() < 1e16
    assert free_memory(tmp_path) == float("inf")
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal: 100 kB\nMemAvailable:    50 kB\n")
    assert free_memory(tmp_path) == 51200
    group = tmp_path / "sys/fs/cgroup"
    group.mkdir(parents=True)
    (group / "memory.current").write_text("1000\n")
    for limit, left in (("max", 51200), ("31000", 30000)):
        (group / "memory.max").write_text(f"{limit}\n")
        assert free_memory(tmp_path) == left
