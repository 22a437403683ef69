"""What config.json makes transformers leave out of a file, or draw at random: named and refused, by the class
itself."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import isomerge
from isomerge.cli.program import app
from isomerge.errors import IsomergeError
from isomerge.models import transformers_reading as reading
from isomerge.models.recognised import recognise
from isomerge.models.transformers_reading import Decision, deciding, reading_of
from toys import Toy, config_of, overwrite, save_toy, tensors

# toy, the switch that is turned, and what is then left out
DENIED: list[tuple[str, dict[str, Any], str]] = [
    ("llama-biased", {"attention_bias": False}, r"attention_bias=false, but the file holds model\.layers\.0\.self_attn\.\w_proj\.bias"),
    ("llama-biased", {"mlp_bias": False}, r"mlp_bias=false, but the file holds model\.layers\.0\.mlp\.\w+_proj\.bias"),
    ("vit", {"qkv_bias": False}, r"qkv_bias=false, but the file holds vit\..*\.bias \(and 8 more\)"),
    ("mamba", {"use_conv_bias": False}, r"use_conv_bias=false, but the file holds .*\.conv1d\.bias"),
    ("modernbert", {"decoder_bias": False}, r"decoder_bias=false, but the file holds decoder\.bias"),
    ("gpt_neox", {"attention_bias": False}, r"attention_bias=false, but the file holds gpt_neox\.layers\.0\.attention\."),
    ("opt", {"enable_bias": False}, r"enable_bias=false, but the file holds model\.decoder\.layers\.0\."),
    ("opt", {"layer_norm_elementwise_affine": False}, r"layer_norm_elementwise_affine=false, but the file holds"),
    ("starcoder2", {"use_bias": False}, r"use_bias=false, but the file holds model\.layers\.0\."),
    ("beit-shared", {"use_mask_token": False}, r"use_mask_token=false, but the file holds beit\.embeddings\.mask_token, which BeitFor"),
]  # fmt: skip
DEMANDED: list[tuple[str, dict[str, Any], str]] = [
    ("llama", {"attention_bias": True}, r"attention_bias=true, but the file does not hold model\.layers\.0\.self_attn\.k_proj\.bias"),
    ("bert", {"tie_word_embeddings": False}, r"tie_word_embeddings=false, but the file does not hold cls\.predictions\.decoder\.bias"),
    ("vit-plain", {"qkv_bias": True}, r"qkv_bias=true, but the file does not hold vit\."),
]  # fmt: skip


def copied(toy: Toy, folder: Path, changes: dict[str, Any], **more: torch.Tensor) -> Path:
    """A toy with other settings in config.json, None for those that are taken out of it, and more tensors."""
    folder.mkdir()
    config = {**config_of(toy.folder), **changes}
    (folder / "config.json").write_text(json.dumps({k: v for k, v in config.items() if v is not None}))
    overwrite(folder, {**tensors(toy.folder), **more})
    return folder


@pytest.mark.parametrize(("name", "changes", "says"), [*DENIED, *DEMANDED], ids=lambda case: str(case)[:30])
def test_what_a_switch_denies_or_demands(
    name: str, changes: dict[str, Any], says: str, toy: Callable[..., Toy], tmp_path: Path
) -> None:
    """The tensor, the switch and the class are named."""
    with pytest.raises(IsomergeError, match=says):
        recognise(copied(toy(name), tmp_path / "switched", changes))


def test_every_command_refuses(toy: Callable[..., Toy], tmp_path: Path) -> None:
    """Before anything is computed or written."""
    plain = toy("llama-biased")
    a, b = str(plain.folder), str(copied(plain, tmp_path / "b", {"attention_bias": False}))
    isomerge.canon(plain.folder, out=tmp_path / "canonical")
    (tmp_path / "data.jsonl").write_text('{"input_ids": [1, 2, 3]}\n')
    out = ["-o", str(tmp_path / "out")]
    runs: list[list[str]] = [
        ["verify", a, b],
        ["diff", b, a],
        ["align", b, "--onto", a, *out],
        ["merge", a, b, *out],
        ["canon", b, *out],
        ["fingerprint", b],
        ["barrier", a, b, "--data", str(tmp_path / "data.jsonl")],
        ["apply", str(tmp_path / "canonical" / "alignment.safetensors"), b, *out],
        ["inspect", b],
    ]
    for run in runs:
        got = CliRunner().invoke(app, run)
        assert isinstance(got.exception, IsomergeError), run  # which `isomerge.cli.app` ends with exit code 2
        assert "config.json says attention_bias=false" in str(got.exception)
    assert not (tmp_path / "out").exists()


def test_an_average_that_nothing_moves_is_let_pass(toy: Callable[..., Toy], tmp_path: Path) -> None:
    """Where nothing is aligned, nothing is decided by what the tensors are: as mergekit merges them."""
    b = copied(toy("llama-biased"), tmp_path / "b", {"attention_bias": False})
    isomerge.merge([b, b], out=tmp_path / "out", align=False)
    written, read = tensors(tmp_path / "out"), tensors(b)
    assert written.keys() == read.keys()
    assert all(torch.equal(t, written[name]) for name, t in read.items())


def test_what_is_always_left_out_is_let_pass(toy: Callable[..., Toy], tmp_path: Path) -> None:
    """Buffers that old files carry, a head of another class, tied copies; a config that names no class."""
    head = {"score.weight": torch.randn(3, 48, dtype=torch.float64)}
    buffer = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.randn(4, dtype=torch.float64)}
    assert recognise(copied(toy("llama"), tmp_path / "llama", {}, **head, **buffer))
    positions = {"bert.embeddings.position_ids": torch.arange(32)[None]}
    tied = {"cls.predictions.decoder.weight": tensors(toy("bert").folder)["bert.embeddings.word_embeddings.weight"]}
    pair = {"cls.seq_relationship.weight": torch.randn(2, 48, dtype=torch.float64)}
    assert recognise(copied(toy("bert"), tmp_path / "bert", {}, **positions, **tied, **pair))
    assert recognise(
        copied(toy("beit-shared"), tmp_path / "beit", {"use_mask_token": False, "architectures": None})
    )


def test_layers_ahead_and_parts_left_out(tmp_path: Path) -> None:
    """Layers behind the last that runs, which DeepSeek's files hold; a tower that a text model has no place for."""
    ahead = reading_of(config_of(one := save_toy("deepseek_v3-ahead", tmp_path / "ahead")), shapes_of(one))
    assert ahead is not None
    assert ahead.ignored
    assert recognise(one)
    two = save_toy("clip", tmp_path / "clip")
    (two / "config.json").write_text(json.dumps({**config_of(two), "architectures": ["CLIPTextModel"]}))
    text = reading_of(config_of(two), shapes_of(two))
    assert text is not None
    assert any(name.startswith("vision_model.") for name in text.ignored)
    assert recognise(two)


