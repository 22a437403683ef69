"""Fusion by optimal transport: planted twins, a second implementation, policies by hand, runs and interruptions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy
import ot
import pytest
import torch

from isomerge.errors import IsomergeError
from isomerge.models.recognised import recognise
from isomerge.observe.data.examples import Examples
from isomerge.observe.live.modules import load_module
from isomerge.observe.stats.taps import Activations
from isomerge.research.baselines.transport_solver import (
    METHODS,
    TransportSettings,
    TransportSolver,
    capture_branches,
    match_by_transport,
    transport_solutions,
)
from isomerge.run.streaming import stream_units, write_alone
from isomerge.run.writing_run import Output, StreamWriter
from isomerge.solve.match_options import Matching
from isomerge.solve.pairs.pair import PairSolver
from isomerge.symmetry.units import Unit
from solve.renumbered import Blocks, gap, moved_by, pair_of, renumber
from toys import config_of, load_toy, outputs, relative, save_toy, tensors, write_toy

NAMES = [
    "vit",
    "bert",
    "roberta",
    "gpt2",
    "gpt2-untied",
    "llama",
    "llama-mqa",
    "t5-gated",
    "mixtral",
    "dinov2-swiglu",
]
HARD = replace(METHODS["ot-wts"], coupling="emd")
STREAMS = "default,residual"
"""T5 returns its stream, which is turned where it is named."""


def examples_for(folder: Path, seed: int = 0, count: int = 16) -> Examples:
    """Random inputs for a toy."""
    config, rng = config_of(folder), torch.Generator().manual_seed(seed)
    if "image_size" in config:
        size = (count, 3, config["image_size"], config["image_size"])
        return Examples({"pixel_values": torch.randn(size, generator=rng)}, False)
    found = {"input_ids": torch.randint(1, 60, (count, 9), generator=rng)}
    if config.get("is_encoder_decoder"):
        found["decoder_input_ids"] = torch.randint(1, 60, (count, 9), generator=rng)
    return Examples(found, False)


def activations_of(pair: PairSolver, rows: int = 256, seed: int = 0) -> tuple[Activations, Activations]:
    """Of both models over the same examples."""
    found = []
    for model in (pair.anchor, pair.source):
        examples = examples_for(model.checkpoint.folder, seed)
        found.append(capture_branches(model, load_module(model, torch.float64), examples, rows=rows))
    return found[0], found[1]


def aligned(
    pair: PairSolver, settings: TransportSettings, **given: Any
) -> tuple[Blocks, dict[str, Any], TransportSolver]:
    """The source's blocks as a run would average them with the anchor's."""
    solver = TransportSolver(pair, settings)
    report = solver.prepare(**given)
    found: Blocks = {}
    for unit in pair.plan.units:
        base, source = solver.load(pair.anchor, unit), solver.load(pair.source, unit)
        result, moved = solver.solve(unit, base, source)
        assert [row.tensor for row in result.blocks] == [block.key for block in unit.blocks]
        found |= moved
    return found, report, solver


# ------------------------------------------------------------------ planted twins


@pytest.mark.parametrize("name", NAMES)
def test_hard_maps_recover_a_renumbered_twin(name: str, tmp_path: Path) -> None:
    """By weights, across heads and with averaged residual maps: every number is the anchor's, and so is the
    average."""
    a = save_toy(name, tmp_path / "a")
    found, report, _ = aligned(pair_of(a, renumber(name, a, tmp_path / "b"), STREAMS), HARD)
    assert gap(load_toy(name, a).fresh(), found) == 0
    assert report["hard"]
    assert not report["preserves_function"]
    assert "do not preserve" in report["note"]


@pytest.mark.parametrize("name", ["vit", "bert", "gpt2", "llama", "t5-gated"])
def test_activations_recover_a_renumbered_twin(name: str, tmp_path: Path) -> None:
    """OT-ACTS-EMD: no weight is compared, but where nothing is computed by a module (class token, positions,
    experts)."""
    a = save_toy(name, tmp_path / "a")
    pair = pair_of(a, renumber(name, a, tmp_path / "b"), STREAMS)
    found, report, _ = aligned(pair, METHODS["ot-acts-emd"], activations=activations_of(pair))
    assert gap(load_toy(name, a).fresh(), found) == 0
    allowed = ("position_embeddings", "shared.weight", "token_type_embeddings.weight")
    assert all(key.endswith(allowed) for key in report["compared_by_weights"])


@pytest.mark.parametrize("residual", ["weighted_scalar", "weighted_matrix", "no_residual", "only_residual"])
@pytest.mark.parametrize("name", ["vit", "bert"])
def test_every_residual_policy_recovers_a_twin(name: str, residual: str, tmp_path: Path) -> None:
    """Whatever the shares, equal maps have themselves as their mean."""
    a = save_toy(name, tmp_path / "a")
    pair = pair_of(a, renumber(name, a, tmp_path / "b"))
    settings = replace(METHODS["ot-acts-emd"], residual=residual)
    found, _, _ = aligned(pair, settings, activations=activations_of(pair))
    # shares that sum to one but for rounding of float32 maps
    assert gap(load_toy(name, a).fresh(), found) <= 1e-6


@pytest.mark.parametrize("name", ["vit", "gpt2", "llama-mqa"])
def test_equal_models(name: str, tmp_path: Path) -> None:
    """Hard maps change no bit; soft ones of little entropy nearly nothing, of much entropy a lot."""
    a = save_toy(name, tmp_path / "a")
    there = load_toy(name, a).fresh()
    for settings in (HARD, METHODS["otfusion"]):
        assert gap(there, aligned(pair_of(a, a), settings)[0]) == 0
    soft, report, _ = aligned(pair_of(a, a), replace(METHODS["ot-wts"], regularisation=0.02))
    assert gap(there, soft) <= 1e-6
    assert report["marginal_error"] <= 1e-6
    assert gap(there, aligned(pair_of(a, a), replace(METHODS["ot-wts"], regularisation=1.0))[0]) > 0.01


# ------------------------------------------------------------------- exact match


@pytest.mark.parametrize("name", ["bert", "gpt2-untied", "llama", "t5-gated", "mixtral", "vit"])
def test_otfusion_is_a_symmetry(name: str, tmp_path: Path) -> None:
    """Of an unrelated model: the alignment keeps the function, and is what the flow does to every tensor."""
    a, b = save_toy(name, tmp_path / "a"), save_toy(name, tmp_path / "b", seed=5)
    alignment, report = match_by_transport(pair_of(a, b))
    assert report["preserves_function"]
    assert report["note"] == ""
    toy = load_toy(name, b)
    moved = moved_by(alignment, toy)
    out = write_toy(toy, toy.named(moved), tmp_path / "out")
    assert toy.change(tensors(out)) > 0.01
    assert relative(outputs(out), toy.reference) <= max(toy.tolerance, 1e-9)
    assert gap(aligned(pair_of(a, b), METHODS["otfusion"])[0], moved) == 0


def test_only_a_symmetry_is_an_alignment(tmp_path: Path) -> None:
    """Soft maps, maps that mix heads, and maps that change along the stream are none: the function changes."""
    a, b = save_toy("gpt2", tmp_path / "a"), save_toy("gpt2", tmp_path / "b", seed=5)
    toy = load_toy("gpt2", b)
    changes: list[dict[str, Any]] = [
        {"coupling": "sinkhorn"},
        {"heads": "across"},
        {"queries": "separate"},
        {"residual": "no_residual"},
    ]
    for change in changes:
        settings = replace(METHODS["otfusion"], **change)
        with pytest.raises(IsomergeError, match="an alignment needs hard maps that are one symmetry"):
            match_by_transport(pair_of(a, b), settings)
        found, report, solver = aligned(pair_of(a, b), settings)
        assert solver.alignment({}) is None
        assert not report["preserves_function"]
        out = write_toy(toy, toy.named(found), tmp_path / "-".join(map(str, change.values())))
        assert relative(outputs(out), toy.reference) > 1e-3


# --------------------------------------------------------- a second implementation


def reference_flow(
    a: dict[str, torch.Tensor], b: dict[str, torch.Tensor], layers: int, regularisation: float
) -> dict[str, torch.Tensor]:
    """OT-WTS of a ViT as the paper tells it: dense matrices, one tensor after the other, names of Hugging Face."""
    found: dict[str, torch.Tensor] = {}

    def coupling(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x, y = (t / t.norm(dim=1, keepdim=True) for t in (x, y))
        cost = torch.cdist(y, x, compute_mode="donot_use_mm_for_euclid_dist")
        n = len(cost)
        plan = ot.sinkhorn(numpy.full(n, 1 / n), numpy.full(n, 1 / n), (cost / cost.mean()).numpy(), regularisation)
        plan = torch.from_numpy(plan)
        return plan / plan.sum(0)

    def layer(name: str, t_in: torch.Tensor, t_out: torch.Tensor | None = None) -> torch.Tensor:
        w = b[f"{name}.weight"] @ t_in
        t = coupling(a[f"{name}.weight"], w) if t_out is None else t_out
        found[f"{name}.weight"], found[f"{name}.bias"] = t.mT @ w, t.mT @ b[f"{name}.bias"]
        return t

    def norm(name: str, t: torch.Tensor) -> None:
        found[f"{name}.weight"], found[f"{name}.bias"] = t.mT @ b[f"{name}.weight"], t.mT @ b[f"{name}.bias"]

    patch, position = "vit.embeddings.patch_embeddings.projection", "vit.embeddings.position_embeddings"
    t_patch = coupling(a[f"{patch}.weight"].flatten(1), b[f"{patch}.weight"].flatten(1))
    t_position = coupling(a[position][0].mT, b[position][0].mT)
    t = (t_patch + t_position) / 2
    found[f"{patch}.weight"] = (t_patch.mT @ b[f"{patch}.weight"].flatten(1)).reshape(a[f"{patch}.weight"].shape)
    found[f"{patch}.bias"] = t_patch.mT @ b[f"{patch}.bias"]
    found[position] = b[position] @ t_position
    found["vit.embeddings.cls_token"] = b["vit.embeddings.cls_token"] @ t
    start = next(n for n in a if n.endswith("layernorm_before.weight")).split("0.layernorm_before")[0]
    style = "attention.attention.query.weight" if f"{start}0.attention.attention.query.weight" in a else ""
    q, k, v, o, up, down = (
        ["attention.attention.query", "attention.attention.key", "attention.attention.value", "attention.output.dense",
         "intermediate.dense", "output.dense"]
        if style
        else ["attention.q_proj", "attention.k_proj", "attention.v_proj", "attention.o_proj", "mlp.fc1", "mlp.fc2"]
    )  # fmt: skip
    for number in range(layers):
        at = f"{start}{number}."
        norm(f"{at}layernorm_before", t)
        layer(at + q, t)
        layer(at + k, t)
        t = (t + layer(at + o, layer(at + v, t))) / 2
        norm(f"{at}layernorm_after", t)
        t = (t + layer(at + down, layer(at + up, t))) / 2
    norm("vit.layernorm", t)
    layer("classifier", t, torch.eye(len(a["classifier.weight"]), dtype=torch.float64))
    return found


def test_the_flow_is_the_papers(tmp_path: Path) -> None:
    """OT-WTS with Sinkhorn on two unrelated ViTs, tensor by tensor, against dense matrices."""
    a, b = save_toy("vit", tmp_path / "a"), save_toy("vit", tmp_path / "b", seed=5)
    found, report, _ = aligned(pair_of(a, b), METHODS["ot-wts"])
    mine = load_toy("vit", b).named(found)
    wanted = reference_flow(tensors(a), tensors(b), 3, METHODS["ot-wts"].regularisation)
    assert set(wanted) == set(mine)
    assert not report["hard"]
    for name, t in wanted.items():
        # maps are kept in float32, and Sinkhorn stops at 1e-9
        assert relative(mine[name], t) <= 1e-5, name


def test_the_residual_policies_by_hand(tmp_path: Path) -> None:
    """Shares of the stream's map and the branch's, from the anchor's mean absolute activations."""
    a, b = save_toy("vit", tmp_path / "a"), save_toy("vit", tmp_path / "b", seed=5)
    pair = pair_of(a, b)
    acts = activations_of(pair)
    values = acts[0].values
    norm, writer = (
        next(k for k in values if k.endswith(end))
        for end in ("layernorm_before.weight:in", ".0.attention.output.dense.weight:out")
    )
    stream, branch = (values[k].double().abs().mean(0) for k in (norm, writer))
    for residual in ("averaging", "weighted_scalar", "weighted_matrix"):
        _, _, solver = aligned(pair, replace(METHODS["ot-wts"], residual=residual), activations=acts)
        assert solver.flow is not None
        maps = solver.flow.maps.tensors
        key = writer.removesuffix(":out")
        before, after, own = (maps[k].double() for k in ("res at the start", f"res after {key}", f"res from {key}"))
        share: Any = 0.5
        if residual == "weighted_scalar":
            share = stream.mean() / (stream.mean() + branch.mean())
        elif residual == "weighted_matrix":
            share = stream / (stream + branch)
        assert torch.allclose(after, before * share + own * (1 - share), atol=1e-6), residual
        assert torch.allclose(after.sum(0), torch.ones(48).double(), atol=1e-5)


