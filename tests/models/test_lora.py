"""LoRA adapters merged as tensors are read: each case against the formula, written out."""

from __future__ import annotations

import errno
import json
import math
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import isomerge
from isomerge.checkpoint.opening import open_checkpoint
from isomerge.checkpoint.reader import Checkpoint
from isomerge.errors import IsomergeError
from isomerge.models.layers import stack_layers
from isomerge.models.lora import with_classes
from isomerge.models.recognised import recognise
from isomerge.models.references import ModelRef, open_model_ref, parse_model_ref
from isomerge.observe.live.modules import load_module, materialise
from isomerge.observe.stats.statistics import weights_digest
from isomerge.options.unused import noting
from isomerge.run.writing_run import run_key
from raw_files import one_sentence
from toys import config_of, outputs, overwrite, relative, save_toy, tensors

Q = "model.layers.0.self_attn.q_proj"
DOWN = "model.layers.2.mlp.down_proj"


def draw(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Normal numbers."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def adapter(
    folder: Path, given: dict[str, torch.Tensor], *, file: str = "adapter_model.safetensors", **config: Any
):
    """An adapter folder as peft writes it; keys of ``given`` lack peft's prefix."""
    folder.mkdir(parents=True, exist_ok=True)
    stored = {f"base_model.model.{key}": x.contiguous().clone() for key, x in given.items()}
    (save_file if file.endswith("safetensors") else torch.save)(stored, folder / file)
    rank = next((x.shape[0] for key, x in given.items() if "_A" in key), 2)
    content = {"peft_type": "LORA", "r": rank, "lora_alpha": 6, "fan_in_fan_out": False, **config}
    (folder / "adapter_config.json").write_text(json.dumps(content))
    return folder


def halves(module: str, out: int, into: int, rank: int = 2, seed: int = 1) -> dict[str, torch.Tensor]:
    """The two halves for one linear layer."""
    return {
        f"{module}.lora_A.weight": draw(rank, into, seed=seed),
        f"{module}.lora_B.weight": draw(out, rank, seed=seed + 100),
    }


def product(given: dict[str, torch.Tensor], module: str) -> torch.Tensor:
    """B A in float64, [out, in]."""
    return given[f"{module}.lora_B.weight"].double() @ given[f"{module}.lora_A.weight"].double()


def view(base: Path, lora: Path) -> Checkpoint:
    """The two together."""
    return open_model_ref(f"{base}+{lora}")


