"""Stacks of layers: the view against a checkpoint put together by hand, and against transformers."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers as tf

from depth import more
from isomerge.checkpoint import checksums
from isomerge.checkpoint.checksums import file_checksum
from isomerge.checkpoint.opening import open_checkpoint
from isomerge.checkpoint.reader import Checkpoint
from isomerge.errors import IsomergeError
from isomerge.models.layers import stack_layers
from isomerge.models.recognised import recognise
from isomerge.observe.live.modules import load_module, materialise
from isomerge.observe.stats.statistics import weights_digest
from isomerge.run.writing_run import run_key
from raw_files import one_sentence
from toy_settings import CAUSAL_OF_THREE
from toys import TOYS, Toy, config_of, inputs, outputs, overwrite, relative, save_toy

# toy -> (what stands before and after the number of a layer, the layers of its module, the key of its depth)
STACKS: dict[str, tuple[str, Callable, str]] = {
    "llama": ("model.layers.", lambda m: m.model.layers, "num_hidden_layers"),
    "llama-tied": ("model.layers.", lambda m: m.model.layers, "num_hidden_layers"),
    "qwen2": ("model.layers.", lambda m: m.model.layers, "num_hidden_layers"),
    "mixtral": ("model.layers.", lambda m: m.model.layers, "num_hidden_layers"),
    "gpt2": ("transformer.h.", lambda m: m.transformer.h, "n_layer"),
    "bert": ("bert.encoder.layer.", lambda m: m.bert.encoder.layer, "num_hidden_layers"),
    "distilbert": ("distilbert.transformer.layer.", lambda m: m.distilbert.transformer.layer, "n_layers"),
    "deberta-shared": ("deberta.encoder.layer.", lambda m: m.deberta.encoder.layer, "num_hidden_layers"),
}
ORDER = [2, 0, 0, 1, 2]


def by_hand(stem: str, stored: dict[str, torch.Tensor], order: list[int]) -> dict[str, torch.Tensor]:
    """Stored tensors with their layers put into another order."""
    found = {name: x for name, x in stored.items() if not name.startswith(stem)}
    for number, layer in enumerate(order):
        start = f"{stem}{layer}."
        found |= {f"{stem}{number}.{n[len(start) :]}": x for n, x in stored.items() if n.startswith(start)}
    return found


def same(view: Checkpoint, wanted: dict[str, torch.Tensor]) -> None:
    """Equal names, descriptions and bytes."""
    assert set(view.tensors) == set(wanted)
    for name, x in wanted.items():
        assert view.tensors[name].name == name
        assert torch.equal(view.read(name), x)


@pytest.mark.parametrize("name", STACKS)
def test_layers_by_hand(name: str, toy: Callable[..., Toy]) -> None:
    """One model's layers, reordered and repeated; recognised with as many units more."""
    stem, _, key = STACKS[name]
    one = toy(name)
    base = open_checkpoint(one.folder)
    view = stack_layers([(base, range(2, 3)), (base, range(1)), (base, range(3))])
    same(view, by_hand(stem, one.stored, ORDER))
    assert view.config[key] == len(ORDER)
    assert {k: v for k, v in view.config.items() if k not in (key, "layer_types", "max_window_layers")} == {
        k: v for k, v in base.config.items() if k not in (key, "layer_types", "max_window_layers")
    }
    assert view.nbytes == sum(x.nbytes for x in by_hand(stem, one.stored, ORDER).values())
    assert {b.at("l") for b in recognise(view).blocks} - {None} == set(range(len(ORDER)))


@pytest.mark.parametrize("name", [n for n in STACKS if n != "mixtral"])
def test_layers_in_transformers(name: str, toy: Callable[..., Toy], tmp_path: Path) -> None:
    """The written stack computes what the module computes whose list of layers was changed."""
    one = toy(name)
    base = open_checkpoint(one.folder)
    out = materialise(stack_layers([(base, range(2, 3)), (base, range(1)), (base, range(3))]), tmp_path / "out")
    config = tf.AutoConfig.from_pretrained(one.folder)
    kind = getattr(tf, config_of(one.folder)["architectures"][0])
    model = kind.from_pretrained(one.folder, dtype=torch.float64).eval()
    layers = STACKS[name][1](model)
    kept = [layers[number] for number in ORDER]
    del layers[:]
    layers.extend(kept)
    model.config.num_hidden_layers = len(ORDER)
    if getattr(config, "layer_types", None):
        model.config.layer_types = [config.layer_types[number] for number in ORDER]
    with torch.no_grad():
        wanted = (
            model(**inputs(config), use_cache=False).logits
            if "bert" not in name
            else model(**inputs(config)).logits
        )
    assert relative(outputs(out), wanted) <= TOYS[name][1]
    assert relative(outputs(out), one.reference) > 1e-3