def test_rotary_pairs_stay_and_query_heads_follow_their_group(tmp_path: Path) -> None:
    """The maps of Llama's queries number heads alone: positions inside a head are tied to their frequencies."""
    a, b = save_toy("llama", tmp_path / "a"), save_toy("llama", tmp_path / "b", seed=5)
    _, _, solver = aligned(pair_of(a, b), METHODS["ot-wts"])
    assert solver.flow is not None
    flow = solver.flow
    query = next(k for k in flow.maps.steps if "layers.1.self_attn.q_proj" in k)
    atoms = ["kv", "g", "c", "pair", "res", "n1"]
    assert [[atoms[k] for k in step.axes] for step in flow.maps.steps[query]] == [["res"], ["kv", "g"]]
    key = next(k for k in flow.maps.steps if "layers.1.self_attn.k_proj" in k)
    heads, groups = (flow.maps.tensors[flow.maps.steps[k][-1].map] for k in (query, key))
    # every query head goes where the keys of its group go
    assert heads.shape == (2, 3, 2, 3)
    assert torch.allclose(heads.sum(1), groups.unsqueeze(-1).expand(2, 2, 3), atol=1e-5)
    output = next(k for k in flow.maps.steps if "layers.1.self_attn.o_proj" in k)
    assert [len(step.axes) for step in flow.maps.steps[output]] == [3, 1]
    for name, t in flow.maps.tensors.items():
        flat = t.double().flatten(t.ndim // 2).flatten(0, t.ndim // 2 - 1)
        assert torch.allclose(flat.sum(0), torch.ones(flat.shape[1]).double(), atol=1e-5), name
        assert torch.allclose(flat.sum(1), torch.ones(flat.shape[0]).double(), atol=1e-3), name


def maps_of(name: str, tmp_path: Path) -> Callable[[str], list[str]]:
    """The names of the maps that move a tensor's first leaf, of two unrelated toys."""
    a, b = save_toy(name, tmp_path / "a"), save_toy(name, tmp_path / "b", seed=5)
    _, _, solver = aligned(pair_of(a, b, STREAMS), HARD)
    assert solver.flow is not None
    steps = solver.flow.maps.steps
    return lambda tensor: [step.map for step in steps[f"{tensor}#0"]]


def test_every_stack_begins_at_the_embeddings(tmp_path: Path) -> None:
    """T5's decoder does not read what its encoder has written, except where cross-attention does."""
    maps, layer = maps_of("t5-gated", tmp_path), "{}.block.{}.layer.{}"
    start = maps("shared.weight")
    for stack in ("encoder", "decoder"):
        assert maps(layer.format(stack, 0, 0) + ".layer_norm.weight") == start
        assert maps(layer.format(stack, 1, 0) + ".layer_norm.weight") != start
    (last,) = maps("encoder.final_layer_norm.weight")
    cross = layer.format("decoder", 1, 1)
    assert maps(cross + ".EncDecAttention.k.weight")[0] == maps(cross + ".EncDecAttention.v.weight")[0] == last
    (own,) = maps(cross + ".layer_norm.weight")
    assert maps(cross + ".EncDecAttention.q.weight")[0] == own != last
    (head,) = maps("decoder.final_layer_norm.weight")
    assert head not in (last, own)


def test_a_layer_scale_follows_its_branch(tmp_path: Path) -> None:
    """DINOv2 scales what a branch writes before it joins the stream: bias and scale have the writer's map."""
    maps, layer = maps_of("dinov2", tmp_path), "encoder.layer.1."
    writer = maps(layer + "mlp.fc2.weight")[-1:]
    assert maps(layer + "layer_scale2.lambda1") == maps(layer + "mlp.fc2.bias") == writer
    assert writer == ["res from encoder.layer.1.mlp.fc2.weight"]
    assert maps(layer + "norm2.weight") == maps(layer + "norm2.bias") != writer


# ------------------------------------------------------------------------- runs


def fuse(
    a: Path,
    b: Path,
    out: Path,
    settings: TransportSettings,
    observer: Callable[..., None] | None = None,
    **given: Any,
) -> list[dict[str, Any]]:
    """A merge as a command would write it."""
    pair = pair_of(a, b)
    solver = TransportSolver(PairSolver(pair.anchor, pair.source, pair.plan, torch.float32, guard=False), settings)
    output = Output(out) if observer is None else Output(out, observer=observer)

    def mean(unit: Unit, found: list[Blocks], by: Any, first: Any) -> Blocks:
        return {block: (found[0][block] + found[1][block]) / 2 for block in unit.blocks}

    with StreamWriter(pair.anchor, output, f"test {settings}") as stream:
        reports = transport_solutions(stream, [solver], **given)
        stream_units(stream, [solver], pair.plan, mean, pair.anchor)  # pyright: ignore[reportArgumentType]
        write_alone(stream, pair.plan, pair.anchor, torch.float32)
        stream.finish_unreported()
    return reports


@pytest.mark.parametrize("method", ["ot-wts", "ot-acts"])
def test_a_run_through_disk(method: str, tmp_path: Path) -> None:
    """A twin's fusion is the anchor (soft maps: of little entropy), another model's is a model that computes."""
    a = save_toy("vit", tmp_path / "a", dtype=torch.float32)
    twin, other = (
        renumber("vit", a, tmp_path / "twin"),
        save_toy("vit", tmp_path / "b", seed=5, dtype=torch.float32),
    )
    settings = replace(METHODS[method], regularisation=0.02)
    given: dict[str, Any] = {"matching": Matching(data=examples_for(a), rows=128)}
    fuse(a, twin, tmp_path / "same", settings, **given)
    assert relative(outputs(tmp_path / "same"), outputs(a)) <= 1e-4
    (report,) = fuse(a, other, tmp_path / "fused", METHODS[method], **given)
    assert bool(outputs(tmp_path / "fused").isfinite().all())
    assert not report["preserves_function"]
    assert relative(outputs(tmp_path / "fused"), outputs(a)) > 0.01


def test_interrupted_and_run_again(tmp_path: Path) -> None:
    """Stopped while writing: the second run takes the maps from disk and ends with the same bytes."""
    a, b = (save_toy("gpt2", tmp_path / tag, seed=s, dtype=torch.float32) for tag, s in (("a", 0), ("b", 5)))
    seen: list[str] = []

    def observer(unit: str, done: int, total: int) -> None:
        seen.append(unit)
        if len(seen) == stop:
            raise KeyboardInterrupt

    stop = -1
    whole = fuse(a, b, tmp_path / "whole", METHODS["ot-wts"], observer)
    stop, seen = len(seen) - 5, []
    with pytest.raises(KeyboardInterrupt):
        fuse(a, b, tmp_path / "out", METHODS["ot-wts"], observer)
    stop, seen = -1, []
    assert fuse(a, b, tmp_path / "out", METHODS["ot-wts"], observer) == whole
    assert seen
    assert not any("transport maps" in unit for unit in seen)
    mine, theirs = tensors(tmp_path / "out"), tensors(tmp_path / "whole")
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(t, mine[n]) for n, t in theirs.items())