def close(found: torch.Tensor, wanted: torch.Tensor, ulp: float = 1e-6) -> bool:
    """Equal up to one rounding, relative to the largest entry."""
    return float((found.double() - wanted).abs().max() / wanted.abs().max()) <= ulp


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A float32 Llama: q is [48, 48] (square), down is [48, 40]."""
    return save_toy("llama", tmp_path_factory.mktemp("llama"), dtype=torch.float32)


@pytest.mark.parametrize(
    ("dtype", "ulp"),
    [(torch.float32, 1e-6), (torch.bfloat16, 2**-8), (torch.float16, 2**-11), (torch.float64, 1e-13)],
)
def test_formula(dtype: torch.dtype, ulp: float, tmp_path: Path) -> None:
    """W + (alpha / r) B A as it is stored: in the base's dtype, one rounding; all other tensors are the base's."""
    base = save_toy("llama", tmp_path / "base", dtype=dtype)
    given = halves(Q, 48, 48) | halves(DOWN, 48, 40)
    found, stored = view(base, adapter(tmp_path / "lora", given)), tensors(base)
    assert list(found.tensors) == list(open_checkpoint(base).tensors)
    assert found.nbytes == open_checkpoint(base).nbytes
    for name in found.tensors:
        tensor, module = found.read(name), name.removesuffix(".weight")
        assert tensor.dtype == dtype
        if module in (Q, DOWN):
            wanted = stored[name].double() + 3 * product(given, module)
            assert close(tensor, wanted, ulp)
            assert not close(tensor, stored[name].double(), 0.1)
        else:
            assert torch.equal(tensor, stored[name])


def test_scalings(llama: Path, tmp_path: Path) -> None:
    """Patterns are regular expressions for the end of a name; rank-stabilised scaling divides by the root."""
    given = halves(Q, 48, 48, rank=2) | halves(DOWN, 48, 40, rank=5)
    rank, alpha = {r"layers\.\d\.mlp\.down_proj": 5}, {"q_proj": 10, "proj": 99}
    for rs in (False, True):
        folder = adapter(tmp_path / f"{rs}", given, rank_pattern=rank, alpha_pattern=alpha, use_rslora=rs)
        found, stored = view(llama, folder), tensors(llama)
        for module, r, a in ((Q, 2, 10), (DOWN, 5, 6)):
            scaling = a / (math.sqrt(r) if rs else r)
            wanted = stored[f"{module}.weight"].double() + scaling * product(given, module)
            assert close(found.read(f"{module}.weight"), wanted)


def test_an_adapter_of_another_model_is_told_of(llama: Path, tmp_path: Path) -> None:
    """Shapes fit any fine-tune: where the model that an adapter was trained on is at hand, one tensor of both is
    compared, else names are; that nothing was looked at is said, and of the same model nothing."""
    same, other = (Path(shutil.copytree(llama, tmp_path / name)) for name in ("same", "other"))
    overwrite(other, {name: 2 * tensor for name, tensor in tensors(llama).items()})
    given, at = halves(Q, 48, 48), "was not looked at"
    for number, (said, words) in enumerate(
        [
            (str(llama), None),
            (str(same), None),
            (str(other), f"{llama} is another model: {Q}.weight differs"),
            ("", None),
            (f"somebody/{llama.name}", None),
            ("somebody/unheard", at),
        ]
    ):
        lora = adapter(tmp_path / f"lora{number}", given, base_model_name_or_path=said)
        with noting() as notes:
            view(llama, lora)
        assert len(notes) == (words is not None), (said, notes)
        assert all(str(lora) in note and said in note and (words or "") in note for note in notes)


@pytest.mark.parametrize("flag", [False, True])
def test_conv1d(flag: bool, tmp_path: Path) -> None:
    """GPT-2 stores [in, out]: also the square layer, whatever the file's flag says, as its spec knows."""
    base = save_toy("gpt2", tmp_path / "base", dtype=torch.float32)
    fused, square = "transformer.h.1.attn.c_attn", "transformer.h.1.attn.c_proj"
    given = halves(fused, 144, 48) | halves(square, 48, 48)
    found, stored = view(base, adapter(tmp_path / "lora", given, fan_in_fan_out=flag)), tensors(base)
    for module in (fused, square):
        wanted = stored[f"{module}.weight"].double() + 3 * product(given, module).T
        assert close(found.read(f"{module}.weight"), wanted)


@pytest.mark.parametrize("flag", [False, True])
def test_square_of_an_unknown_architecture(flag: bool, tmp_path: Path) -> None:
    """Without a spec, the file's fan_in_fan_out decides."""
    base = tmp_path / "base"
    base.mkdir()
    (base / "config.json").write_text('{"model_type": "unheard-of"}')
    overwrite(base, {"x.weight": draw(4, 4)})
    given = halves("x", 4, 4)
    found = view(base, adapter(tmp_path / "lora", given, fan_in_fan_out=flag)).read("x.weight")
    delta = product(given, "x")
    assert close(found, draw(4, 4).double() + 3 * (delta.T if flag else delta))


def test_embeddings(llama: Path, tmp_path: Path) -> None:
    """A is [r, tokens] and B [width, r]; the table is [tokens, width]."""
    a, b = draw(2, 67), draw(48, 2, seed=1)
    given = {"model.embed_tokens.lora_embedding_A": a, "model.embed_tokens.lora_embedding_B": b}
    found = view(llama, adapter(tmp_path / "lora", given))
    wanted = tensors(llama)["model.embed_tokens.weight"].double() + 3 * (b.double() @ a.double()).T
    assert close(found.read("model.embed_tokens.weight"), wanted)


def dora(weight: torch.Tensor, magnitude: torch.Tensor) -> torch.Tensor:
    """Liu et al. 2024, eq. 5, for outputs in rows."""
    return magnitude.double()[:, None] * weight / weight.norm(dim=1, keepdim=True)


def test_dora(llama: Path, tmp_path: Path) -> None:
    """Linear layers by rows, embeddings by columns."""
    m = draw(48).abs() + 0.5
    given = halves(DOWN, 48, 40) | {f"{DOWN}.lora_magnitude_vector": m}
    table = {"lora_embedding_A": draw(2, 67), "lora_embedding_B": draw(48, 2, seed=1), "lora_magnitude_vector": m}
    given |= {f"model.embed_tokens.{key}": x for key, x in table.items()}
    found, stored = view(llama, adapter(tmp_path / "lora", given, use_dora=True)), tensors(llama)
    wanted = dora(stored[f"{DOWN}.weight"].double() + 3 * product(given, DOWN), m)
    assert close(found.read(f"{DOWN}.weight"), wanted)
    delta = table["lora_embedding_B"].double() @ table["lora_embedding_A"].double()
    wanted = dora(stored["model.embed_tokens.weight"].double().T + 3 * delta, m).T
    assert close(found.read("model.embed_tokens.weight"), wanted)


