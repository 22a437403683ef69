"""What LayerNorm leaves free is matched, merged, brought to one form and replayed, as every symmetry is.

Random moves of every kind, in every layer, are planted through disk, alone and under random elements of all spaces
inside the layers.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from pathlib import Path

import pytest
import torch
import transformers as tf

import isomerge
from depth import more
from isomerge.errors import IsomergeError
from isomerge.evidence.law import random_alignment
from isomerge.matching.norm_parts import brought_onto, is_disguised, ones_elements
from isomerge.models.layer_norm_form import free_under_layer_norm
from isomerge.models.recognised import Model, recognise
from isomerge.run.alignment_runs import run_apply
from isomerge.run.writing_run import Output
from isomerge.symmetry.alignment import Alignment
from isomerge.symmetry.blocks import Block
from isomerge.symmetry.layer_norms import norm_spec
from isomerge.symmetry.norm_stage import BETWEEN, FOLD, GAIN, MADE, ONES, SCALE, TIED, norm_keys, norm_stages
from run.near_twins import assert_told, near_twin
from toys import Toy, outputs, overwrite, relative, save_toy, tensors

pytestmark = pytest.mark.matched(
    "of layers: else strangers' streams are matched as well, and small changes not at all"
)

ToyMaker = Callable[..., Toy]
MODELS = [
    "gpt2",
    "bert",
    "modernbert-biased",
    *more("vit", "gptj"),
    *more(
        "modernbert",
        "bloom",
        "olmo",
        "gpt_neo",
        "codegen",
        "persimmon",
        "stablelm",
        "stablelm-heads",
        "nemotron",
        "nemotron-heads",
        "cohere2",
        "esm",
    ),
    *more("dinov2", "dinov3_vit", "beit", "vit_mae", "audio-spectrogram-transformer"),
    *more("gpt_neox_japanese", "deberta", "deberta-shared", "deberta-unshared"),
    *more("albert", "rembert", "roformer", "roformer-plain", "jina_embeddings_v3", "megatron-bert-words"),
    *more(
        "wav2vec2",
        "wav2vec2-stable",
        "hubert",
        "wavlm",
        "wavlm-stable",
        "unispeech",
        "unispeech-sat",
        "data2vec-audio",
        "sew",
    ),
    *more("convbert", "convbert-wide", "squeezebert", "squeezebert-relu"),
    *more("dpt", "dpt-added", "dpt-labels", "depth_anything"),
    *more("swin", "swin-three", "swin-one", "donut-swin", "clap", "clap-short", "vision-encoder-decoder-donut"),
    *more("segformer", "segformer-labels", "markuplm", "layoutlmv3", "layoutlmv3-words"),
    *more("fnet", "xlnet", "xlnet-relu", "xlm", "flaubert", "flaubert-before"),
    *more("esm-rotary", "esmc", "gpt_neox-full", "modernbert-decoder", "biogpt", "gpt_bigcode"),
    *more("roberta", "distilbert", "electra", "electra-wide", "mpnet", "longformer", "lilt", "gte", "nomic_bert"),
    *more(
        "xglm",
        "big_bird-sparse",
        "nystromformer",
        "openai-gpt",
        "deit",
        "yolos-plain",
        "siglip",
        "gpt_neox",
        "opt",
        "phi",
        "mpt",
        "falcon",
        "starcoder2",
        "clip",
    ),
]


def free_moves(model: Model, seed: int = 1) -> Alignment:
    """Random moves of all that LayerNorm leaves free in a model."""
    rng, free = torch.Generator().manual_seed(seed), free_under_layer_norm(model)
    elements = {}

    def draw(block: Block, axis: int | None) -> torch.Tensor:
        shape = list(model.assemble(block, torch.float64).shape)
        if axis is not None:
            shape[axis] = 1
        return torch.randn(shape, generator=rng, dtype=torch.float64)

    for block, axis in free.writers.items():
        elements[ONES + block.key] = draw(block, axis)
    for block, axis in free.between.items():
        elements[BETWEEN + block.key] = draw(block, axis)
    for norm in free.norms:
        elements |= {GAIN + block.key: draw(block, axis) for block, axis in norm.slack.items()}
        if norm.bias is not None and norm.folds:
            elements[FOLD + norm.bias.key] = draw(norm.bias, None)
        for one in norm.made:
            weight = model.assemble(one.reader, torch.float64)
            here = torch.where(one.rows(weight), draw(one.reader, one.axis), torch.zeros(()).double())
            elements[MADE + one.reader.key] = elements.get(MADE + one.reader.key, 0) + here
        if norm.trades:
            elements[TIED + norm.trades[0].table.key] = torch.randn(len(norm.trades), generator=rng).double()
        if norm.gain is not None and norm.scales:
            elements[SCALE + norm.gain.key] = 0.5 + draw(norm.gain, None).abs()
    elements |= {one.key: torch.randn(one.shape, generator=rng, dtype=torch.float64) for one in free.carried}
    shapes = {key: one.shape(key) for one in free.reached for key in one.element_keys}
    elements |= {key: torch.randn(shape, generator=rng, dtype=torch.float64) for key, shape in shapes.items()}
    elements |= {one.key: torch.randn(one.width, one.width, generator=rng).double() for one in free.bases}
    assert elements.keys() == norm_keys(free)
    spec = norm_spec(model.declared)
    return Alignment.of(norm_stages(spec, elements), spec)


def inner_moves(model: Model, seed: int) -> Alignment:
    """Random elements of all spaces inside the layers, and of shifts."""
    names = [*model.spec.spaces, *(s.name for s in model.spec.shifts)]
    local = model.spec.restrict([name for name in names if name not in model.spec.residual_names])
    return random_alignment(local, model.blocks, torch.Generator().manual_seed(seed))


def apart(one: Path, two: Path) -> float:
    """The largest relative distance of two tensors of one name."""
    a, b = tensors(one), tensors(two)
    return max(float((t - b[n]).norm() / t.norm().clamp_min(1e-3)) for n, t in a.items() if t.is_floating_point())


def check_known(first: Toy, twin: Path, folder: Path) -> None:
    """A twin has the same canonical form, which is the same function, and the same fingerprint; it is verified."""
    for source, out in ((first.folder, "one"), (twin, "two")):
        isomerge.canon(source, out=folder / out)
    assert apart(folder / "one", folder / "two") < 1e-7
    assert relative(outputs(folder / "one"), first.reference) < 1e-6
    assert isomerge.fingerprint(first.folder).hash == isomerge.fingerprint(twin).hash
    assert isomerge.verify(first.folder, twin)["same"] is True


@pytest.mark.parametrize("name", MODELS)
def test_a_twin_comes_back(name: str, toy: ToyMaker, tmp_path: Path) -> None:
    """The same function: at distance zero once aligned; the alignment replays and undoes; merged into itself; one
    canonical form and one fingerprint."""
    first = toy(name)
    model = recognise(first.folder)
    twin, there = tmp_path / "twin", tmp_path / "aligned"
    run_apply(inner_moves(model, 2) @ free_moves(model), model, Output(twin))
    assert apart(first.folder, twin) > 1
    assert relative(outputs(twin), first.reference) < 1e-4  # the moves are large; some compute norms in float32
    moved, report = isomerge.align(twin, onto=first.folder, out=there)
    assert apart(first.folder, there) < 1e-9
    assert report["distance"]["after"] < 1e-6
    assert "norms" in moved.moved()
    moved.save(tmp_path / "moved.safetensors")
    isomerge.apply(tmp_path / "moved.safetensors", twin, out=tmp_path / "replayed")
    assert apart(there, tmp_path / "replayed") == 0
    run_apply(
        Alignment.load(tmp_path / "moved.safetensors", model.declared).inverse(),
        recognise(there),
        Output(tmp_path / "back"),
    )
    assert apart(twin, tmp_path / "back") < 1e-9
    isomerge.merge([first.folder, twin], out=tmp_path / "merged")
    assert relative(outputs(tmp_path / "merged"), first.reference) < 1e-6
    check_known(first, twin, tmp_path)


@pytest.mark.parametrize(("name", "spaces"), [("bert", "default"), ("gpt2", "all")])
def test_twins_are_merged_without_an_anchor(name: str, spaces: str, toy: ToyMaker, tmp_path: Path) -> None:
    """Three models that are one function up to these moves and the spaces inside the layers are merged into it."""
    first = toy(name)
    model = recognise(first.folder)
    twins = [tmp_path / "one", tmp_path / "two"]
    for seed, twin in enumerate(twins, 1):
        run_apply(inner_moves(model, seed) @ free_moves(model, seed), model, Output(twin))
    folders = [first.folder, *twins]
    assert min(apart(a, b) for a, b in combinations(folders, 2)) > 1
    report = isomerge.merge(folders, out=tmp_path / "merged", anchor="none", spaces=spaces)
    assert relative(outputs(tmp_path / "merged"), first.reference) < 1e-6
    assert report["distance"]["after"] < 1e-6


@pytest.mark.parametrize(
    "name",
    [
        *more(
            "bart",
            "led",
            "mbart",
            "plbart",
            "blenderbot",
            "whisper",
            "marian",
            "pegasus",
            "m2m_100",
            "speech_to_text",
        )
    ],
)
def test_a_twin_of_two_stacks_is_known(name: str, toy: ToyMaker, tmp_path: Path) -> None:
    """What decoders read of an encoder's last norm is compared, and not matched: verified, one form, one
    fingerprint."""
    first, twin = toy(name), tmp_path / "twin"
    model = recognise(first.folder)
    run_apply(free_moves(model), model, Output(twin))
    assert apart(first.folder, twin) > 1
    assert relative(outputs(twin), first.reference) < 1e-4
    check_known(first, twin, tmp_path)


WRONG = {
    "gpt2": [(GAIN, "h.1.mlp.c_fc.bias"), (FOLD, "h.1.attn.c_attn.bias")],
    "bert": [
        (GAIN, "encoder.layer.1.intermediate.dense.bias"),
        (FOLD, "encoder.layer.1.output.dense.bias"),
        (FOLD, "cls.predictions.bias"),
        (TIED, "cls.predictions.bias"),
        (TIED, "embeddings.token_type_embeddings.weight"),
        (SCALE, "encoder.layer.2.output.LayerNorm.bias"),
    ],
    "gpt_neo": [(FOLD, "h.1.attn.attention.q_proj.weight"), (MADE, "h.1.attn.attention.out_proj.bias")],
    "bart": [
        (GAIN, "decoder.layers.0.encoder_attn.q_proj.bias"),
        (GAIN, "decoder.layers.1.encoder_attn.v_proj.bias"),
        (FOLD, "decoder.layers.1.encoder_attn_layer_norm.bias"),
    ],
    "deberta": [
        (GAIN, "encoder.layer.1.attention.self.q_bias"),
        (FOLD, "encoder.layer.1.attention.self.v_bias"),
        (FOLD, "encoder.layer.1.attention.self.in_proj.weight"),
    ],
    "modernbert-biased": [(GAIN, "layers.0.attn.Wqkv.bias"), (FOLD, "layers.1.attn.Wqkv.bias")],
    "squeezebert": [(FOLD, "encoder.layers.1.intermediate.conv1d.bias")],
    "xlnet": [
        (GAIN, "layer.1.rel_attn.r_w_bias"),
        (GAIN, "layer.1.rel_attn.r_s_bias"),
        (FOLD, "layer.1.rel_attn.v"),
    ],
    "nomic_bert": [
        (FOLD, "emb_ln.bias"),
        (FOLD, "encoder.layers.1.attn.Wqkv.weight"),
        (FOLD, "encoder.layers.1.mlp.fc12.weight"),
    ],
    "xlm": [(GAIN, "ffns.1.lin1.bias"), (FOLD, "attentions.1.out_lin.bias")],
    "wavlm": [(GAIN, "encoder.layers.1.attention.q_proj.bias")],
    "fnet": [(FOLD, "encoder.layer.1.output.dense.bias"), (FOLD, "embeddings.projection.bias")],
}


@pytest.mark.parametrize(
    "name",
    [
        "bert",
        "gpt_neo",
        "squeezebert",
        *more("bart", "gpt2", "modernbert-biased", "xlnet", "nomic_bert", "xlm", "wavlm", "fnet"),
    ],
)
def test_what_is_moved_wrongly_is_another_function(name: str, toy: ToyMaker, tmp_path: Path) -> None:
    """Near-twins: a move whose correction of a bias is left out, in one layer, is told by outputs, verify and
    fingerprint."""
    first = toy(name)
    model = recognise(first.folder)
    moves = free_moves(model)
    for kind, bias in WRONG[name]:
        kept = {key.rpartition(":")[2]: c for key, c in moves.items() if key.rpartition(":")[2].startswith(kind)}
        near = tmp_path / f"{kind}{bias}"
        run_apply(Alignment.of(norm_stages(moves.spec, kept), moves.spec), model, Output(near))
        new, name = tensors(near), model.names[bias]
        assert relative(outputs(near), first.reference) < 1e-6  # GPT-Neo's scores are float32
        new[name] = first.stored[name]
        overwrite(near, new)
        assert relative(outputs(near), first.reference) > 1e-3
        assert isomerge.verify(first.folder, near)["same"] is False
        assert isomerge.fingerprint(first.folder).hash != isomerge.fingerprint(near).hash


def test_words_of_padding_trade_with_their_place_alone(toy: ToyMaker) -> None:
    """RoBERTa's table is the head as well: two constants are free, one of all words and one of padding's row."""
    model = recognise(toy("roberta").folder)
    free, spec = free_under_layer_norm(model), norm_spec(model.declared)
    (norm,) = (norm for norm in free.norms if norm.trades)
    table, places = (trade for trade in (norm.trades[0].table, norm.trades[1].partner))
    source = {block: model.assemble(block, torch.float64) for block in model.blocks}
    (stage,) = norm_stages(spec, {TIED + table.key: torch.tensor([0.5, -2.0], dtype=torch.float64)})
    moved = stage.applied(source)
    changed = (moved[places] != source[places]).any(1).nonzero().flatten().tolist()
    assert changed == [model.config["pad_token_id"]]
    assert norm.bias is not None
    paid = moved[norm.trades[0].bias] - source[norm.trades[0].bias]
    made = (moved[table] - source[table]) @ source[
        norm.bias
    ]  # what a head makes of a norm's bias it has in its own
    assert torch.allclose(paid, -made)
    assert len({round(float(x), 9) for x in paid}) == 2


def test_a_reader_of_one_row(toy: ToyMaker, tmp_path: Path) -> None:
    """TAPAS's head of cells is a vector: models apart are matched, and keep what they compute."""
    other = save_toy("tapas-cells", tmp_path / "other", seed=4)
    _, report = isomerge.align(other, onto=toy("tapas-cells").folder, out=tmp_path / "moved")
    assert report["distance"]["after"] < report["distance"]["before"]
    assert relative(outputs(tmp_path / "moved"), outputs(other)) < 1e-6