def test_maps_from_a_file(tmp_path: Path) -> None:
    """What is restored does what was made, bit for bit, and is an alignment where it was one."""
    a, b = save_toy("t5-relu", tmp_path / "a"), save_toy("t5-relu", tmp_path / "b", seed=5)
    for method in ("otfusion", "ot-wts"):
        found, report, solver = aligned(pair_of(a, b), METHODS[method])
        solver.save(tmp_path / f"{method}.safetensors", report)
        again = TransportSolver(pair_of(a, b), METHODS[method])
        assert again.restore(tmp_path / f"{method}.safetensors") == report
        assert again.flow is not None
        assert all(torch.equal(again.flow.moved(k, t), found[k]) for k, t in load_toy("t5-relu", b).fresh().items())
        one, two = solver.alignment({}), again.alignment({})
        assert (one is None) == (two is None) == (method == "ot-wts")
        assert one is None or two is None or one.digest() == two.digest()


def test_spaces_and_layers_that_are_not_chosen_stay(tmp_path: Path) -> None:
    """Without the residual stream only neurons inside layers move; of other layers nothing does."""
    a, b = save_toy("gpt2", tmp_path / "a"), save_toy("gpt2", tmp_path / "b", seed=5)
    there = load_toy("gpt2", b).fresh()
    found, report, _ = aligned(pair_of(a, b, "default"), HARD)
    still = {block.key for block, t in found.items() if torch.equal(t, there[block])}
    assert report["streams"] == []
    assert {"wte.weight", "h.1.ln_1.weight", "ln_f.bias"} <= still
    assert not {"h.1.attn.c_attn.weight", "h.1.mlp.c_fc.weight", "h.1.mlp.c_proj.weight"} & still
    found, _, _ = aligned(pair_of(a, b, "ff", "1"), HARD)
    moved = {block.key for block, t in found.items() if not torch.equal(t, there[block])}
    assert moved == {"h.1.mlp.c_fc.weight", "h.1.mlp.c_fc.bias", "h.1.mlp.c_proj.weight"}