def test_several_models(toy: Callable[..., Toy], tmp_path: Path) -> None:
    """Embeddings are the first slice's, the last norm and the head the last one's, config and files the donor's."""
    one, two = toy("llama"), toy("llama", 1)
    a, b = open_checkpoint(one.folder), open_checkpoint(two.folder)
    donor = save_toy("llama", tmp_path / "donor", seed=2)
    (donor / "tokenizer.json").write_text("donor")
    (donor / "config.json").write_text(json.dumps({**config_of(donor), "note": "donor"}))
    view = stack_layers([(a, range(2)), (b, range(1, 3))], open_checkpoint(donor))
    wanted = {n: x for n, x in one.stored.items() if "layers.2" not in n}
    for old, new in ((1, 2), (2, 3)):
        start = f"model.layers.{old}."
        wanted |= {
            n.replace(start, f"model.layers.{new}."): x for n, x in two.stored.items() if n.startswith(start)
        }
    wanted |= {n: two.stored[n] for n in ("model.norm.weight", "lm_head.weight")}
    same(view, wanted)
    assert view.config["note"] == "donor"
    out = materialise(view, tmp_path / "out")
    assert (out / "tokenizer.json").read_text() == "donor"
    assert tf.AutoModelForCausalLM.from_pretrained(out).config.num_hidden_layers == 4


def test_layers_left_out_alone(toy: Callable[..., Toy]) -> None:
    """What is run is the stack, also where every tensor that is left has its name and place."""
    base = open_checkpoint(toy("llama").folder)
    module = load_module(recognise(stack_layers([(base, range(2))])))
    assert [len(module.model.layers), len(load_module(recognise(base)).model.layers)] == [2, 3]


def test_slices_of_other_tokens(toy: Callable[..., Toy], tmp_path: Path) -> None:
    """Tables must be over the donor's tokens, where a slice brings any."""
    one = open_checkpoint(toy("llama").folder)
    model = tf.LlamaForCausalLM(tf.LlamaConfig(**{**CAUSAL_OF_THREE, "vocab_size": 71})).double()
    model.save_pretrained(tmp_path / "two")
    two = open_checkpoint(tmp_path / "two")
    assert stack_layers([(one, range(1)), (two, range(1, 2)), (one, range(2, 3))]).config["vocab_size"] == 67
    for parts, table in (
        ([(one, range(1)), (two, range(1, 3))], "lm_head.weight"),
        ([(two, range(1)), (one, range(1, 3))], "model.embed_tokens.weight"),
    ):
        with pytest.raises(IsomergeError) as error:
            stack_layers(parts, one)
        one_sentence(error.value, f"two: tensor {table} is for 71 tokens", "has 67", "tokenizer source")


def test_tied_head_goes_with_the_embeddings(toy: Callable[..., Toy], tmp_path: Path) -> None:
    """Where both are stored but tied, the last slice's head would be ignored: the first's is kept."""
    one, two = toy("llama-tied"), toy("llama-tied", 1)
    folders = []
    for k, part in enumerate((one, two)):
        folders.append(save_toy("llama-tied", tmp_path / f"{k}"))
        head = part.stored["model.embed_tokens.weight"].clone()
        overwrite(folders[-1], {**part.stored, "lm_head.weight": head})
    a, b = (open_checkpoint(f) for f in folders)
    view = stack_layers([(a, range(2)), (b, range(2, 3))])
    assert torch.equal(view.read("lm_head.weight"), one.stored["model.embed_tokens.weight"])
    assert torch.equal(view.read("model.norm.weight"), two.stored["model.norm.weight"])