@pytest.mark.parametrize("magnitude", [False, True])
def test_convolution(magnitude: bool, tmp_path: Path) -> None:
    """A patch embedding: A is a convolution to r channels, B one of size 1."""
    base = save_toy("vit", tmp_path / "base", dtype=torch.float32)
    module = "vit.embeddings.patch_embeddings.projection"
    a, b, m = draw(2, 3, 4, 4), draw(48, 2, 1, 1, seed=1), draw(1, 48, 1, 1).abs() + 0.5
    given = {f"{module}.lora_A.weight": a, f"{module}.lora_B.weight": b}
    given |= {f"{module}.lora_magnitude_vector": m} if magnitude else {}
    found = view(base, adapter(tmp_path / "lora", given, use_dora=magnitude)).read(f"{module}.weight")
    delta = torch.einsum("or,rihw->oihw", b[:, :, 0, 0].double(), a.double())
    wanted = tensors(base)[f"{module}.weight"].double() + 3 * delta
    wanted = dora(wanted.flatten(1), m.flatten()).view_as(wanted) if magnitude else wanted
    assert close(found, wanted)


def test_biases(tmp_path: Path) -> None:
    """Trained biases replace the base's (peft names those of changed modules base_layer); B may have one of its
    own."""
    base = save_toy("llama-biased", tmp_path / "base", dtype=torch.float32)
    given = halves(Q, 48, 48) | {f"{Q}.base_layer.bias": draw(48), f"{Q}.lora_B.bias": draw(48, seed=1)}
    given |= {f"{DOWN}.bias": draw(48, seed=2)}
    found = view(base, adapter(tmp_path / "lora", given, bias="all", lora_bias=True))
    assert close(found.read(f"{Q}.bias"), draw(48).double() + 3 * draw(48, seed=1).double())
    assert torch.equal(found.read(f"{DOWN}.bias"), draw(48, seed=2))


def test_a_chat_template_beside_an_adapter_is_the_model_s(llama: Path, tmp_path: Path) -> None:
    """It is what the adapter was tuned with; where the base has the same, its own files stay."""
    base, name = shutil.copytree(llama, tmp_path / "base"), "chat_template.jinja"
    (base / name).write_text("{{ base }}")
    lora = adapter(tmp_path / "lora", halves(Q, 48, 48))
    assert view(base, lora).has_own_files
    settings = lora / "tokenizer_config.json"  # as transformers 4 writes it
    settings.write_text(json.dumps({"chat_template": "{{ lora }}"}))
    assert view(base, lora).companions()[name] == b"{{ lora }}"
    (lora / name).write_text("{{ newer }}")
    assert view(base, lora).companions()[name] == b"{{ newer }}"
    assert settings.name not in view(base, lora).companions()  # the base's tokenizer stays
    (lora / name).write_text("{{ base }}")
    assert view(base, lora).has_own_files


@pytest.mark.parametrize("way", ["alone", "twice", "stacked", "merged", "widened", "extracted"])
def test_updates_are_computed_with_before_they_are_rounded(way: str, tmp_path: Path) -> None:
    """By every way on which a model with an adapter goes into a float32 output: of an update of a hundredth of
    bfloat16's rounding nothing is left where any of them reads the model as it is stored."""
    base, size = save_toy("llama", tmp_path / "base", dtype=torch.bfloat16), 1e-5
    given = {key: x * (size if "_B" in key else 1) for key, x in halves(Q, 48, 48).items()}
    ref, scale = f"{base}+{adapter(tmp_path / 'lora', given)}", 3.0
    name, stored = f"{Q}.weight", open_checkpoint(base).read(f"{Q}.weight")
    if way == "alone":
        result = recognise(ref).read(name, torch.float32)
    elif way == "twice":
        result, scale = recognise(f"{ref}+{tmp_path / 'lora'}").read(name, torch.float32), 6.0
    elif way == "stacked":
        result = recognise(stack_layers([(open_model_ref(ref), range(2))], open_checkpoint(base)))
        result = result.read(name, torch.float32)
    elif way == "widened":
        isomerge.widen(ref, sizes={"intermediate_size": 64}, out=tmp_path / "out", dtype="float32")
        result = tensors(tmp_path / "out")[name]
    elif way == "extracted":
        isomerge.extract_lora(ref, base, out=tmp_path / "out", rank=2)
        again = tmp_path / "out" / "adapter_model.safetensors"
        halved = {key.removeprefix("base_model.model."): x for key, x in load_file(again).items()}
        assert close(product(halved, Q), 3 * product(given, Q), 1e-3)
        return
    else:
        how = {"align": False, "dtype": "float32", "out": tmp_path / "out"}
        isomerge.merge([ref], base_model=base, method="task_arithmetic", **how)
        result = tensors(tmp_path / "out")[name]
    assert close(result.double() - stored.double(), scale * product(given, Q), 1e-2)


