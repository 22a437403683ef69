"""Wall time and peak anonymous memory of the same recipes through mergekit 0.1.5 and isomerge, as processes (Linux).

    python benchmarks/mergekit/speed.py              # writes results/mergekit-speed.json and the table in docs/methods.md
    python benchmarks/mergekit/speed.py --repeats 3 1

The models are made on the first run (benchmarks/data/mergekit-speed): a random Llama of 0.84 billion parameters in
bfloat16, four shards, and two fine-tunes, which are the base and small noise. Both tools run in turns, so that other work on
the machine slows them alike, on as many threads, with the inputs in the page cache.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import yaml
from compare import DATA, ENVIRONMENT, MERGEKIT, TORCH, environment

ROOT = Path(__file__).parents[2]
FOLDER = DATA / "mergekit-speed"
RESULTS = ROOT / "benchmarks" / "results" / "mergekit-speed.json"
TABLE = ROOT / "docs" / "methods.md"
MARKS = "<!-- mergekit-speed: begin -->", "<!-- mergekit-speed: end -->"
SHAPE = {
    "hidden_size": 2048, "intermediate_size": 5504, "num_hidden_layers": 14, "num_attention_heads": 16,
    "num_key_value_heads": 16, "vocab_size": 32000,
}  # fmt: skip
SHARDS, NOISE = 4, {"one": 0.002, "two": 0.002}
METHODS: dict[str, dict[str, Any]] = {
    "linear": {"weight": 1.0},
    "ties": {"weight": 1.0, "density": 0.5},
}
PAUSE = 0.1
"""Seconds between two looks at the memory."""


class Tool(NamedTuple):
    """A row of the table: what is run, before RECIPE and OUT, and what comes after."""

    name: str
    command: tuple[str, ...]
    more: tuple[str, ...] = ()


MERGE = str(ENVIRONMENT / "bin" / "mergekit-yaml")
TOOLS = (
    Tool("isomerge", (str(Path(sys.executable).parent / "isomerge"), "merge")),
    Tool("mergekit", (MERGE,)),
    Tool("mergekit, 500M shards", (MERGE,), ("--out-shard-size", "500M")),
)


def shapes() -> dict[str, tuple[int, ...]]:
    """Names and shapes of the tensors, in order."""
    d, ff, vocab = SHAPE["hidden_size"], SHAPE["intermediate_size"], SHAPE["vocab_size"]
    found: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocab, d)}
    for layer in range(SHAPE["num_hidden_layers"]):
        p = f"model.layers.{layer}."
        found |= {p + "input_layernorm.weight": (d,), p + "post_attention_layernorm.weight": (d,)}
        found |= {f"{p}self_attn.{n}_proj.weight": (d, d) for n in "qkvo"}
        found |= {f"{p}mlp.{n}_proj.weight": (ff, d) for n in ("gate", "up")} | {
            p + "mlp.down_proj.weight": (d, ff)
        }
    return {**found, "model.norm.weight": (d,), "lm_head.weight": (vocab, d)}


def write_models() -> None:
    """The base and its fine-tunes, shard by shard."""
    import torch
    from safetensors.torch import save_file

    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_act": "silu", **SHAPE}
    config |= {"rms_norm_eps": 1e-5, "tie_word_embeddings": False, "torch_dtype": "bfloat16"}
    sizes = {name: torch.Size(shape).numel() for name, shape in shapes().items()}
    total, seen, shard_of = sum(sizes.values()), 0, {}
    for name, size in sizes.items():
        shard_of[name] = f"model-{seen * SHARDS // total + 1:05}-of-{SHARDS:05}.safetensors"
        seen += size
    rng = torch.Generator().manual_seed(0)
    for folder in ("base", *NOISE):
        (FOLDER / folder).mkdir(parents=True, exist_ok=True)
    for shard in dict.fromkeys(shard_of.values()):
        parts: dict[str, dict[str, torch.Tensor]] = {folder: {} for folder in ("base", *NOISE)}
        for name in (n for n in shard_of if shard_of[n] == shard):
            base = torch.randn(shapes()[name], generator=rng).mul_(0.02)
            parts["base"][name] = base.bfloat16()
            for folder, size in NOISE.items():
                parts[folder][name] = (base + size * torch.randn(base.shape, generator=rng)).bfloat16()
        for folder, tensors in parts.items():
            save_file(tensors, FOLDER / folder / shard, metadata={"format": "pt"})
    index = {"metadata": {"total_size": 2 * total}, "weight_map": shard_of}
    for folder in parts:
        (FOLDER / folder / "model.safetensors.index.json").write_text(json.dumps(index))
        (FOLDER / folder / "config.json").write_text(json.dumps(config, indent=2))
    (FOLDER / "made").touch()


def write_recipe(method: str) -> Path:
    """The recipe that both tools read; both write bfloat16."""
    models = [{"model": str(FOLDER / name), "parameters": METHODS[method]} for name in NOISE]
    recipe: dict[str, Any] = {"models": models, "merge_method": method, "dtype": "bfloat16"}
    if method != "linear":
        recipe["base_model"] = str(FOLDER / "base")
    file = FOLDER / f"{method}.yml"
    file.write_text(yaml.safe_dump(recipe, sort_keys=False))
    return file


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


def into_page_cache() -> None:
    """Read all inputs: some systems give cached pages back while a long run goes on, and what comes next would pay for it."""
    for file in FOLDER.glob("*/*.safetensors"):
        if file.parent.name in ("base", *NOISE):
            with file.open("rb") as stream:
                while stream.read(1 << 24):
                    pass


def measure(tool: Tool, recipe: Path, out: Path, threads: int) -> dict[str, Any]:
    """One run from start to end, imports and flushing of what it flushes included.

    Raises:
        RuntimeError: the tool failed.
    """
    shutil.rmtree(out, ignore_errors=True)
    os.sync()  # nobody pays for what the run before has written
    into_page_cache()
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
    settings = {**os.environ, **dict.fromkeys(names, str(threads)), "HF_HUB_OFFLINE": "1"}
    log = out.with_suffix(".log")
    load, before = os.getloadavg()[0], resource.getrusage(resource.RUSAGE_CHILDREN)
    with log.open("w") as stream:
        start, peak = time.perf_counter(), 0
        process = subprocess.Popen(
            [*tool.command, str(recipe), str(out), *tool.more], env=settings, stdout=stream, stderr=stream
        )
        while process.poll() is None:
            peak = max(peak, anonymous_bytes(process.pid))
            time.sleep(PAUSE)
        seconds = time.perf_counter() - start
    if process.returncode:
        raise RuntimeError(f"{tool.name} failed on {recipe}: see {log}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    busy = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {
        "seconds": round(seconds, 2),
        "cpu_seconds": round(busy, 2),
        "peak_anonymous_bytes": peak,
        "load": [load, os.getloadavg()[0]],
    }


def difference(ours: Path, theirs: Path) -> dict[str, float]:
    """The largest difference of any weight, and the root mean square over that of the weights."""
    from safetensors import safe_open

    largest, squares, all_squares = 0.0, 0.0, 0.0
    places = [
        {name: file for file in sorted(folder.glob("*.safetensors")) for name in _names(file)}
        for folder in (ours, theirs)
    ]
    assert places[0].keys() == places[1].keys(), "the tools wrote different tensors"
    for name in places[0]:
        pair = []
        for place in places:
            with safe_open(place[name], "pt") as file:
                pair.append(file.get_tensor(name).float())
        a, b = pair
        all_squares += float(a.norm()) ** 2
        a -= b
        largest, squares = max(largest, float(a.abs().max())), squares + float(a.norm()) ** 2
    return {"largest": largest, "relative": (squares / all_squares) ** 0.5}


def _names(file: Path) -> list[str]:
    from safetensors import safe_open

    with safe_open(file, "pt") as opened:
        return list(opened.keys())


def run(repeats: dict[str, int], threads: int) -> list[dict[str, Any]]:
    """Every method by every tool, in turns; the outputs of the first round are compared."""
    rows: list[dict[str, Any]] = []
    for method, count in repeats.items():
        recipe = write_recipe(method)
        for number in range(count):
            for tool in TOOLS:
                name = "".join(c if c.isalnum() else "-" for c in tool.name)
                rows.append({"method": method, "tool": tool.name, "repeat": number})
                rows[-1] |= measure(tool, recipe, FOLDER / "out" / name, threads)
                print(rows[-1], flush=True)
            if number == 0:
                rows[-2]["against_isomerge"] = difference(FOLDER / "out" / "isomerge", FOLDER / "out" / "mergekit")
                print(rows[-2], flush=True)
    return rows


def summary(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Per method and tool: median and range of the seconds, median of the processor's, the largest peak."""
    found = []
    for method, tool in dict.fromkeys((row["method"], row["tool"]) for row in rows):
        here = [row for row in rows if (row["method"], row["tool"]) == (method, tool)]
        seconds = [row["seconds"] for row in here]
        spread = {"median_seconds": median(seconds), "least_seconds": min(seconds), "most_seconds": max(seconds)}
        spread["median_cpu_seconds"] = median(row["cpu_seconds"] for row in here)
        peak = max(row["peak_anonymous_bytes"] for row in here)
        found.append({"method": method, "tool": tool, "runs": len(here), **spread, "peak_anonymous_bytes": peak})
    return found