@pytest.mark.parametrize("seed", range(3))
def test_the_parts_are_the_nearest(seed: int, toy: ToyMaker) -> None:
    """Of every writer and reader, against least squares over all that may be added; what is left is orthogonal."""
    model = recognise(toy("gpt2").folder)
    free = free_under_layer_norm(model)
    rng = torch.Generator().manual_seed(seed)
    source = {block: model.assemble(block, torch.float64) for block in model.blocks}
    anchor = {block: torch.randn(t.shape, generator=rng, dtype=torch.float64) for block, t in source.items()}
    elements = ones_elements(free, source, anchor)
    assert len(elements) == 19
    for norm in free.norms:
        assert norm.gain is not None
        for reader, axis in norm.slack.items():
            column = (1 / source[norm.gain])[:, None]
            gap = (anchor[reader] - source[reader]).movedim(axis, 0)
            best = torch.linalg.lstsq(column, gap).solution
            assert torch.allclose(elements[GAIN + reader.key].movedim(axis, 0), best)
    for writer, axis in free.writers.items():
        gap = (anchor[writer] - source[writer]).movedim(axis, 0)
        gap = gap.reshape(len(gap), -1)
        best = torch.linalg.lstsq(torch.ones(len(gap), 1, dtype=torch.float64), gap).solution
        assert torch.allclose(elements[ONES + writer.key].movedim(axis, 0).flatten(), best.flatten())