def test_modules_to_save(tmp_path: Path) -> None:
    """Whole tensors replace the base's in its dtype; a head that the base lacks is added; originals are ignored."""
    base = save_toy("llama", tmp_path / "base", dtype=torch.bfloat16)
    norm = "model.layers.1.input_layernorm"
    given = halves(Q, 48, 48) | {
        f"{norm}.weight": draw(48), f"{norm}.original_module.weight": draw(48, seed=3),
        "score.modules_to_save.weight": draw(5, 48, seed=1),
    }  # fmt: skip
    found = view(base, adapter(tmp_path / "lora", given, modules_to_save=["input_layernorm", "score"]))
    assert torch.equal(found.read(f"{norm}.weight"), draw(48).bfloat16())
    assert torch.equal(found.read("score.weight"), draw(5, 48, seed=1))
    assert set(found.tensors) - set(tensors(base)) == {"score.weight"}


def test_more_rows(tmp_path: Path) -> None:
    """Embeddings saved with more tokens: the config says so, the tokenizer is the adapter's, LoRA goes on top."""
    base = save_toy("llama-tied", tmp_path / "base", dtype=torch.float32)
    (base / "tokenizer.json").write_text("old")
    key = "model.embed_tokens"
    given = {
        f"{key}.base_layer.weight": draw(70, 48), f"{key}.lora_embedding_A": draw(2, 70),
        f"{key}.lora_embedding_B": draw(48, 2, seed=1),
    }  # fmt: skip
    folder = adapter(tmp_path / "lora", given)
    (folder / "tokenizer.json").write_text("new")
    out = materialise(view(base, folder), tmp_path / "out")
    assert config_of(out)["vocab_size"] == 70
    assert (out / "tokenizer.json").read_text() == "new"
    delta = (draw(48, 2, seed=1).double() @ draw(2, 70).double()).T
    assert close(tensors(out)[f"{key}.weight"], draw(70, 48).double() + 3 * delta)
    assert recognise(out).spec.sizes["vocab"] == 70


def test_rows_for_new_tokens_of_a_part(tmp_path: Path) -> None:
    """The number of tokens is in the part that reads text."""
    base = save_toy("gemma3", tmp_path / "base", dtype=torch.float32)
    folder = adapter(tmp_path / "lora", {"model.language_model.embed_tokens.weight": draw(70, 48)})
    found = view(base, folder)
    assert found.config == {**config_of(base), "text_config": {**config_of(base)["text_config"], "vocab_size": 70}}
    assert recognise(found).spec.sizes["vocab"] == 70


def test_head_tied_to_the_embeddings(tmp_path: Path) -> None:
    """An adapter on a tied head changes the head alone: it becomes a tensor, and the config says so."""
    base = save_toy("llama-tied", tmp_path / "base")
    given = halves("lm_head", 67, 48)
    out = materialise(view(base, adapter(tmp_path / "lora", given)), tmp_path / "out")
    wanted = tensors(base)["model.embed_tokens.weight"] + 3 * product(given, "lm_head")
    assert close(tensors(out)["lm_head.weight"], wanted, 1e-13)
    assert torch.equal(tensors(out)["model.embed_tokens.weight"], tensors(base)["model.embed_tokens.weight"])
    assert config_of(out)["tie_word_embeddings"] is False
    by_hand = materialise(open_checkpoint(base), tmp_path / "by-hand")
    overwrite(by_hand, {**tensors(base), "lm_head.weight": wanted})
    (by_hand / "config.json").write_text(json.dumps({**config_of(base), "tie_word_embeddings": False}))
    assert relative(outputs(out), outputs(by_hand)) <= 1e-9
    assert relative(outputs(out), outputs(base)) > 0.1