def table(found: dict[str, Any]) -> str:
    """The table of the documentation."""
    size, loads = found["parameters"] / 1e9, [load for row in found["runs"] for load in row["load"]]
    lines = [
        f"`benchmarks/mergekit/speed.py`: two fine-tunes of a random {size:.2f}-billion-parameter Llama in bfloat16 "
        f"(and the base, for `ties` at density 0.5), {found['threads']} thread{'s' if found['threads'] > 1 else ''}, both tools in turns on a shared machine of "
        f"{found['cores']} cores",
        f"(load {min(loads):.1f} to {max(loads):.1f}). Seconds are those of the whole command, median and range, and "
        "of the processor (user and system, which other work disturbs less); memory is the peak of anonymous memory.",
        "",
        "| method | tool | runs | seconds | processor seconds | memory (MB) |",
        "|---|---|---|---|---|---|",
    ]
    for row in found["summary"]:
        span = f" ({row['least_seconds']:.0f}–{row['most_seconds']:.0f})" if row["runs"] > 1 else ""
        busy = f"{row['median_cpu_seconds']:.0f}"
        figures = (
            f"{row['runs']} | {row['median_seconds']:.0f}{span} | {busy} | {row['peak_anonymous_bytes'] / 1e6:.0f}"
        )
        lines.append(f"| `{row['method']}` | {row['tool']} | {figures} |")
    far = {row["method"]: row["against_isomerge"] for row in found["runs"] if "against_isomerge" in row}
    told = ", ".join(f"`{name}` {gap['relative']:.1g}" for name, gap in far.items())
    lines += [
        "",
        f"How far the outputs differ, as a share of the norm: {told}. mergekit computes in bfloat16 as the recipe's `dtype` "
        "says; isomerge computes in float32 and rounds once, when it writes.",
    ]
    return "\n".join(lines)