@pytest.mark.parametrize("size", [0.01, 1.0])
def test_the_distance_falls(size: float, toy: ToyMaker) -> None:
    """Of a disguised model, by all that is between them but noise; or nothing is moved, in narrow random ones."""
    model = recognise(toy("gpt2").folder)
    free, spec = free_under_layer_norm(model), norm_spec(model.declared)
    source = {block: model.assemble(block, torch.float64) for block in model.blocks}
    rng = torch.Generator().manual_seed(0)
    noise = {b: size * torch.randn(t.shape, generator=rng, dtype=t.dtype) for b, t in source.items()}
    anchor = {b: t + noise[b] for b, t in free_moves(model).applied(source).items()}
    moves = brought_onto(spec, free, anchor, source)
    before = sum(float((anchor[b] - t).square().sum()) for b, t in source.items())
    after = sum(float((anchor[b] - t).square().sum()) for b, t in moves.applied(source).items())
    assert moves.moved()["norms"][1] > 0
    assert after < before / 2
    assert is_disguised(free, anchor, source)
    near = {b: t + noise[b] for b, t in source.items()}
    assert not is_disguised(free, near, source)
    assert not brought_onto(spec, free, near, source)


def test_a_fine_tune_keeps_its_bytes(tmp_path: Path) -> None:
    """A random difference has one part in its width along the ones, which is worth no move."""
    torch.manual_seed(0)
    config = tf.GPT2Config(
        n_embd=96, n_layer=1, n_head=4, vocab_size=64, n_positions=16, bos_token_id=0, eos_token_id=0
    )
    model = tf.GPT2LMHeadModel(config)
    model.save_pretrained(tmp_path / "base")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 1e-3 * torch.randn_like(parameter)
    model.save_pretrained(tmp_path / "tuned")
    moved, _ = isomerge.align(tmp_path / "tuned", onto=tmp_path / "base", out=tmp_path / "out", spaces="default")
    assert "norms" not in moved.moved()