def test_names_are_the_donors(toy: Callable[..., Toy], tmp_path: Path) -> None:
    """A slice whose checkpoint lacks the prefix gets the donor's names."""
    one, two = toy("gpt2"), toy("gpt2", 1)
    bare = save_toy("gpt2", tmp_path / "bare")
    overwrite(bare, {n.removeprefix("transformer."): x for n, x in two.stored.items()})
    view = stack_layers([(open_checkpoint(one.folder), range(1)), (open_checkpoint(bare), range(1, 3))])
    assert all(n.startswith("transformer.") for n in view.tensors)
    assert torch.equal(view.read("transformer.h.2.mlp.c_fc.weight"), two.stored["transformer.h.2.mlp.c_fc.weight"])
    assert torch.equal(view.read("transformer.ln_f.weight"), two.stored["transformer.ln_f.weight"])


def test_all_layers_are_the_model_itself(toy: Callable[..., Toy]) -> None:
    """Nothing is derived: the same places in the same files, and the same digest."""
    base = open_checkpoint(toy("llama").folder)
    view = stack_layers([(base, range(3))])
    assert view.tensors == base.tensors
    assert view.config == base.config
    assert not view.recipes
    assert weights_digest(recognise(view)) == weights_digest(recognise(base))


def test_keys_and_digests(toy: Callable[..., Toy], tmp_path: Path) -> None:
    """Stacks of one depth from one file are told apart, and a stack's digest is that of its written form."""
    base = open_checkpoint(toy("llama").folder)
    one, two = (stack_layers([(base, range(2)), (base, range(k, k + 1))]) for k in (0, 1))
    assert one.config == two.config
    assert one.identity() != two.identity()
    assert one.identity() == stack_layers([(base, range(2)), (base, range(1))]).identity()
    assert weights_digest(recognise(one)) != weights_digest(recognise(two))
    assert weights_digest(recognise(one)) == weights_digest(recognise(materialise(one, tmp_path / "out")))
    other = open_checkpoint(toy("llama", 1).folder)
    mixed = [stack_layers([(base, range(2)), (x, range(2, 3))]) for x in (base, other)]
    assert run_key("x", [recognise(mixed[0])]) != run_key("x", [recognise(mixed[1])])
    assert set(mixed[1].files) == {*base.files, *other.files}


def test_views_of_views(toy: Callable[..., Toy]) -> None:
    """A stack can be sliced again."""
    one = toy("llama")
    base = open_checkpoint(one.folder)
    twice = stack_layers([(stack_layers([(base, range(1, 3)), (base, range(3))]), range(1, 4))])
    same(twice, by_hand("model.layers.", one.stored, [2, 0, 1]))


def test_lists_over_layers(toy: Callable[..., Toy]) -> None:
    """``layer_types`` is cut and joined; windows that no layer had stay away."""
    base = open_checkpoint(toy("qwen2").folder)
    kinds = ["full_attention", "sliding_attention", "full_attention"]
    base = replace(base, config={**base.config, "layer_types": kinds, "max_window_layers": 3})
    view = stack_layers([(base, range(1, 3)), (base, range(1, 3))])
    assert view.config["layer_types"] == [*kinds[1:], *kinds[1:]]
    assert view.config["max_window_layers"] == 4
    other = replace(base, config={**base.config, "layer_types": kinds[1:] + kinds[:1]})
    joined = stack_layers([(base, range(1)), (other, range(3))]).config["layer_types"]
    assert joined == [*kinds[:1], *kinds[1:], *kinds[:1]]
    short = replace(base, config={**base.config, "layer_types": kinds[:1]})
    with pytest.raises(IsomergeError) as error:
        stack_layers([(base, range(1)), (short, range(1, 2))])
    one_sentence(error.value, "layer_types", "layer 1")