def test_what_is_tied_beside_the_head(tmp_path: Path) -> None:
    """mBART ties all tables or none: where the head gets its own weights so do encoder and decoder, as the adapter
    leaves them."""
    base = save_toy("mbart", tmp_path / "base")
    given = halves("lm_head", 67, 48) | {
        "model.shared.lora_embedding_A": draw(2, 67), "model.shared.lora_embedding_B": draw(48, 2),
    }  # fmt: skip
    found, stored = view(base, adapter(tmp_path / "lora", given)), tensors(base)
    table = stored["model.shared.weight"]
    moved = table.double() + 3 * (draw(48, 2).double() @ draw(2, 67).double()).T
    for name in ("shared", "encoder.embed_tokens", "decoder.embed_tokens"):
        assert close(found.read(f"model.{name}.weight"), moved, 1e-13)
    out = materialise(found, tmp_path / "out")
    state = load_module(out, dtype=torch.float64).state_dict()
    assert all(torch.equal(state[name], x) for name, x in tensors(out).items())


@pytest.mark.parametrize(("stored", "trained"), [("", "model."), ("model.", ""), ("transformer.", "model.")])
def test_prefixes(stored: str, trained: str, llama: Path, tmp_path: Path) -> None:
    """A body alone and a model with a head name their layers differently; heads have no prefix."""
    plain = tensors(llama)
    base = materialise(open_checkpoint(llama), tmp_path / "base")
    overwrite(base, {name.replace("model.", stored): x for name, x in plain.items()})
    module = Q.replace("model.", trained)
    given = halves(module, 48, 48) | halves("lm_head", 67, 48) | {f"{trained}norm.weight": draw(48)}
    found = view(base, adapter(tmp_path / "lora", given, modules_to_save=["norm"]))
    wanted = plain[f"{Q}.weight"].double() + 3 * product(given, module)
    assert close(found.read(f"{Q}.weight".replace("model.", stored)), wanted)
    assert torch.equal(found.read(f"{stored}norm.weight"), draw(48))
    assert close(found.read("lm_head.weight"), plain["lm_head.weight"].double() + 3 * product(given, "lm_head"))
    assert set(found.tensors) == set(tensors(base))


def test_prefixes_of_an_unknown_architecture(tmp_path: Path) -> None:
    """Without a spec, the names alone show which prefix the body has."""
    base = tmp_path / "base"
    base.mkdir()
    (base / "config.json").write_text('{"model_type": "unheard-of"}')
    overwrite(base, {f"trunk.{k}.up.weight": draw(4, 6, seed=k) for k in range(2)})
    for k, name in enumerate(("0.up", "body.trunk.0.up", "model.body.trunk.0.up", "other.0.up")):
        given = halves(name, 4, 6)
        found = view(base, adapter(tmp_path / f"{k}", given))
        assert close(found.read("trunk.0.up.weight"), draw(4, 6).double() + 3 * product(given, name))
        assert torch.equal(found.read("trunk.1.up.weight"), draw(4, 6, seed=1))


def test_names_of_another_version(tmp_path: Path) -> None:
    """transformers 5 calls ViT's layers otherwise than the files do that it writes."""
    base = save_toy("vit", tmp_path / "base", dtype=torch.float32)
    stored, trained = "vit.encoder.layer.1.attention.attention.query", "vit.layers.1.attention.q_proj"
    assert f"{stored}.weight" in tensors(base)
    given = halves(trained, 48, 48)
    found = view(base, adapter(tmp_path / "lora", given)).read(f"{stored}.weight")
    assert close(found, tensors(base)[f"{stored}.weight"].double() + 3 * product(given, trained))


