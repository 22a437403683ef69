"""Fingerprints: equal for every disguise of a model, near for what was derived from it, far for every other
model."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

import isomerge
from depth import EVERY, more
from isomerge.api import comparing
from isomerge.checkpoint.in_memory import in_memory
from isomerge.cli.program import app
from isomerge.models.free_streams import given_out
from isomerge.models.recognised import recognise
from isomerge.quotient import stream_anchors
from isomerge.quotient.fingerprint import Fingerprint, fingerprint, read_fingerprint
from isomerge.quotient.relations import relations
from isomerge.quotient.similarity import similarity
from isomerge.quotient.stream_anchors import Anchors, fixed_streams
from isomerge.symmetry.blocks import Block, leaves
from solve.disguises import disguise, perturb, turn, write_like
from toys import FEW, config_of, outputs, overwrite, relative, save_toy, tensors
from unet_models import UNETS

pytestmark = pytest.mark.in_few_sweeps("how far streams of strangers settle does not matter here")

# Kinship is told by circuits that meet anchors in a stream: Mamba has none, Parakeet's stream begins behind
# channels that may change places, and what a UNet's blocks hand on is no stream.
NO_KIN = {"mamba", "falcon_mamba", "mamba2", "parakeet_ctc", "parakeet_tdt", "parakeet_rnnt", *UNETS}

OF_MANY_KINDS = ("segformer", *(FEW if EVERY else ()))
"""SegFormer has tensors that no anchor meets, and streams without tables."""

HEADS = ("qk", "c", "pair", "h", "kv", "ff", "dqk", "qk0")
"""How the names of axes end that queries and keys have in one text or another; heads, or neurons, where norms take
these."""


def of(folder: Path) -> Fingerprint:
    """The fingerprint of a folder."""
    return fingerprint(recognise(folder))


def rounded(folder: Path, dtype: torch.dtype) -> Fingerprint:
    """The fingerprint of a folder's weights in a coarser dtype."""
    found = {n: t.to(dtype) if t.is_floating_point() else t for n, t in tensors(folder).items()}
    return fingerprint(recognise(in_memory(found, config_of(folder))))


@pytest.mark.parametrize("name", FEW)
def test_twins_share_a_fingerprint(name: str, tmp_path: Path) -> None:
    """Random elements of every space, the streams' among them, in float32; and within rounding in bfloat16. Of a
    stream that a model gives out the basis is told, and that is all that differs."""
    a = save_toy(name, tmp_path / "a", dtype=torch.float32)
    first, model = of(a), recognise(a)
    returned = {stream for stream in given_out(model) if model.spec.spaces[stream].group_name != "Fixed"}
    for seed in (3, 4):
        twin = of(turn(name, a, tmp_path / f"twin-{seed}", seed))
        found = similarity(first, twin)
        assert (twin.hash == first.hash) == (not returned)
        assert found.difference is not None
        assert found.difference < (3e-5 if EVERY else 1e-5)
        assert found.score is None or found.score > 0.9999
        assert found.verdict == ("derived from one base" if returned else "same function")
        assert len(found.settings) == len(returned)
        for key, values in first.spectra.items():
            assert torch.allclose(values.data, twin.spectra[key].data, rtol=1e-4, atol=1e-6), key
        coarse = similarity(first, rounded(tmp_path / f"twin-{seed}", torch.bfloat16))
        assert coarse.difference is not None
        assert coarse.equal or (EVERY and coarse.difference < 3 * coarse.tolerance)  # some moves make biases large
        assert coarse.difference > 1e-4
        assert name in NO_KIN or not coarse.hashes_equal