TRADING = """
like bert
model bert
shift pt: embeddings.position_embeddings.weight along pos -> embeddings.token_type_embeddings.weight along types
"""


def test_tables_of_a_fine_tune_keep_their_bytes(toy: ToyMaker, tmp_path: Path) -> None:
    """A constant that is small beside what else changed is not traded; one that is planted is traded back."""
    first, spec = toy("bert"), tmp_path / "trading.spec"
    spec.write_text(TRADING)
    tables = [f"bert.embeddings.{kind}_embeddings.weight" for kind in ("position", "token_type")]
    new = dict(first.stored)
    for name in tables:
        new[name] = new[name] + 1e-2 * torch.randn(new[name].shape, generator=torch.Generator().manual_seed(1))
    planted = torch.randn(new[tables[0]].shape[1], generator=torch.Generator().manual_seed(2)).double()
    for folder, size in (("tuned", 0.0), ("traded", 1.0)):
        model = tf.AutoModelForMaskedLM.from_pretrained(first.folder, dtype=torch.float64)
        model.save_pretrained(tmp_path / folder)
        overwrite(tmp_path / folder, new | {tables[0]: new[tables[0]] + size * planted})
        out = tmp_path / f"{folder}-aligned"
        isomerge.align(tmp_path / folder, onto=first.folder, out=out, spaces="pt", spec=spec)
        kept, moved = (tensors(tmp_path / f"{folder}{end}")[tables[0]] for end in ("", "-aligned"))
        assert torch.equal(kept, moved) is (size == 0)