def shapes_of(folder: Path) -> dict[str, tuple[int, ...]]:
    """Of all stored tensors."""
    return {name: tuple(t.shape) for name, t in tensors(folder).items()}


def test_shapes_that_the_class_does_not_have(toy: Callable[..., Toy], tmp_path: Path) -> None:
    """transformers would refuse the file: five labels in the config, seven in the head."""
    changed = copied(
        toy("vit"), tmp_path / "vit", {}, **{"classifier.weight": torch.randn(7, 48, dtype=torch.float64)}
    )
    with pytest.raises(
        IsomergeError,
        match=r"makes classifier.weight of ViTForImageClassification \[5, 48\], but the file holds \[7, 48\]",
    ):
        recognise(changed)


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("megatron-bert", {"num_labels": 9}, r"makes classifier\.\w+ of MegatronBertForSequenceClassification \[9.*\], but the file holds \[\d.*\]"),
    ("megatron-bert", {"num_labels": "3"}, r'config.json says num_labels="3", and transformers makes no model of it .* correct num_labels'),
    ("bert", {"id2label": ["a", "b"]}, r'config.json says id2label=\["a", "b"\], and transformers makes no model of it'),
    ("bert", {"max_position_embeddings": None}, r"makes bert\.embeddings\.position_embeddings\.weight of BertForMaskedLM \[512, "),
    ("bert", {"max_position_embeddings": "32"}, r'config.json says max_position_embeddings="32", and transformers'),
    ("gpt2", {"n_positions": None}, r"makes transformer\.wpe\.weight of GPT2LMHeadModel \[1024, "),
    ("gpt2", {"n_positions": 7}, r"makes transformer\.wpe\.weight of GPT2LMHeadModel \[7, "),
    ("llama", {"pad_token_id": 10**6}, r"config.json says pad_token_id=1000000, and transformers makes no model of it \(Padding_idx"),
    ("llama", {"hidden_act": "unheard"}, r"config.json says hidden_act=\"unheard\", .* \(KeyError: 'unheard'\): correct hidden_act"),
    ("llama", {"rope_parameters": {"rope_type": "yarn"}}, r"config.json says rope_parameters=.*, and transformers makes no model"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "changes", "says"), REFUSED, ids=lambda case: str(case)[:40])