def test_rules_are_written_out(toy: Callable[..., Toy]) -> None:
    """A list that transformers makes of a rule is written where the rule would make others of the layers, and only
    there."""
    gemma = without("layer_types", toy("gemma2"))
    view = stack_layers([(gemma, range(2)), (gemma, range(1, 2))])
    assert view.config["layer_types"] == ["sliding_attention", "full_attention", "full_attention"]
    listed = open_checkpoint(toy("gemma2").folder)
    assert stack_layers([(listed, range(2)), (gemma, range(1, 2))]).config == {**listed.config, **view.config}
    assert "layer_types" not in stack_layers([(gemma, range(2))]).config
    assert "layer_types" not in stack_layers([(gemma, range(2)), (gemma, range(2))]).config
    qwen = without("layer_types", toy("qwen2"))
    assert "layer_types" not in stack_layers([(qwen, range(1, 3)), (qwen, range(1, 3))]).config
    windows = {**qwen.config, "max_window_layers": 1, "use_sliding_window": True, "sliding_window": 4}
    view = stack_layers([(replace(qwen, config=windows), range(1, -1, -1))])
    assert view.config["layer_types"] == ["sliding_attention", "full_attention"]
    llama = without("moe_layers", toy("llama4_text"))
    llama = replace(llama, config={**llama.config, "interleave_moe_layer_step": 2})
    assert stack_layers([(llama, range(1, 2)), (llama, range(1))]).config["moe_layers"] == [0]


def without(key: str, one: Toy) -> Checkpoint:
    """A toy whose config lacks a key, as published ones do."""
    base = open_checkpoint(one.folder)
    return replace(base, config={k: v for k, v in base.config.items() if k != key})


def test_what_configs_say_of_layers(toy: Callable[..., Toy]) -> None:
    """Whatever its form, it is cut and joined as layers 1, 2 and 0 are."""
    base = open_checkpoint(toy("llama").folder)
    for key, value, cut in (
        ("hybrid_override_pattern", "M-*", "-*M"),
        ("attention_window", [2, 4, 8], [4, 8, 2]),
        ("block_types", ["recurrent", "attention"], ["attention", "recurrent", "recurrent"]),
        (
            "attention_types",
            [[["global", "local"], 1], [["near"], 1]],
            [[["local"], 1], [["near"], 1], [["global"], 1]],
        ),
        ("per_layer_config", {"2": {"head_dim": 4}}, {"1": {"head_dim": 4}}),
        ("mlp_only_layers", [0], [2]),
        ("intermediate_size", 40, 40),
    ):
        given = replace(base, config={**base.config, key: value})
        assert stack_layers([(given, range(1, 3)), (given, range(1))]).config[key] == cut
    counted = replace(base, config={**base.config, "first_k_dense_replace": 2, "moe_layer_end_index": 2})
    view = stack_layers([(counted, range(1, 3)), (counted, range(2, 3))])
    assert (view.config["first_k_dense_replace"], view.config["moe_layer_end_index"]) == (1, 2)
    with pytest.raises(IsomergeError) as error:
        stack_layers([(counted, range(2, 3)), (counted, range(1))])
    one_sentence(error.value, "layer 2 would be layer 0", "first_k_dense_replace", "in front")
    for key in ("first_k_dense_replace", "moe_layer_end_index"):
        lacking = replace(counted, config={k: v for k, v in counted.config.items() if k != key}, ref="lacking")
        with pytest.raises(IsomergeError) as error:
            stack_layers([(counted, range(2)), (lacking, range(2, 3))])
        one_sentence(error.value, f"lacking: config.json has no {key} for layer 2", "add it")