def bad(case: str) -> tuple[dict[str, torch.Tensor], dict[str, Any], list[str]]:
    """Tensors, config and what the message must name, of adapters that cannot be merged."""
    good = halves(Q, 48, 48)
    a, b = f"{Q}.lora_A.weight", f"{Q}.lora_B.weight"
    return {
        "kind": (good, {"peft_type": "IA3"}, ["IA3", "adapter_config.json"]),
        "prompt": (good, {"peft_type": "PREFIX_TUNING"}, ["PREFIX_TUNING"]),
        "adalora": (good, {"peft_type": "ADALORA"}, ["ADALORA"]),
        "layers": (good, {"layer_replication": [[0, 2]]}, ["layer_replication"]),
        "pissa": (good, {"init_lora_weights": "pissa_niter_4"}, ["pissa_niter_4", "init_lora_weights"]),
        "half": ({b: good[b]}, {"r": 2}, [Q, "lora_A", "adapter_model.safetensors"]),
        "other half": ({a: good[a]}, {}, [Q, "lora_B"]),
        "no magnitude": (good, {"use_dora": True}, [Q, "lora_magnitude_vector"]),
        "magnitude": (good | {f"{Q}.lora_magnitude_vector": draw(3)}, {"use_dora": True}, ["lora_magnitude_vector", "[3]"]),
        "rank": (good, {"r": 3}, ["lora_A", "[2, 48]", "3"]),
        "pattern": (good, {"rank_pattern": {"(": 3}}, ["rank_pattern", "'('"]),
        "alpha": (good, {"lora_alpha": "x"}, [Q, "'x'"]),
        "shape": (halves(DOWN, 48, 41), {}, ["[2, 41]", "[48, 2]", DOWN, "[48, 40]"]),
        "nothing": (halves("model.layers.0.attention.wq", 48, 48), {}, ["model.layers.0.attention.wq", "does not have"]),
        "empty": ({}, {}, ["no tensors"]),
        "saved": (good | {"model.new.weight": draw(3)}, {}, ["model.new.weight"]),
        "saved shape": (good | {"model.norm.weight": draw(3)}, {}, ["model.norm.weight", "[3]", "[48]"]),
        "unknown": (good | {f"{Q}.lora_C.weight": draw(3)}, {}, ["lora_C"]),
        "integers": (good | {a: torch.ones(2, 48, dtype=torch.int8)}, {}, ["lora_A", "I8"]),
        "no bias": (good | {f"{Q}.lora_B.bias": draw(48)}, {}, ["lora_B.bias"]),
        "twice": (good | {f"{Q}.lora_A.default.weight": draw(2, 48)}, {}, ["lora_A.default.weight"]),
    }[case]  # fmt: skip


CASES = (
    "kind", "prompt", "adalora", "layers", "pissa", "half", "other half", "no magnitude", "magnitude", "rank",
    "pattern", "alpha", "shape", "nothing", "empty", "saved", "saved shape", "unknown", "integers", "no bias", "twice",
)  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_bad_adapters(case: str, llama: Path, tmp_path: Path) -> None:
    """One sentence, before any weight is read."""
    given, config, names = bad(case)
    folder = adapter(tmp_path / "lora", given, **config)
    with pytest.raises(IsomergeError) as error:
        view(llama, folder)
    one_sentence(error.value, *names)


def test_a_part_of_a_name_is_not_enough(tmp_path: Path) -> None:
    """classifier.dense of a head that the base lacks is not one of its many layers called dense."""
    base = save_toy("roberta", tmp_path / "base")
    folder = adapter(tmp_path / "lora", halves("classifier.dense", 48, 48))
    with pytest.raises(IsomergeError) as error:
        view(base, folder)
    one_sentence(error.value, "classifier.dense")


def test_ambiguous_prefix(tmp_path: Path) -> None:
    """A module that could be the encoder's or the decoder's is neither."""
    base = save_toy("t5-relu", tmp_path / "base")
    folder = adapter(tmp_path / "lora", halves("block.0.layer.0.SelfAttention.q", 48, 48))
    with pytest.raises(IsomergeError) as error:
        view(base, folder)
    one_sentence(error.value, "encoder.", "decoder.")


def test_overflow(tmp_path: Path) -> None:
    """A product that the base's dtype cannot hold is named, not written as infinity."""
    base = save_toy("llama", tmp_path / "base", dtype=torch.float16)
    found = view(base, adapter(tmp_path / "lora", halves(Q, 48, 48), lora_alpha=1e7))
    with pytest.raises(IsomergeError) as error:
        found.read(f"{Q}.weight")
    one_sentence(error.value, f"{Q}.weight", "F16", "adapter_model.safetensors")


def test_files(llama: Path, tmp_path: Path) -> None:
    """Missing files and pickles."""
    folder = adapter(tmp_path / "lora", halves(Q, 48, 48), file="adapter_model.bin")
    with pytest.raises(IsomergeError) as error:
        view(llama, folder)
    one_sentence(error.value, "adapter_model.bin", "--allow-pickle")
    allowed = open_model_ref(f"{llama}+{folder}", allow_pickle=True)
    plain = view(llama, adapter(tmp_path / "plain", halves(Q, 48, 48)))
    assert torch.equal(allowed.read(f"{Q}.weight"), plain.read(f"{Q}.weight"))
    (folder / "adapter_model.bin").unlink()
    with pytest.raises(IsomergeError) as error:
        view(llama, folder)
    one_sentence(error.value, folder, "adapter_model.safetensors")
    with pytest.raises(IsomergeError) as error:
        view(llama, llama)
    one_sentence(error.value, "adapter_config.json")