def test_a_tied_head_follows_its_table(tmp_path: Path) -> None:
    """A stored copy of the embeddings stays one."""
    a, b = save_toy("llama-tied", tmp_path / "a"), save_toy("llama-tied", tmp_path / "b", seed=5)
    for folder in (a, b):
        from safetensors.torch import save_file

        found = tensors(folder)
        found["lm_head.weight"] = found["model.embed_tokens.weight"].clone()
        save_file(found, folder / "model.safetensors", metadata={"format": "pt"})
    found, _, _ = aligned(pair_of(a, b), METHODS["ot-wts"])
    by_key = {block.key: t for block, t in found.items()}
    assert torch.equal(by_key["lm_head.weight"], by_key["embed_tokens.weight"])


# ------------------------------------------------------------------------ errors


def test_settings_that_cannot_be(tmp_path: Path) -> None:
    """The choice is named, with what there is to choose."""
    a = save_toy("gpt2", tmp_path / "a")
    cases = [
        ({"cost": "gradients"}, "transport cost 'gradients': choose from weights, activations"),
        ({"residual": "mean"}, "transport residual 'mean': choose from averaging"),
        ({"heads": "none"}, "transport heads 'none'"),
        ({"queries": "joint"}, "transport queries 'joint'"),
        ({"coupling": "lap"}, "coupling 'lap'"),
        ({"cost": "activations"}, "add --data DATA"),
        ({"residual": "weighted_scalar"}, "weights by activations: add --data DATA"),
    ]
    for change, message in cases:
        with pytest.raises(IsomergeError, match=message):
            TransportSolver(pair_of(a, a), replace(METHODS["ot-wts"], **change)).prepare()
    pair = pair_of(a, a)
    one, other = activations_of(pair)[0], activations_of(pair, seed=1)[1]
    with pytest.raises(IsomergeError, match="activations are of different data"):
        TransportSolver(pair, METHODS["ot-acts"]).prepare(activations=(one, other))
    solver = TransportSolver(pair, METHODS["ot-wts"])
    with pytest.raises(IsomergeError, match="call prepare first"):
        solver.solve(pair.plan.units[0], {}, {})


def test_branches_are_read_where_they_write(tmp_path: Path) -> None:
    """What writers give adds up to what the next norm is given: nothing is missing, and rows belong together."""
    a = save_toy("vit", tmp_path / "a")
    model = recognise(a)
    values = capture_branches(model, load_module(model, torch.float64), examples_for(a), rows=10_000).values
    at = {k.rpartition("encoder.layer.")[2]: x.double() for k, x in values.items() if "encoder.layer" in k}
    total = at["0.layernorm_before.weight:in"] + at["0.attention.output.dense.weight:out"]
    assert torch.allclose(total, at["0.layernorm_after.weight:in"], atol=1e-5)
    total += at["0.output.dense.weight:out"]
    assert torch.allclose(total, at["1.layernorm_before.weight:in"], atol=1e-5)