def test_tokens_trade_with_their_places(toy: ToyMaker, tmp_path: Path) -> None:
    """Some rows of a table: the same function, found again, and one form; a shift of another row is told."""
    first, twin, near = toy("vit"), tmp_path / "twin", tmp_path / "near"
    model = recognise(first.folder)
    moves = random_alignment(model.spec.restrict(["cp", "pp"]), model.blocks, torch.Generator().manual_seed(1))
    assert set(moves) == {"shift.cp", "shift.pp"}
    run_apply(moves, model, Output(twin))
    assert apart(first.folder, twin) > 0.5
    assert relative(outputs(twin), first.reference) < 1e-9
    isomerge.align(twin, onto=first.folder, out=tmp_path / "aligned", spaces="cp,pp")
    assert apart(first.folder, tmp_path / "aligned") < 1e-9
    isomerge.merge([first.folder, twin], out=tmp_path / "merged")
    assert relative(outputs(tmp_path / "merged"), first.reference) < 1e-9
    for source, out in ((first.folder, "one"), (twin, "two")):
        isomerge.canon(source, out=tmp_path / out)
    assert apart(tmp_path / "one", tmp_path / "two") < 1e-7
    assert isomerge.verify(first.folder, twin)["same"] is True
    run_apply(moves, model, Output(near))
    places = model.names["embeddings.position_embeddings"]
    new = tensors(near)
    new[places][:, 1] += new[places][:, 0] - first.stored[places][:, 0]  # the class token's place, one too far
    new[places][:, 0] = first.stored[places][:, 0]
    overwrite(near, new)
    assert relative(outputs(near), first.reference) > 1e-3
    assert isomerge.verify(first.folder, near)["same"] is False
    assert isomerge.fingerprint(first.folder).hash != isomerge.fingerprint(near).hash


