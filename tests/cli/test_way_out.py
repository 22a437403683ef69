"""Refusals name the way that there is, and what can only mean one thing is done.

Mutants: each row's hint taken out; without `idle_density` and `written_differences` two merges say nothing.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import isomerge
from isomerge.errors import IsomergeError
from isomerge.fusion.fusion import fusion_of
from isomerge.fusion.registry import methods
from isomerge.merging.merge_request import request_of_models

WAYS: dict[str, tuple[list[str], list[str]]] = {
    "one model": ([], ["--method passthrough"]),
    "three for a method of two": (["A", "A", "--method", "slerp"], ["needs a base model", "karcher, multislerp"]),
    "another program's method": (["B", "--method", "add_difference"], ["did you mean task_arithmetic?"]),
    "another program's mean": (["B", "--method", "weighted_sum"], ["did you mean linear?"]),
    "a short dtype": (["B", "--dtype", "bf16"], ["did you mean bfloat16?"]),
    "the beginning of an option": (["B", "--base", "A"], ["has no option --base: did you mean --base-model?"]),
    "an option in Python's letters": (["B", "--base_model", "A"], ["did you mean --base-model?"]),
    "more than an option": (["B", "--output", "x"], ["did you mean --out?"]),
    "a key of recipes": (["B", "--merge-method", "ties"], ["did you mean --method?"]),
    "a method's parameter": (["B", "--density", "0.5"], ["write --parameter density=VALUE"]),
    "nothing alike": (["B", "--frobnicate"], ["no option --frobnicate; isomerge merge -h"]),
    "torch's dtype": (["B", "--dtype", "half"], ["did you mean float16?"]),
}


@pytest.mark.parametrize("case", WAYS)
def test_the_way_out(case: str, stored: Callable, refuses: Callable, tmp_path: Path) -> None:
    """In the sentence."""
    models = {"A": stored("gpt2", 0), "B": stored("gpt2", 5)}
    words, said = WAYS[case]
    refuses("merge", models["A"], *(models.get(w, w) for w in words), "-o", tmp_path / "out", words=said)


def test_other_sizes_are_widened(stored: Callable, copies: Callable, refuses: Callable, tmp_path: Path) -> None:
    """Where shapes differ, and not the tokens."""
    a, b = copies("gpt2")
    config = json.loads((b / "config.json").read_text())
    width = config.get("n_inner") or 4 * config["n_embd"]
    tensors = load_file(b / "model.safetensors")
    for name, x in tensors.items():
        for axis, size in enumerate(x.shape):
            if ".mlp." in name and size == width:
                tensors[name] = torch.cat([tensors[name], tensors[name].narrow(axis, 0, 8)], axis)
    save_file({n: x.contiguous() for n, x in tensors.items()}, b / "model.safetensors", metadata={"format": "pt"})
    (b / "config.json").write_text(json.dumps({**config, "n_inner": width + 8}))
    refuses("merge", a, b, "-o", tmp_path / "out", words=["different shapes", "isomerge widen"])


def test_mlx(copies: Callable, refuses: Callable) -> None:
    """Packed weights are told by their scales and biases, whatever the config says."""
    a, _ = copies("gpt2")
    tensors = load_file(a / "model.safetensors")
    name = next(n for n, x in tensors.items() if n.endswith(".weight") and x.dim() == 2)
    stem = name.removesuffix("weight")
    rows = tensors[name].shape[0]
    packed = {name: torch.zeros(rows, 1, dtype=torch.uint32)}
    packed |= {f"{stem}{kind}": torch.zeros(rows, 1) for kind in ("scales", "biases")}
    save_file({**tensors, **packed}, a / "model.safetensors", metadata={"format": "mlx"})
    refuses("inspect", a, words=[name, "MLX", "dequantize"])


def test_recipes_keys_by_their_beginning(stored: Callable, refuses: Callable, tmp_path: Path) -> None:
    """``base`` is too short for a near match."""
    models = "".join(f"  - model: {stored('gpt2', seed)}\n" for seed in (0, 5))
    (tmp_path / "r.yml").write_text(f"merge_method: linear\nbase: x\nmodels:\n{models}")
    refuses("merge", tmp_path / "r.yml", "-o", tmp_path / "out", words=["did you mean `base_model`?"])


def test_what_can_mean_one_thing_is_done() -> None:
    """One model with its adapter is written; of two models without a base, slerp goes from the first."""
    assert request_of_models(["base+lora"]).fusion.method.name == "passthrough"
    job = request_of_models(["a", "b"], method="slerp", parameters={"t": 0.3})
    assert (job.models, job.fusion.first) == (("a", "b"), "base")
    for alone in ("base", ({"weight": torch.full((2,), 1e30)}, {"model_type": "gpt2"})):  # which reads 1e+30
        with pytest.raises(IsomergeError, match="at least two models"):
            request_of_models([alone])


def test_of_one_model_no_distances_are_told(isomerge: Callable, stored: Callable, tmp_path: Path) -> None:
    """Nothing is compared where one is written alone, and nothing aligned, so that nothing is left fixed. Fails where
    the table of a merge is printed in any case."""
    said = isomerge("merge", stored("dpt", 0), "--method", "passthrough", "-o", tmp_path / "out")
    assert said.code == 0
    assert "Wrote " in said.out
    assert not [word for word in ("Frobenius", "left fixed") if word in said.out + said.err]


@pytest.mark.parametrize("name", [n for n, method in methods().items() if "density" in method.options])
def test_a_method_that_leaves_nothing_out_says_so(name: str, stored: Callable, tmp_path: Path) -> None:
    """Where its density is 1, whether by default or not."""
    a, b, base = (stored("gpt2", seed) for seed in (0, 5, 9))
    how: dict[str, Any] = {"base_model": base, "method": name, "align": False}
    default = fusion_of(2, method=name, base=True).parameters.at(methods()[name], "", 2, depth=3)["density"]
    for density in (None, 0.5):
        given = {} if density is None else {"parameters": {"density": density}}
        report = isomerge.merge([a, b], out=tmp_path / f"{density}", **how, **given)
        told = any("leaves no entry" in note for note in report["notes"])
        assert told is (density is None and min(default if isinstance(default, list) else [default]) >= 1)


def test_other_numbers_in_configs_are_told(copies: Callable, tmp_path: Path) -> None:
    """Of which no weight and no other key says anything, as how long texts may be."""
    a, b = copies("llama")
    config = json.loads((b / "config.json").read_text())
    (b / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 7}))
    report = isomerge.merge([a, b], out=tmp_path / "out", align=False)
    assert any("max_position_embeddings is " in note and note.endswith("the first") for note in report["notes"])


def test_a_refusal_is_a_document_where_one_is_asked_for(tmp_path: Path) -> None:
    """On standard output, beside the sentence; and who reads the overview may stop."""
    words = [sys.executable, "-m", "isomerge"]
    refused = subprocess.run(
        [*words, "verify", tmp_path / "no", tmp_path / "no", "--json", "-", "-q"], capture_output=True, text=True
    )
    assert refused.returncode == 2
    assert "no such folder" in json.loads(refused.stdout)["refused"]
    with subprocess.Popen([*words, "-h"], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert b"Traceback" not in process.stderr.read()


def test_a_first_model_in_eight_bits_is_told(copies: Callable, tmp_path: Path) -> None:
    """Where another one has more; not where all have as few, or a dtype is asked for."""
    a, b = copies("llama")
    coarse = {n: x.to(torch.float8_e4m3fn) for n, x in load_file(a / "model.safetensors").items()}
    save_file(coarse, a / "model.safetensors", metadata={"format": "pt"})
    for models, dtype, told in (([a, b], None, True), ([a, a], None, False), ([a, b], "bfloat16", False)):
        out = tmp_path / f"out-{len({*models})}-{dtype}"
        report = isomerge.merge(models, out=out, align=False, **({"dtype": dtype} if dtype else {}))
        assert any("written as F8_E4M3" in note for note in report["notes"]) is told