def test_configs_that_transformers_refuses(
    name: str, changes: dict[str, Any], says: str, toy: Callable[..., Toy], tmp_path: Path
) -> None:
    """Counts of labels and positions that are missing or not those of the file, and values of which no model is
    made."""
    with pytest.raises(IsomergeError, match=says):
        recognise(copied(toy(name), tmp_path / "refused", changes))


@pytest.mark.parametrize(
    "beside",
    [{"transformers_version": "99.0"}, {"auto_map": {"AutoConfig": "own.OwnConfig"}}, {"architectures": None}],
    ids=lambda beside: next(iter(beside)),
)
def test_configs_that_transformers_cannot_judge(
    beside: dict[str, Any], toy: Callable[..., Toy], tmp_path: Path
) -> None:
    """What a newer version wrote, code of its own, and a config that names no class."""
    assert recognise(copied(toy("llama"), tmp_path / "own", {"hidden_act": "unheard", **beside}))


def test_no_tensors_no_verdict(toy: Callable[..., Toy], tmp_path: Path) -> None:
    """A file without tensors is the function of nothing."""
    for name in "ab":
        copied(toy("gpt2"), tmp_path / name, {})
        overwrite(tmp_path / name, {})
    got = CliRunner().invoke(app, ["verify", str(tmp_path / "a"), str(tmp_path / "b")])
    assert isinstance(got.exception, IsomergeError)
    assert "there is no tensor in it" in str(got.exception)