def test_nothing_is_read_early(llama: Path, tmp_path: Path) -> None:
    """Opening reads headers only, and every read is checked against the file that was opened."""
    folder = adapter(tmp_path / "lora", halves(Q, 48, 48))
    found = view(llama, folder)
    adapter(folder, halves(Q, 48, 48, seed=5))
    assert torch.equal(found.read("model.norm.weight"), tensors(llama)["model.norm.weight"])
    with pytest.raises(IsomergeError) as error:
        found.read(f"{Q}.weight")
    one_sentence(error.value, "adapter_model.safetensors", "changed")


def test_engine(llama: Path, tmp_path: Path) -> None:
    """Recognised like any checkpoint; keys of runs and digests of weights follow the adapter."""
    folder = adapter(tmp_path / "lora", halves(Q, 48, 48))
    model, plain = recognise(view(llama, folder)), recognise(llama)
    assert {b.key for b in model.blocks} == {b.key for b in plain.blocks}
    block = next(b for b in model.blocks if b.canonical[0] == Q.removeprefix("model.") + ".weight")
    assert torch.equal(model.assemble(block, torch.float32), model.checkpoint.read(f"{Q}.weight"))
    first, digest = run_key("x", [model]), weights_digest(model)
    assert first != run_key("x", [plain])
    assert digest != weights_digest(plain)
    written = materialise(view(llama, folder), tmp_path / "out")
    assert digest == weights_digest(recognise(written))
    assert run_key("x", [recognise(view(llama, folder))]) == first
    identity = view(llama, folder).identity()
    adapter(folder, halves(Q, 48, 48, seed=5))
    assert run_key("x", [recognise(view(llama, folder))]) != first
    adapter(folder, halves(Q, 48, 48), lora_alpha=99)
    assert view(llama, folder).identity() != identity
    assert {"adapter_config.json", "adapter_model.safetensors"} <= {f.name for f in view(llama, folder).files}


def test_untied_view(tmp_path: Path) -> None:
    """A head that `recognise` unties is a copy of the changed embeddings."""
    base = save_toy("llama-tied", tmp_path / "base")
    given = {
        "model.embed_tokens.lora_embedding_A": draw(2, 67),
        "model.embed_tokens.lora_embedding_B": draw(48, 2),
    }
    model = recognise(view(base, adapter(tmp_path / "lora", given)), untie=True)
    head = model.checkpoint.read("lm_head.weight")
    assert torch.equal(head, model.checkpoint.read("model.embed_tokens.weight"))
    assert not torch.equal(head, tensors(base)["model.embed_tokens.weight"])


def test_several_adapters_add_up(llama: Path, tmp_path: Path) -> None:
    """model+one+two."""
    one, two = halves(Q, 48, 48), halves(Q, 48, 48, seed=7)
    found = open_model_ref(f"{llama}+{adapter(tmp_path / 'one', one)}+{adapter(tmp_path / 'two', two)}")
    wanted = tensors(llama)[f"{Q}.weight"].double() + 3 * (product(one, Q) + product(two, Q))
    assert close(found.read(f"{Q}.weight"), wanted)
    assert found.ref == f"{llama}+{tmp_path / 'one'}+{tmp_path / 'two'}"


def test_adapter_alone(llama: Path, tmp_path: Path) -> None:
    """It stands for its base with itself merged in."""
    folder = adapter(tmp_path / "lora", halves(Q, 48, 48), base_model_name_or_path=str(llama))
    assert torch.equal(open_model_ref(folder).read(f"{Q}.weight"), view(llama, folder).read(f"{Q}.weight"))
    adapter(folder, halves(Q, 48, 48))
    with pytest.raises(IsomergeError) as error:
        open_model_ref(str(folder))
    one_sentence(error.value, "base_model_name_or_path")
    adapter(folder, halves(Q, 48, 48), base_model_name_or_path=str(tmp_path / "moved away"))
    with pytest.raises(IsomergeError) as error:
        open_model_ref(str(folder))
    one_sentence(
        error.value, folder, "base_model_name_or_path", f"write model+{folder}", "moved away: no such folder"
    )