@pytest.mark.parametrize(
    ("spaces", "moves"), [("norms", True), ("ff", False), ("paper", False), ("ff,norms", True)]
)
def test_the_choice_of_spaces(spaces: str, moves: bool, toy: ToyMaker, tmp_path: Path) -> None:
    """`norms` names them; presets of the paper, and other names, leave them."""
    first = toy("gpt2")
    twin = tmp_path / "twin"
    run_apply(free_moves(recognise(first.folder)), recognise(first.folder), Output(twin))
    moved, report = isomerge.align(twin, onto=first.folder, out=tmp_path / "out", spaces=spaces)
    assert ("norms" in moved.moved()) is moves
    assert (report["distance"]["after"] < 1e-6) is moves


def test_without_layer_norm_there_is_no_such_space(toy: ToyMaker, tmp_path: Path) -> None:
    """RMSNorm takes no mean away."""
    folder = toy("llama").folder
    with pytest.raises(IsomergeError, match="no such space"):
        isomerge.align(folder, onto=folder, out=tmp_path / "out", spaces="norms")


def test_a_damaged_alignment_is_refused(toy: ToyMaker, tmp_path: Path) -> None:
    """An element of another shape, one that is not finite, and one that moves a tensor that no norm knows."""
    model = recognise(toy("gpt2").folder)
    moves, file = free_moves(model), tmp_path / "moves.safetensors"
    key = f"{ONES}h.0.mlp.c_proj.weight"
    wrong = {
        "shape": (key, moves[key][:3], "no element of its group"),
        "finite": (key, moves[key] * float("nan"), "no element of its group"),
        "tensor": (f"{ONES}h.0.mlp.nothing", moves[key], "not described"),
        "reader": (f"{ONES}ln_f.bias", moves[f"{ONES}h.0.mlp.c_proj.bias"], "does not have"),
    }
    wrong["stage"] = (f"{FOLD}h.0.ln_1.bias", moves[f"2:{FOLD}h.0.ln_1.bias"], "two kinds")
    for name, c, text in wrong.values():
        Alignment(moves.spec, {**{k: v for k, v in moves.items() if k != key}, name: c.contiguous()}).save(file)
        with pytest.raises(IsomergeError, match=text):
            isomerge.apply(file, model.ref, out=tmp_path / "out")