def test_what_slices_read_is_summed(toy: Callable[..., Toy], monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors of every model, through views of views: of no file is more than its header read again."""
    a, b = (open_checkpoint(toy("llama", seed).folder) for seed in (0, 1))
    whole = {path: file_checksum(path) for path in (*a.files, *b.files)}
    view = stack_layers([(stack_layers([(b, range(3))], a), range(3)), (a, range(3))])
    for one, names in ((view, view.tensors), (a, ["model.embed_tokens.weight"]), (b, ["lm_head.weight"])):
        for name in names:
            one.read(name)
    b.read("model.norm.weight")
    read: list[int] = []
    summed = checksums._read_sum
    monkeypatch.setattr(checksums, "_read_sum", lambda *told: read.append(told[2]) or summed(*told))
    assert view.checksums() == whole
    assert read == [min(x.offset for x in one.tensors.values()) for one in (a, b)]


@pytest.mark.parametrize("known", [True, False])
def test_periods_of_which_no_list_is_known(
    known: bool, toy: Callable[..., Toy], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Layers move by multiples of a period that is in ``config.json``, be the type known to transformers or not."""
    if not known:
        monkeypatch.setattr("isomerge.config.layer_config.seen_by_transformers", lambda *config: None)
    base = open_checkpoint(toy("llama").folder)
    periodic = replace(base, config={**base.config, "attn_layer_period": 2})
    assert stack_layers([(periodic, range(2, 3))]).config["attn_layer_period"] == 2
    with pytest.raises(IsomergeError) as error:
        stack_layers([(periodic, range(1, 2))])
    one_sentence(error.value, "attn_layer_period = 2", "multiples of 2")


@pytest.mark.parametrize(
    ("name", "kept", "moved", "words"),
    [
        ("jamba", [0, 1, 0, 1], [0, 1, 1], "layer_types is linear_attention there and not full_attention"),
        ("deepseek_v2", [0, 0, 1, 1], [0, 1, 0], "counts the first layers by first_k_dense_replace"),
        ("modernbert", [0, 1, 1], [0, 0, 1], "the first layer has no norm"),
        ("gpt_neox_japanese", [0, 0, 1], [0], "the last layer alone"),
        ("diffllama", [0], [0, 0], "heads are subtracted"),
        ("esm", [0, 1], [0, 1, 1], "contact_head.regression.weight: axis places has length 12"),
        ("yolos", [1, 0], [0, 1, 1], "mid_position_embeddings"),
    ],
)
def test_layers_that_would_be_others(
    name: str, kept: list[int], moved: list[int], words: str, toy: Callable[..., Toy]
) -> None:
    """Layers that transformers would fill with random weights at their new numbers, or compute otherwise, are
    refused."""
    base = open_checkpoint(toy(name).folder)
    assert stack_layers([(base, range(layer, layer + 1)) for layer in kept]).tensors
    with pytest.raises(IsomergeError) as error:
        stack_layers([(base, range(layer, layer + 1)) for layer in moved])
    one_sentence(error.value, words)


def test_layers_of_other_tensors(toy: Callable[..., Toy]) -> None:
    """Where nothing says which tensors a layer has, it stays at a number of which they are."""
    base = open_checkpoint(toy("qwen3_moe").folder)
    silent = replace(base, config={**base.config, "mlp_only_layers": [], "model_type": "qwen3_moe"})
    assert stack_layers([(silent, range(1))]).tensors
    with pytest.raises(IsomergeError) as error:
        stack_layers([(silent, range(1, 2))])
    one_sentence(error.value, "layer 1 would be layer 0", "layers have other tensors")


def test_decoders_that_count_their_own_layers(toy: Callable[..., Toy]) -> None:
    """TrOCR's config counts the layers of its decoder, and no others."""
    base = open_checkpoint(toy("trocr").folder)
    view = stack_layers([(base, range(1, 2)), (base, range(2))])
    assert view.config["decoder_layers"] == 3
    same(view, by_hand("model.decoder.layers.", toy("trocr").stored, [1, 0, 1]))


def test_attention_divided_by_the_number(toy: Callable[..., Toy]) -> None:
    """GPT-2 that divides by the layer's number keeps layers at their places, and other GPT-2 does not."""
    base = open_checkpoint(toy("gpt2").folder)
    divided = replace(base, config={**base.config, "scale_attn_by_inverse_layer_idx": True})
    assert stack_layers([(divided, range(2))]).tensors
    with pytest.raises(IsomergeError) as error:
        stack_layers([(divided, range(1, 2))])
    one_sentence(error.value, "attention is divided")


HYBRID = ["smollm3", "nemotron_h", "zamba", "qwen3_moe", "llama4_text", "gpt_neo"]
FURTHER = [
    "gemma2",
    "bamba",
    "lfm2_moe",
    "cohere2",
    "recurrent_gemma",
    "ernie4_5_moe",
    "exaone_moe",
    "cohere2_moe",
]


@pytest.mark.parametrize("name", [*HYBRID, *more(*FURTHER)])
def test_hybrids_in_transformers(name: str, toy: Callable[..., Toy], tmp_path: Path) -> None:
    """Layers of several kinds, some of which name the same tensor otherwise, are those that transformers makes of
    the config."""
    base = open_checkpoint(toy(name).folder)
    depth = len({n.split(".layers.")[1].split(".")[0] for n in base.tensors if ".layers." in n} or range(2))
    materialise(stack_layers([(base, range(1, depth)), (base, range(1, depth))]), tmp_path / "out")
    kind = getattr(tf, base.config["architectures"][0])
    found = kind.from_pretrained(tmp_path / "out", output_loading_info=True)[1]
    assert not any(found[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))


@pytest.mark.parametrize("name", ["gemma2", *more("qwen3_moe")])
def test_kinds_of_layers_in_transformers(name: str, toy: Callable[..., Toy], tmp_path: Path) -> None:
    """Layers of two kinds compute what they compute in a module that has them in this order, though config.json
    lists none."""
    one, order = toy(name), [0, 1, 1]
    base = without("layer_types", one)
    out = materialise(stack_layers([(base, range(2)), (base, range(1, 2))]), tmp_path / "out")
    kind = getattr(tf, base.config["architectures"][0])
    model = kind.from_pretrained(one.folder, dtype=torch.float64, experts_implementation="eager").eval()
    model.model.layers = torch.nn.ModuleList([model.model.layers[layer] for layer in order])
    kinds = getattr(model.config, "layer_types", None)
    model.config.num_hidden_layers = len(order)
    if kinds:
        model.config.layer_types = [kinds[layer] for layer in order]
    with torch.no_grad():
        wanted = model(**inputs(model.config), use_cache=False).logits
    assert relative(outputs(out), wanted) <= TOYS[name][1]


def test_lightning_attention(toy: Callable[..., Toy]) -> None:
    """MiniMax's rates of decay go with a layer where they are stored, and with its number where they are not."""
    base = open_checkpoint(toy("minimax").folder)
    assert stack_layers([(base, range(1, -1, -1))]).tensors
    rates = [name for name in base.tensors if name.endswith("slope_rate")]
    bare = base.derive({}, sources=[base], origin="bare", ref="bare", config=base.config, drop=rates)
    assert stack_layers([(bare, range(2)), (bare, range(1, 2))]).tensors
    with pytest.raises(IsomergeError) as error:
        stack_layers([(bare, range(1, -1, -1))])
    one_sentence(error.value, "layer 0 of 2 would be layer 1 of 2", "lightning attention")


def test_refusals(toy: Callable[..., Toy]) -> None:
    """Everything that cannot be stacked, in one sentence each."""
    llama = open_checkpoint(toy("llama").folder)
    rope = {**llama.config, "rope_parameters": {"rope_type": "default", "rope_theta": 5.0}}
    for parts, names in (
        ([], ["slices"]),
        ([(llama, range(2, 2))], ["layer_range"]),
        ([(llama, range(2, 4))], ["layer 3", "0 to 2"]),
        ([(llama, range(-1, 1))], ["layer -1"]),
        ([(open_checkpoint(toy("t5-relu").folder), range(1))], ["encoder.block.", "decoder.block."]),
        ([(open_checkpoint(toy("gemma4_text").folder), range(6))], ["gemma4_text is depends on its number"]),
        ([(llama, range(1)), (open_checkpoint(toy("gpt2").folder), range(1))], ["architectures", "gpt2"]),
        ([(llama, range(1)), (open_checkpoint(toy("llama-mqa").folder), range(1))], ["kv", "2", "1"]),
        ([(llama, range(1)), (replace(llama, config=rope), range(1))], ["rope", "5.0"]),
        ([(replace(llama, config={**llama.config, "num_hidden_layers": 7}), range(1))], ["3 layers"]),
    ):
        with pytest.raises(IsomergeError) as error:
            stack_layers(parts)
        one_sentence(error.value, *names)


def test_layers_divided_by_the_root_of_their_number(toy: Callable[..., Toy]) -> None:
    """MiniCPM3 adds what a layer says times ``scale_depth / sqrt(depth)``: layers of a deeper stack say as much as
    before."""
    base = open_checkpoint(toy("minicpm3").folder)
    depth = base.config["num_hidden_layers"]
    view = stack_layers([(base, range(depth)), (base, range(depth))])
    assert view.config["scale_depth"] > 1.1 * base.config["scale_depth"]
    before, after = (m.config["scale_depth"] / m.config["num_hidden_layers"] ** 0.5 for m in (base, view))
    assert after == pytest.approx(before)
