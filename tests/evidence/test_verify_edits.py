"""What verify must not overlook: local edits in half precision, a coarse tensor beside fine ones, dead blocks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import isomerge
from isomerge.cli.program import app
from isomerge.evidence.law import random_alignment
from isomerge.evidence.verify import Comparison, Residual, reconsidered
from isomerge.matching.selection import select_spaces
from isomerge.models.recognised import recognise
from isomerge.models.unit_plan import make_plan
from isomerge.solve.pairs import stream_descent
from isomerge.solve.pairs.pair import PairSolver
from solve.disguises import single, turn
from toys import overwrite, save_toy, tensors


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_one_exchanged_row_is_seen(dtype: torch.dtype, tmp_path: Path) -> None:
    """A token's embedding replaced by another's, in a table where it is a small part of the norm."""
    a, b = (save_toy("llama", tmp_path / name, dtype=dtype) for name in "ab")
    found = tensors(b)
    name = "model.embed_tokens.weight"
    for table in (found, tensors(a)):
        table[name] = torch.randn(4000, 48, generator=torch.Generator().manual_seed(0)).to(dtype)
        table["lm_head.weight"] = table[name].clone()
        overwrite(a if table is not found else b, table)
    for folder in (a, b):
        config = (folder / "config.json").read_text().replace('"vocab_size": 67', '"vocab_size": 4000')
        (folder / "config.json").write_text(config)
    assert isomerge.verify(a, b)["same"]
    found[name] = found[name].clone()
    found[name][7] = found[name][8]
    overwrite(b, found)
    assert not isomerge.verify(a, b)["same"]


def test_a_small_entry_is_measured_by_itself(tmp_path: Path) -> None:
    """Where nothing had to move, half precision excuses one rounding of every entry: a sign that changed is two of
    it, though nothing of its tensor, and that is how it is told."""
    a, b = (save_toy("llama", tmp_path / name, dtype=torch.bfloat16) for name in "ab")
    found = tensors(b)
    table = found["model.embed_tokens.weight"]
    at = table.abs().view(-1).argmin()
    table.view(-1)[at] *= -1
    overwrite(b, found)
    got = CliRunner().invoke(app, ["verify", str(a), str(b), "--json", str(tmp_path / "r.json")])
    residual = json.loads((tmp_path / "r.json").read_text())["residual"]
    assert (got.exit_code, residual["of_entry"]) == (1, True)
    assert "largest relative residual of an entry 2 in embed_tokens.weight" in got.output
    found["model.embed_tokens.weight"] = 1.5 * table.float()
    overwrite(b, {name: x.to(torch.bfloat16) for name, x in found.items()})
    assert not isomerge.verify(a, b)["residual"]["of_entry"]


def test_a_coarse_norm_does_not_excuse_others(tmp_path: Path) -> None:
    """Norms in bfloat16, the rest in float32: noise of 1e-3 in one query matrix is seen."""
    a, b = (save_toy("bert", tmp_path / name, dtype=torch.float32) for name in "ab")
    for folder in (a, b):
        overwrite(folder, {n: t.bfloat16() if "LayerNorm" in n else t for n, t in tensors(folder).items()})
    assert isomerge.verify(a, b)["same"]
    found = tensors(b)
    name = "bert.encoder.layer.1.attention.self.query.weight"
    noise = torch.randn(found[name].shape, generator=torch.Generator().manual_seed(1))
    found[name] = found[name] + 1e-3 * noise * found[name].norm() / noise.norm()
    overwrite(b, found)
    assert not isomerge.verify(a, b)["same"]


def test_dead_blocks_are_told(tmp_path: Path) -> None:
    """A twin of a model with a dead head cannot be proven the same; the report says why."""
    a = save_toy("bert", tmp_path / "a", dtype=torch.float32)
    found = tensors(a)
    for name in ("query.weight", "query.bias"):
        found[f"bert.encoder.layer.0.attention.self.{name}"][:8] = 0
    overwrite(a, found)
    model = recognise(a)
    spec = select_spaces(model.spec, "default").spec
    isomerge.apply(random_alignment(spec, model.blocks, torch.Generator().manual_seed(2)), a, out=tmp_path / "twin")
    assert "qk[0]" in isomerge.verify(a, tmp_path / "twin")["dead_blocks"]


def test_an_edit_behind_a_turned_stream_is_named(tmp_path: Path) -> None:
    """Where also the residual stream was turned, what is told is the tensor that was edited, not one in a basis
    that does not fit."""
    one = single("llama", tmp_path / "a")
    two = turn("llama", one, tmp_path / "b", seed=1)
    found = tensors(two)
    edited = "model.layers.1.mlp.gate_proj.weight"
    found[edited][0, 0] += 0.02 * found[edited].norm()
    overwrite(two, found)
    told = isomerge.verify(one, two)
    assert told["same"] is False
    assert told["residual"]["tensor"] == "layers.1.mlp.gate_proj.weight"
    assert told["residual"]["largest"] < 0.1


@pytest.mark.parametrize(
    ("name", "inside", "elsewhere"),
    [
        ("lighton_ocr", "vision_projection.patch_merger.merging_layer.weight", "language_model.layers.0.self_attn.v_proj.weight"),
        ("kosmos-2", "image_to_text_projection.x_attn.k_proj.weight", "text_model.model.layers.0.self_attn.v_proj.weight"),
    ],
)  # fmt: skip
def test_only_streams_of_which_embeddings_tell_no_basis_are_reconsidered(
    name: str, inside: str, elsewhere: str, tmp_path: Path
) -> None:
    """What is foreign in a stream that embeddings or heads have is a difference, wherever fingerprints look.
    Kosmos-2's projection has fewer latents than coordinates."""
    model = recognise(single(name, tmp_path / "a"))
    solver = PairSolver(model, model, make_plan(model, [model], "none"), torch.float32, guard=False)

    def told(tensor: str, largest: float, tolerance: float = 1e-9) -> bool | None:
        return reconsidered(solver, Comparison(False, residual=Residual(largest, tensor, tolerance)), 1e-8).same

    assert told(inside, 0.8) is None
    assert told(inside, 0.1) is False
    assert told(elsewhere, 0.8) is False
    # a search that ended too early leaves little, and fingerprints agree to the tolerance
    assert told(elsewhere, 1e-6, 1e-7) is None
    assert told(elsewhere, 1e-6, 1e-9) is False
    assert told(elsewhere, 1e-3, 1e-7) is False


@pytest.mark.parametrize("by_grams", [True, False])
def test_a_basis_that_is_not_found_is_no_difference(
    by_grams: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disguise whose class returns a turned stream, which fingerprints tell as another basis, and of which embeddings
    tell few directions: the tensors' Grams tell the others. A search that ends too early, as it does without them,
    says nothing; it was told to be another function."""
    onto, source = (save_toy("got_ocr2", tmp_path / name, seed=seed) for name, seed in (("a", 0), ("b", 5)))
    isomerge.align(source, onto=onto, spaces="default,residual", align=True, out=tmp_path / "out")
    if not by_grams:
        starts = stream_descent.shared_starts
        monkeypatch.setattr(stream_descent, "shared_starts", lambda *given: {"shared": starts(*given)["shared"]})
    report = isomerge.verify(source, tmp_path / "out")
    assert report["same"] is (True if by_grams else None)
    assert by_grams or "no basis of the residual streams was found" in report["reason"]