def test_what_cannot_be_asked_is_let_pass(
    toy: Callable[..., Toy], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A class that transformers does not have or cannot build; a version that hides how it loads."""
    monkeypatch.setenv("ISOMERGE_CACHE", str(tmp_path / "cache"))  # other tests have asked the same
    plain = toy("llama-biased")
    config, shapes = config_of(plain.folder), shapes_of(plain.folder)
    assert reading_of({**config, "model_type": "unheard"}, shapes) is None
    assert reading_of({**config, "architectures": ["UnheardForCausalLM"]}, shapes) is None

    def hidden(*_: object) -> None:
        raise IsomergeError("hidden")

    monkeypatch.setattr("isomerge.models.conversions.live_names", hidden)
    reading._asked.cache_clear()
    assert reading_of(config, shapes) is None
    reading._asked.cache_clear()


def test_what_any_architecture_may_switch_is_compared(toy: Callable[..., Toy], tmp_path: Path) -> None:
    """A T5 that is told to be no encoder-decoder is another function of equal weights."""
    plain = toy("t5-gated")
    report = isomerge.verify(plain.folder, copied(plain, tmp_path / "b", {"is_encoder_decoder": False}))
    assert report["same"] is False
    assert "is_encoder_decoder is True and False" in report["reason"]


def test_a_config_that_transformers_refuses_has_no_verdict(toy: Callable[..., Toy], tmp_path: Path) -> None:
    """Equal weights under a config of which no model is made, a newer transformers having written it: that they are
    the same function is not said."""
    newer = {
        "rope_parameters": {"rope_theta": 10000.0, "rope_type": "unheard"},
        "transformers_version": "99.0",
    }
    one, two = (copied(toy("llama"), tmp_path / name, newer) for name in "ab")
    found = isomerge.verify(one, two)
    assert (found["same"], found["algebra"]) == (None, True)
    assert "transformers makes no model of config.json" in found["reason"]
    assert "unheard" in found["reason"]


def test_a_head_that_one_model_lacks_leaves_no_verdict(toy: Callable[..., Toy], tmp_path: Path) -> None:
    """transformers would draw it at random: of that model nobody can say that it is the same function."""
    whole = copied(toy("vit"), tmp_path / "whole", {})
    body = copied(toy("vit"), tmp_path / "body", {})
    overwrite(body, {name: t for name, t in tensors(whole).items() if not name.startswith("classifier")})
    for pair in ((whole, body), (body, whole)):
        told = isomerge.verify(*pair)
        assert told["same"] is None
        assert (
            "body lacks classifier.bias, which ViTForImageClassification of transformers would draw at random"
            in told["reason"]
        )
    assert isomerge.verify(body, body)["same"]


@pytest.mark.parametrize(
    ("name", "other", "head"),
    [
        ("llama-tied", "LlamaModel", ()),
        ("llama", "LlamaModel", ("lm_head",)),
        ("bert", "BertModel", ("cls.", "classifier")),
        ("llama", "LlamaForSequenceClassification", ("lm_head",)),
    ],
)
def test_models_of_other_kinds_are_no_one_function(
    name: str, other: str, head: tuple[str, ...], toy: Callable[..., Toy], tmp_path: Path
) -> None:
    """A model and its body, or its body under another head, whose weights are the same as far as both have them:
    what each gives out is named, also where the head is the embeddings, so that no tensor is lacking (without that
    they were one function). No barrier between them is advised, nor anything learned."""
    whole, part = (
        copied(toy(name), tmp_path / "whole", {}),
        copied(toy(name), tmp_path / "part", {"architectures": [other]}),
    )
    weights = {key: t for key, t in tensors(part).items() if not key.startswith(head or "-")}
    if other.endswith("Classification"):
        weights["score.weight"] = torch.randn(2, config_of(part)["hidden_size"], dtype=torch.float64)
    overwrite(part, weights)
    for pair in ((whole, part), (part, whole)):
        told = isomerge.verify(*pair)
        assert (told["same"], told["algebra"]) == (None, True)
        assert other in told["reason"]
        assert "give out other things" in told["reason"]
        assert ("lm_head is its" in told["reason"] or "lm_head.weight is its" in told["reason"]) == (not head)
    apart = isomerge.diff(part, whole)["verdict"]
    assert apart["code"] == "unknown"
    assert told["reason"] in apart["sentence"]
    assert apart["next"] == []
    assert isomerge.verify(part, part)["same"]


def test_switches_of_parts_decide_as_well(tmp_path: Path) -> None:
    """A key inside a group is told by its path; what the config leaves out counts with its default."""
    folder = save_toy("llava", tmp_path / "llava")
    config, shapes = config_of(folder), shapes_of(folder)
    bias = "multi_modal_projector.linear_1.bias"
    stored = next(name for name in shapes if name.endswith(bias))
    kept = {key: value for key, value in config.items() if key != "multimodal_projector_bias"}
    assert reading_of(kept, shapes) is not None
    denied = {**config, "multimodal_projector_bias": False}
    assert deciding(denied, shapes, [stored], []) == Decision("multimodal_projector_bias", False, stored)
    text = {**config, "text_config": {**config["text_config"], "attention_bias": True}}
    lacking = reading_of(text, shapes)
    assert lacking is not None
    decision = deciding(text, shapes, [], lacking.lacking)
    assert decision is not None
    assert str(decision) == "text_config.attention_bias=true"


def test_names_of_classes_are_one_question(tmp_path: Path) -> None:
    """Of which there may be very many: what is read goes by their number. Others than transformers writes are asked
    of as they stand."""
    config = config_of(save_toy("vit", tmp_path / "a"))
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors(tmp_path / "a").items()}
    labels = config["id2label"]
    names = {number: f"name {number}" for number in labels}
    renamed = {**config, "id2label": names, "label2id": {name: int(number) for number, name in names.items()}}
    assert reading._question(renamed) == reading._question(config)
    assert reading_of(renamed, shapes) == reading_of(config, shapes) != None  # noqa: E711
    more = {**labels, str(len(labels)): "one more"}
    longer = reading_of({**config, "id2label": more, "label2id": {x: int(n) for n, x in more.items()}}, shapes)
    assert longer is not None
    assert longer.reshaped
    for odd in ({"zero": "a", "one": "b"}, {"0": None, "1": "b"}, ["a", "b"], 2):
        assert reading._question({**config, "id2label": odd}) != reading._question(config)


def test_an_answer_is_kept_between_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The class is built once for a config and its shapes; another run, with an empty memory, gives the same answer
    without it."""
    monkeypatch.setenv("ISOMERGE_CACHE", str(tmp_path / "cache"))
    config = {**config_of(save_toy("llama-biased", tmp_path / "a")), "mlp_bias": False}
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors(tmp_path / "a").items()}
    reading._asked.cache_clear()
    first = reading_of(config, shapes)
    assert first is not None
    assert first.ignored
    built: list[int] = []
    real = reading.skeleton
    monkeypatch.setattr(reading, "skeleton", lambda *args: built.append(1) or real(*args))
    reading._asked.cache_clear()
    assert reading_of(config, shapes) == first
    assert built == []
    (file,) = (tmp_path / "cache" / "readings").iterdir()
    for damage in ("", "{}", "[1]", '{"kind": "x"}'):
        file.write_text(damage)
        reading._asked.cache_clear()
        assert reading_of(config, shapes) == first
    assert len(built) == 4