def write_table(text: str) -> None:
    """Replace what is between the marks; the marks come at the end of the file the first time."""
    content = TABLE.read_text()
    if MARKS[0] not in content:
        content = f"{content.rstrip()}\n\n## Speed and memory\n\n{MARKS[0]}\n{MARKS[1]}\n"
    before, rest = content.split(MARKS[0])
    TABLE.write_text(f"{before}{MARKS[0]}\n{text}\n{MARKS[1]}{rest.split(MARKS[1])[1]}")


def main() -> None:
    """Measure and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, nargs=2, default=(3, 1), metavar=("LINEAR", "TIES"))
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    chosen = parser.parse_args()
    environment()
    if not (FOLDER / "made").exists():
        write_models()
    (FOLDER / "out").mkdir(exist_ok=True)
    rows = run(dict(zip(METHODS, chosen.repeats, strict=True)), chosen.threads)
    shutil.rmtree(FOLDER / "out")
    sizes = [int.__mul__(*shape) if len(shape) == 2 else shape[0] for shape in shapes().values()]
    found: dict[str, Any] = {
        "mergekit": MERGEKIT,
        "torch": TORCH,
        "threads": chosen.threads,
        "cores": os.cpu_count(),
        "machine": platform.machine(),
        "parameters": sum(sizes),
        "summary": summary(rows),
        "runs": rows,
    }
    RESULTS.write_text(json.dumps(found, indent=2) + "\n")
    write_table(table(found))


if __name__ == "__main__":
    main()