def test_a_folder_that_may_not_be_looked_into(llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sentence, whoever runs the tests."""

    def refused(folder: Path) -> bool:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder / "adapter_config.json"))

    monkeypatch.setattr("isomerge.models.references.is_adapter", refused)
    with pytest.raises(IsomergeError) as error:
        open_model_ref(str(llama))
    one_sentence(error.value, llama, "Permission denied", "check the path and its permissions")


def test_references(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hub ids with revisions; what exists on disk wins over the signs in its name."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a+b@c").mkdir()
    (tmp_path / "lora+").mkdir()
    for text, parts in {
        "org/name": ("org/name",),
        "org/name@rev+org/lora@rev2": ("org/name@rev", "org/lora@rev2"),
        "a+b@c": ("a+b@c",),
        "a+b@c+lora+": ("a+b@c", "lora+"),
        "a+b@c+lora++x/y": ("a+b@c", "lora+", "x/y"),
        "z+b@c": ("z", "b@c"),
    }.items():
        found = parse_model_ref(text)
        assert (found.model, *found.adapters) == parts
        assert str(found) == text
    for text in ("", "+x", "x+", "x++y"):
        with pytest.raises(IsomergeError):
            parse_model_ref(text)


def test_hub_ids(llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both parts come from the hub, each at its revision; adapter pickles only when allowed."""
    adapter(tmp_path / "lora", halves(Q, 48, 48))
    asked = []

    def snapshot_download(repo: str, **options: Any) -> str:
        asked.append((repo, options["revision"], "adapter_model.bin" in options["allow_patterns"]))
        return str(tmp_path / "lora" if repo == "org/lora" else llama)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    monkeypatch.chdir(tmp_path)
    found = open_model_ref("org/name@v1+org/lora@v2")
    assert {("org/name", "v1", False), ("org/lora", "v2", False)} == set(asked)
    assert found.ref == "org/name@v1+org/lora@v2"
    assert torch.equal(found.read(f"{Q}.weight"), view(llama, tmp_path / "lora").read(f"{Q}.weight"))
    assert open_model_ref(ModelRef("org/name")).ref == "org/name"


@pytest.mark.parametrize(
    ("base", "adapter_says", "wanted"),
    [
        ("LlamaForCausalLM", {"task_type": "SEQ_CLS"}, "LlamaForSequenceClassification"),
        ("GPT2LMHeadModel", {"task_type": "TOKEN_CLS"}, "GPT2ForTokenClassification"),
        ("BertModel", {"task_type": "QUESTION_ANS"}, "BertForQuestionAnswering"),
        (
            "ViTModel",
            {"auto_mapping": {"base_model_class": "ViTForImageClassification"}},
            "ViTForImageClassification",
        ),
        ("ViTForImageClassification", {}, "ViTForImageClassification"),
    ],
)
def test_the_class_of_an_adapter_with_classes(base: str, adapter_says: dict[str, Any], wanted: str) -> None:
    """By peft's task, or the class that it notes; labels that nobody has named have numbers.

    Mutant: the base's architectures as they are."""
    made = with_classes({"architectures": [base], "id2label": {"0": "a", "1": "b"}}, adapter_says, 3)
    assert made["architectures"] == [wanted]
    assert made["id2label"] == {"0": "LABEL_0", "1": "LABEL_1", "2": "LABEL_2"}
    assert with_classes({"id2label": {"0": "a"}}, {}, 1)["id2label"] == {"0": "a"}


def test_a_head_for_classes_brings_its_class(llama: Path, tmp_path: Path) -> None:
    """A head over tokens has no place in that class; a base's own head may be of other classes.

    Mutants: without `drop` a head over tokens stays; where shapes must fit, the second adapter is refused."""
    score = {"score.modules_to_save.default.weight": draw(3, 48)}
    says = {"task_type": "SEQ_CLS", "modules_to_save": ["classifier", "score"]}
    base = tmp_path / "untied"
    shutil.copytree(llama, base)
    overwrite(
        base, {**tensors(llama), "lm_head.weight": draw(tensors(llama)["model.embed_tokens.weight"].shape[0], 48)}
    )
    config = config_of(base)
    (base / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": False}))
    made = view(base, adapter(tmp_path / "lora", {**score, **halves(Q, 48, 48)}, **says))
    assert made.config["architectures"] == ["LlamaForSequenceClassification"]
    assert len(made.config["id2label"]) == 3
    assert "lm_head.weight" not in made.tensors
    assert "score.weight" in made.tensors
    materialise(made, tmp_path / "classifier")
    again = view(tmp_path / "classifier", adapter(tmp_path / "more", {"score.weight": draw(5, 48)}, **says))
    assert again.tensors["score.weight"].shape == (5, 48)
    assert len(again.config["label2id"]) == 5