@pytest.mark.parametrize("name", [n for n in FEW if n not in NO_KIN])
def test_other_models_have_other_fingerprints(name: str, tmp_path: Path) -> None:
    """Another seed is told apart, and so is half a disguise: one side of a pair of maps, moved alone."""
    a = save_toy(name, tmp_path / "a", dtype=torch.float32)
    other = similarity(of(a), of(save_toy(name, tmp_path / "b", seed=5, dtype=torch.float32)))
    assert other.verdict == "independent"
    assert other.apart
    assert not other.hashes_equal

    model = recognise(a)
    streams = {*model.spec.streams, *fixed_streams(model.spec, model.blocks)}
    block = next(b for end in HEADS for b in model.blocks if _is_side(b, end, streams))

    def half(found: dict[str, torch.Tensor]) -> None:
        tensor = found[model.names[block.canonical[0]]]
        (view,), *_ = next(leaves(model.spec, block, tensor))
        view.mul_(1 + 0.1 * torch.rand(view.shape, generator=torch.Generator().manual_seed(0)))

    broken = similarity(of(a), of(write_like(a, tmp_path / "half", half)))
    assert not broken.same
    assert not broken.hashes_equal
    assert broken.derived


@pytest.mark.parametrize("name", dict.fromkeys(OF_MANY_KINDS))
def test_every_tensor_counts(name: str, tmp_path: Path) -> None:
    """One tensor of every kind is multiplied, and with it a whole kind of relations: the hash is another one, or it
    is the same function."""
    a, b = save_toy(name, tmp_path / "a"), tmp_path / "b"
    first, weights = of(a), tensors(a)
    kinds = {re.sub(r"\d+", "N", n): n for n in reversed(weights) if weights[n].is_floating_point()}
    known = [n for n in kinds.values() if bool(weights[n].any())]
    assert len(known) > 8
    kept = 0
    for tensor in known:
        shutil.copytree(a, b)
        overwrite(b, {**weights, tensor: weights[tensor] * 2.718})
        if of(b).hash == first.hash:
            kept += 1
            assert isomerge.verify(a, b)["same"], tensor
        shutil.rmtree(b)
    assert kept < 3


TIED = ("gpt2", "opt", *more("gpt_neo", "biogpt", "xglm", "mpt", "bloom", "cohere", "bert", "mbart", "whisper"))
"""Toys whose head is a table of embeddings behind LayerNorm."""


@pytest.mark.parametrize("name", TIED)
def test_what_lies_along_the_ones_counts(name: str, tmp_path: Path) -> None:
    """To one tensor of every kind something is added that is alike along one of its axes: the hash is another one,
    or outputs are the same."""
    a = save_toy(name, tmp_path / "a")
    assert _blind_to_constants(a) == []