def test_a_token_for_masked_patches_follows_their_bias(tmp_path: Path) -> None:
    """What patches' bias trades with their places the token that stands for masked ones has as well."""
    torch.manual_seed(0)
    config = tf.Dinov2Config(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, image_size=8, patch_size=4)
    model = tf.Dinov2Model(config).double().eval()
    model.save_pretrained(tmp_path / "one")
    first = recognise(tmp_path / "one")
    moves = random_alignment(first.spec.restrict(["pp"]), first.blocks, torch.Generator().manual_seed(1))
    run_apply(moves, first, Output(tmp_path / "two"))
    twin = tf.Dinov2Model.from_pretrained(tmp_path / "two", dtype=torch.float64)
    pixels, masked = torch.randn(2, 3, 8, 8).double(), torch.tensor([[True, False, True, False]] * 2)
    for where in (None, masked):
        with torch.no_grad():
            one, two = (m(pixels, bool_masked_pos=where).last_hidden_state for m in (model, twin))
        assert float((one - two).abs().max()) < 1e-9
    assert apart(tmp_path / "one", tmp_path / "two") > 1
    assert isomerge.verify(tmp_path / "one", tmp_path / "two")["same"] is True


NEAR = [
    *more(
        ("vit_mae", "decoder.decoder_embed.bias"),
        ("swin", "encoder.layers.0.blocks.0.layernorm_before.bias"),
        ("segformer", "encoder.block.0.0.attention.self.sr.bias"),
        ("led", "encoder.layers.0.fc1.bias"),
        ("mamba", "layers.0.mixer.conv1d.weight"),
        ("jamba", "layers.0.mamba.D"),
    )
]


@pytest.mark.parametrize(("name", "left"), NEAR)
def test_a_near_twin_is_told(name: str, left: str, toy: ToyMaker, tmp_path: Path) -> None:
    """All moves but for one tensor, which stays behind: other outputs, and `verify` and fingerprints say so."""
    first = toy(name)
    twin = near_twin(first, lambda model: inner_moves(model, 1) @ free_moves(model), left, tmp_path / "near")
    assert relative(outputs(twin), first.reference) > 1e-3
    assert_told(first.folder, twin)


@pytest.mark.parametrize(
    ("name", "left"),
    more(("swin", "encoder.layers.0.downsample.reduction.weight"), ("mamba2", "layers.0.mixer.conv1d.weight")),
)
def test_a_near_twin_that_fingerprints_do_not_see(name: str, left: str, toy: ToyMaker, tmp_path: Path) -> None:
    """Streams between two others have no anchors, and taps of a convolution no others to meet: `verify` sees them
    (docs/lab/fingerprint.md)."""
    first = toy(name)
    twin = near_twin(first, lambda model: inner_moves(model, 1) @ free_moves(model), left, tmp_path / "near")
    assert relative(outputs(twin), first.reference) > 1e-3
    assert isomerge.verify(first.folder, twin)["same"] is False