@pytest.mark.parametrize("name", ["gpt2", "opt"])
def test_rows_of_a_head_keep_their_means(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mutant whose anchors lose their means, whoever reads them, does not see the words nor what is added to the
    last norm's bias."""
    monkeypatch.setattr(stream_anchors, "tied_heads", lambda _: ([], set()))
    blind = _blind_to_constants(
        save_toy(name, tmp_path / "a"), only=r"wte|ln_f|embed_tokens|decoder\.final_layer_norm"
    )
    assert len(blind) == 2


def _blind_to_constants(a: Path, only: str = "") -> list[str]:
    """The tensors of one of every kind that may have something more, alike along one axis, under one hash, although
    outputs are others by more than norms in float32 round."""
    weights, config = tensors(a), config_of(a)
    kinds = {re.sub(r"\d+", "N", n): n for n in reversed(weights) if weights[n].is_floating_point()}
    first, before, blind = of(a).hash, outputs(a), []
    for tensor in kinds.values():
        for axis in range(weights[tensor].ndim if re.search(only, tensor) else 0):
            shape = [1 if k == axis else n for k, n in enumerate(weights[tensor].shape)]
            more = 0.5 * torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
            changed = {**weights, tensor: weights[tensor] + more}
            if fingerprint(recognise(in_memory(changed, config))).hash == first:
                b = write_like(
                    a, a.parent / f"{tensor}-{axis}", lambda stored, changed=changed: stored.update(changed)
                )
                blind += [f"{tensor} along {axis}"] if relative(outputs(b), before) > 1e-5 else []
    return blind


def test_means_that_no_head_reads(tmp_path: Path) -> None:
    """Behind a last norm with gains of one and no bias, what a tied head's rows have along the ones shows nowhere:
    one function, one hash."""
    a = save_toy("gpt2", tmp_path / "a")

    def plain(stored: dict[str, torch.Tensor]) -> None:
        stored["transformer.ln_f.weight"].fill_(1)
        stored["transformer.ln_f.bias"].zero_()

    def further(stored: dict[str, torch.Tensor]) -> None:
        words = stored["transformer.wte.weight"]
        words += torch.linspace(-1, 1, len(words), dtype=words.dtype)[:, None]

    b = write_like(a, tmp_path / "b", plain)
    c = write_like(b, tmp_path / "c", further)
    assert relative(outputs(c), outputs(b)) < 1e-9
    assert of(b).hash == of(c).hash


def _is_side(block: Block, end: str, streams: set[str]) -> bool:
    """Whether a block of a layer is a map between a stream and an axis whose name ends so."""
    here = [a.name for a in block.atoms]
    ends = any(n.removesuffix(end) in ("", "e", "t", "text_", "vision_") for n in here if n.endswith(end))
    return ends and bool(block.scope) and len(block.axes or ()) > 1 and bool(streams & set(here))


def test_what_contracts_in_a_gated_layer(tmp_path: Path) -> None:
    """Gate with down is no relation: scaling up and down against each other would show in it."""
    found = {(r.layer, r.kind) for r in of(save_toy("llama", tmp_path / "a")).relations}
    assert {kind for layer, kind in found if layer == 0} == {
        "qk:rr",
        "ov:rw",
        "ff:r2",
        "scale:rw",
        "stream",
        "joint",
    }


def test_a_relation_of_one_side_is_refused(tmp_path: Path) -> None:
    """Without the spaces of the spec, the rule lets more through, and what it lets through moves: the rule is
    needed."""
    a = save_toy("llama", tmp_path / "a", dtype=torch.float64)
    b = disguise("llama", a, tmp_path / "b", 3)

    def every(folder: Path, *, blind: bool) -> dict[tuple[str, str], torch.Tensor]:
        model = recognise(folder)
        spec = model.spec.restrict([*model.spec.residual_names, "kv", "g", "ff"]) if blind else model.spec
        blocks = {b: model.assemble(b, torch.float64) for b in model.blocks if b.at("l") == 0}
        embedding = next(b for b in model.blocks if "embed_tokens" in b.key)
        found = relations(spec, blocks, {"res": Anchors(("t",), model.assemble(embedding, torch.float64)[:8])})
        return {key: x.data for key, x in found.items()}

    for blind in (False, True):
        one, two = every(a, blind=blind), every(b, blind=blind)
        worst = max(float((one[key] - two[key]).norm() / one[key].norm()) for key in one if key[1] != "stream")
        assert (worst > 0.05) == blind


def test_storage_does_not_matter(tmp_path: Path) -> None:
    """Shards and float64 leave the hash alone."""
    a = save_toy("gpt2", tmp_path / "a", dtype=torch.float32)
    import transformers as tf

    module = tf.AutoModelForCausalLM.from_pretrained(a)
    module.save_pretrained(tmp_path / "sharded", max_shard_size="20kB")
    assert len(list((tmp_path / "sharded").glob("*.safetensors"))) > 1
    assert of(tmp_path / "sharded").hash == of(a).hash == rounded(a, torch.float64).hash
    assert isomerge.fingerprint(module).hash == of(a).hash


@pytest.mark.parametrize("name", ["gpt2-untied", "llama", *more("bert", "vit", "t5-gated")])
def test_derived_models_are_kin(name: str, tmp_path: Path) -> None:
    """Noise, pruning and rounding to a few levels, each behind another disguise."""
    a = save_toy(name, tmp_path / "a", dtype=torch.float32)
    first = of(a)

    def pruned(found: dict[str, torch.Tensor]) -> None:
        for tensor in found.values():
            if tensor.ndim > 1 and tensor.is_floating_point():
                tensor[tensor.abs() < tensor.abs().flatten().kthvalue(tensor.numel() // 2).values] = 0

    def levels(found: dict[str, torch.Tensor]) -> None:
        for tensor in found.values():
            if tensor.ndim > 1 and tensor.is_floating_point():
                step = tensor.abs().amax(-1, keepdim=True).clamp_min(1e-9) / 7
                tensor.copy_((tensor / step).round() * step)

    near = {
        "noise": perturb(a, tmp_path / "noise", 0.2),
        "pruned": write_like(a, tmp_path / "pruned", pruned),
        "levels": write_like(a, tmp_path / "levels", levels),
    }
    for number, (how, folder) in enumerate(near.items()):
        found = similarity(first, of(turn(name, folder, tmp_path / f"{how}-turned", number)))
        assert found.verdict == "derived from one base", how
        assert found.score is not None
        assert 0.5 < found.score < 0.9999, how


@pytest.mark.parametrize("name", ["electra", "llava"])
def test_several_streams_tell_kinship(name: str, tmp_path: Path) -> None:
    """Each circuit is seen from the anchors of its own streams; those of narrow embeddings are mapped into the
    layers' stream."""
    a = save_toy(name, tmp_path / "a", dtype=torch.float32)
    first = of(a)
    assert all(len(streams) == 2 for streams in first.anchors.values())
    assert {r.ends for r in first.relations if r.kind == "qk:rr"}
    noise = similarity(first, of(turn(name, perturb(a, tmp_path / "noise", 0.2), tmp_path / "turned", 1)))
    assert noise.verdict == "derived from one base"
    assert not noise.apart
    assert (
        similarity(first, of(save_toy(name, tmp_path / "b", seed=5, dtype=torch.float32))).verdict == "independent"
    )
    first.save(tmp_path / "print.json")
    assert similarity(first, read_fingerprint(tmp_path / "print.json")).score == pytest.approx(1)


@pytest.mark.parametrize("name", ["aimv2", *more("kimi_linear", "clap")])
def test_axes_of_one_name(name: str, tmp_path: Path) -> None:
    """Maps with two axes of one size that nothing moves (the sides of a patch or of a kernel) have relations like
    any others."""
    a = save_toy(name, tmp_path / "a", dtype=torch.float32)
    twin = disguise(name, a, tmp_path / "twin", 3)
    assert similarity(of(a), of(twin)).equal
    assert not similarity(of(a), of(save_toy(name, tmp_path / "b", seed=5, dtype=torch.float32))).equal
    assert isomerge.verify(a, twin)["same"]


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        ("recurrent_gemma", "model.layers.0.temporal_block.rg_lru.input_gate_weight"),
        *more(("parakeet_rnnt", "decoder.lstm.weight_hh_l0")),
    ],
)
def test_neurons_that_meet_each_other(name: str, tensor: str, tmp_path: Path) -> None:
    """The gates of a recurrence have its neurons on both sides: a twin is known, and one changed weight is told."""
    a = save_toy(name, tmp_path / "a", dtype=torch.float32)
    first, twin = of(a), turn(name, a, tmp_path / "twin", 3)
    assert of(twin).hash == first.hash
    changed = of(write_like(twin, tmp_path / "changed", lambda stored: stored[tensor].view(-1)[7].add_(0.5)))
    assert changed.hash != first.hash
    assert not similarity(first, changed).equal


def test_tables_of_one_axis_and_two_lengths(tmp_path: Path) -> None:
    """ERNIE's types of tokens and of tasks are so many and so many."""
    a = save_toy("ernie", tmp_path / "a", dtype=torch.float32)
    assert of(turn("ernie", a, tmp_path / "twin", 3)).hash == of(a).hash


def test_a_bias_near_zero_may_change_its_sign(tmp_path: Path) -> None:
    """Neurons whose factors are divided out have nothing else of a bias: it is no difference."""
    a, near = (save_toy("opt", tmp_path / name, dtype=torch.float32) for name in ("a", "near"))
    for folder, size in ((a, 1e-6), (near, -1e-6)):
        stored = tensors(folder)
        stored["model.decoder.layers.0.fc1.bias"][0] = size
        overwrite(folder, stored)
    assert similarity(of(a), of(near)).equal


def test_a_stream_that_is_given_out_is_in_one_basis(tmp_path: Path) -> None:
    """Another basis of it is another function, made from one base; inside of layers everything may move."""
    import transformers

    from toy_settings import CAUSAL_OF_THREE
    from toys import randomise

    model = transformers.LlamaModel(transformers.LlamaConfig(**CAUSAL_OF_THREE)).eval()
    randomise(model, 0)
    model.save_pretrained(tmp_path / "a")
    order = torch.randperm(CAUSAL_OF_THREE["hidden_size"], generator=torch.Generator().manual_seed(1))
    first = ("embed_tokens", "q_proj", "k_proj", "v_proj", "gate_proj", "up_proj")

    def turned(weights: dict[str, torch.Tensor]) -> None:
        for name, t in weights.items():
            weights[name] = (t[:, order] if name.split(".")[-2] in first else t[order]).contiguous()

    a, moved = of(tmp_path / "a"), of(write_like(tmp_path / "a", tmp_path / "moved", turned))
    told = similarity(a, moved)
    assert a.hash != moved.hash
    assert told.difference == pytest.approx(0, abs=1e-5)
    assert told.verdict == "derived from one base"
    turned_stream = ("what it returns of the stream res is in another basis",)
    assert told.settings == turned_stream

    def tuned(weights: dict[str, torch.Tensor]) -> None:
        noise = torch.Generator().manual_seed(2)
        for tensor in weights.values():
            tensor.add_(0.02 * tensor.std() * torch.randn(tensor.shape, generator=noise))

    # what is returned by a fine-tune differs with its weights, and is in the same basis
    assert similarity(a, of(write_like(tmp_path / "a", tmp_path / "tuned", tuned))).settings == ()
    assert similarity(a, of(write_like(tmp_path / "moved", tmp_path / "both", tuned))).settings == turned_stream


def test_a_convolution_along_the_stream_has_two_ends(tmp_path: Path) -> None:
    """Its product with itself would have four, and fill memory with anchors to the fourth."""
    found = of(save_toy("deberta-conv", tmp_path / "a", dtype=torch.float32))
    assert any("conv" in r.block for r in found.relations)
    assert max(r.data.ndim for r in found.relations) == 3


def test_more_tokens_and_fewer_layers(tmp_path: Path) -> None:
    """A table that grew keeps most of its anchors; of a model with fewer layers the best partners count."""
    a = save_toy("llama", tmp_path / "a", dtype=torch.float32)
    weights = load_file(a / "model.safetensors")
    config = config_of(a)

    def grown(found: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        tables = ("model.embed_tokens.weight", "lm_head.weight")
        return {n: torch.cat([t, 0.1 * torch.randn(9, t.shape[1])]) if n in tables else t for n, t in found.items()}

    longer = fingerprint(recognise(in_memory(grown(weights), {**config, "vocab_size": config["vocab_size"] + 9})))
    found = similarity(of(a), longer)
    assert found.verdict == "derived from one base"
    assert found.difference is None
    assert any("rows and" in change.words for change in found.changes)
    depth = config["num_hidden_layers"]
    fewer = {n: t for n, t in weights.items() if f"layers.{depth - 1}." not in n}
    shorter = fingerprint(recognise(in_memory(fewer, {**config, "num_hidden_layers": depth - 1})))
    cut = similarity(of(a), shorter)
    assert cut.verdict == "derived from one base"
    lacking = f"layers that the deeper model has and the other lacks ({depth - 1})"
    for told in (cut, similarity(shorter, of(a))):
        assert [change.words for change in told.changes] == [lacking]
        assert told.source is None  # it may have been put in, or taken out


def test_experts_that_began_as_copies_are_kin(tmp_path: Path) -> None:
    """Sparse upcycling: every expert is the dense model's MLP with noise; another architecture, the same base."""
    from toys import load_toy

    dense = save_toy("llama-mha", tmp_path / "dense", dtype=torch.float32)
    config, weights = config_of(dense), load_file(dense / "model.safetensors")
    rng = torch.Generator().manual_seed(0)
    found: dict[str, torch.Tensor] = {}
    for name, tensor in weights.items():
        if ".mlp." not in name:
            found[name] = tensor
            continue
        part = {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}[name.split(".")[-2]]
        for e in range(2):
            noise = 0.1 * tensor.std() * torch.randn(tensor.shape, generator=rng)
            at = name.partition(".mlp.")[0]
            found[f"{at}.block_sparse_moe.experts.{e}.{part}.weight"] = tensor + noise
            found[f"{at}.block_sparse_moe.gate.weight"] = torch.randn(2, config["hidden_size"], generator=rng)
    moe = {
        **config,
        "model_type": "mixtral",
        "num_local_experts": 2,
        "num_experts_per_tok": 1,
        "architectures": ["MixtralForCausalLM"],
    }
    up = fingerprint(recognise(in_memory(found, moe)))
    assert load_toy("llama-mha", dense).spec.model_type != up.model_type
    kin = similarity(of(dense), up)
    assert kin.verdict == "derived from one base"
    assert kin.score is not None
    assert kin.score > 0.8
    stranger = of(save_toy("llama-mha", tmp_path / "other", seed=7, dtype=torch.float32))
    assert similarity(stranger, up).verdict == "independent"


# ------------------------------------------------------------------- files, doors


def test_a_fingerprint_goes_through_a_file(tmp_path: Path) -> None:
    """What is read back says the same; what is no fingerprint is refused in a sentence."""
    a = save_toy("qwen3", tmp_path / "a", dtype=torch.float32)
    made = isomerge.fingerprint(a, out=tmp_path / "print.json")
    back = read_fingerprint(tmp_path / "print.json")
    assert {**back.document(), "model": made.ref} == made.document()
    assert isomerge.similarity(tmp_path / "print.json", a)["verdict"] == "same function"
    for text in ("{}", "[]", "no json", json.dumps({**made.document(), "format": "other"})):
        (tmp_path / "bad.json").write_text(text)
        with pytest.raises(isomerge.IsomergeError, match=r"bad\.json"):
            isomerge.similarity(tmp_path / "bad.json", a)
    relation, (draw, streams) = made.document()["relations"][0], next(iter(made.document()["anchors"].items()))
    stream, anchor = next(iter(streams.items()))
    damaged = [
        {"relations": [{**relation, "data": relation["data"][:-8]}]},
        {"relations": [{**relation, "kind": ["a list"]}]},
        {"relations": [{**relation, "layer": {}}]},
        {"anchors": {draw: {stream: {**anchor, "names": [["a list"], *anchor["names"][1:]]}}}},
        {"anchors": {draw: {stream: {**anchor, "names": anchor["names"][1:]}}}},
        {"hash": {}},
        {"spectra": {"x": "text"}},
        {"storage": {}},
        {"config": []},
        {"sizes": {"res": 1.5}},
        {"tables": {"x": 3}},
        {"entries": {"x": 3}},
    ]
    for damage in damaged:
        (tmp_path / "bad.json").write_text(json.dumps({**made.document(), **damage}))
        with pytest.raises(isomerge.IsomergeError, match="is not a fingerprint"):
            read_fingerprint(tmp_path / "bad.json")
    (tmp_path / "bad.json").write_text("[" * 100_000)
    with pytest.raises(isomerge.IsomergeError, match="is not valid JSON"):
        read_fingerprint(tmp_path / "bad.json")
    with pytest.raises(isomerge.IsomergeError, match="no such folder"):
        isomerge.fingerprint(a, out=tmp_path / "nowhere" / "print.json")


@pytest.mark.parametrize("version", [1, 3, 4])
def test_an_older_fingerprint_is_told(version: int, tmp_path: Path) -> None:
    """What older formats held cannot be compared: it says so, and what to do."""
    (tmp_path / "old.json").write_text(json.dumps({"format": f"isomerge-fingerprint-{version}", "hash": "x"}))
    with pytest.raises(
        isomerge.IsomergeError, match=r"old\.json is a fingerprint of an older format.*make it anew"
    ):
        read_fingerprint(tmp_path / "old.json")


def test_the_command(tmp_path: Path) -> None:
    """Hashes on lines of their own, kinship in a table, everything in the report."""
    a = save_toy("gpt2", tmp_path / "a", dtype=torch.float32)
    twin = turn("gpt2", a, tmp_path / "twin", 3)
    b = save_toy("gpt2", tmp_path / "b", seed=5, dtype=torch.float32)
    call = [
        "fingerprint",
        str(a),
        str(twin),
        str(b),
        "-o",
        str(tmp_path / "f.json"),
        "--json",
        str(tmp_path / "r.json"),
    ]
    result = CliRunner().invoke(app, call)
    assert result.exit_code == 0, result.output
    report = json.loads((tmp_path / "r.json").read_text())
    assert report["hashes"][0] == report["hashes"][1] != report["hashes"][2]
    assert [found["verdict"] for found in report["compared"]] == ["same function", "independent"]
    assert report["hashes"][0] in result.output
    assert read_fingerprint(tmp_path / "f.json").hash == report["hashes"][0]


def test_verify_matches_only_what_may_be_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Strangers are told apart by fingerprints; one tensor that differs is still found and named."""
    a = save_toy("gpt2", tmp_path / "a", dtype=torch.float32)
    near = perturb(a, tmp_path / "near", 0.5, only="h.1.mlp.c_fc.weight")
    report = isomerge.verify(a, near)
    assert not report["same"]
    assert report["residual"]["tensor"] == "h.1.mlp.c_fc.weight"
    twin = turn("gpt2", a, tmp_path / "twin", 3)
    assert isomerge.verify(a, twin)["same"]

    def unwanted(*given: object) -> None:
        raise AssertionError("matched")

    monkeypatch.setattr(comparing, "prove", unwanted)
    b = save_toy("gpt2", tmp_path / "b", seed=5, dtype=torch.float32)
    report = isomerge.verify(a, b)
    assert not report["same"]
    assert report["residual"]["largest"] > 0.1
    assert report["fingerprints"]["verdict"] == "independent"
    with pytest.raises(AssertionError, match="matched"):
        isomerge.verify(a, twin)


def test_diff_knows_kin_in_another_basis(tmp_path: Path) -> None:
    """A fine-tune behind a rotated stream is far away as it is stored; its fingerprint knows it, and so its stream
    is matched."""
    a = save_toy("llama", tmp_path / "a", dtype=torch.float32)
    tuned = turn("llama", perturb(a, tmp_path / "near", 0.1), tmp_path / "tuned", 3)
    report = isomerge.diff(a, tuned)
    assert report["relative"]["before"] > 0.9
    assert report["relative"]["after"] < 0.2
    assert report["fingerprints"]["verdict"] == "derived from one base"
    assert report["verdict"]["code"] == "related"
    b = save_toy("llama", tmp_path / "b", seed=5, dtype=torch.float32)
    assert isomerge.diff(a, b)["verdict"]["code"] == "unrelated"
