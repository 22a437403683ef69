"""Fine-tunes as adapters: planted differences come back exactly, cut ones as Eckart and Young say."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import transformers as tf
from transformers.pytorch_utils import Conv1D

import isomerge
from isomerge import archs
from isomerge.errors import IsomergeError
from isomerge.fusion import low_rank
from isomerge.fusion.low_rank import Cut, factors
from isomerge.merging.adapter.extract_lora import extract_lora
from isomerge.models.references import open_model_ref
from toys import config_of, overwrite, save_toy, tensors

TOYS = ("llama", "gpt2", "bert", "t5-gated", "vit", "mixtral")


def linear(name: str, x: torch.Tensor) -> bool:
    """Weights of linear layers, by their names."""
    tables = ("embed", "wte", "wpe", "shared", "relative_attention_bias")
    return x.ndim == 2 and not any(word in name for word in tables)


def tune(base: Path, out: Path, rank: int, others: float = 0.0, chosen: Callable = linear) -> Path:
    """A fine-tune: every linear layer moved by a matrix of a rank, all else by noise of a size."""
    save = tensors(base)
    rng = torch.Generator().manual_seed(9)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=rng, dtype=torch.float64)

    for name, x in save.items():
        delta = others * draw(*x.shape)
        if chosen(name, x):
            delta = 0.1 * draw(x.shape[0], rank) @ draw(rank, x.shape[1])
        save[name] = (x.double() + delta).to(x.dtype)
    out.mkdir()
    (out / "config.json").write_text((base / "config.json").read_text())
    overwrite(out, save)
    return out


def error(found: Path | str, wanted: Path) -> float:
    """The largest change of a tensor, relative to its largest entry."""
    view, stored = open_model_ref(str(found)), tensors(wanted)
    assert set(view.tensors) == set(stored)
    return max(float((view.read(n) - x).abs().max() / x.abs().max()) for n, x in stored.items())


@pytest.mark.parametrize("name", TOYS)
def test_round_trip(name: str, tmp_path: Path) -> None:
    """Differences of rank 3 are extracted as such, and base+adapter is the fine-tune."""
    base = save_toy(name, tmp_path / "base")
    tuned = tune(base, tmp_path / "tuned", 3)
    report = extract_lora(tuned, base, tmp_path / "lora", rank=8)
    assert {x.kept for x in report.tensors.values()} == {"lora"}
    # heads and routers may have fewer outputs than that
    assert {x.rank for n, x in report.tensors.items() if min(tensors(base)[n].shape) > 3} == {3}
    assert set(report.tensors) == {n for n, x in tensors(base).items() if linear(n, x)}
    assert report.share < 1e-13
    assert error(f"{base}+{tmp_path / 'lora'}", tuned) < 1e-13
    assert error(base, tuned) > 0.1


@pytest.mark.parametrize(
    "name", [n for n in TOYS if n != "mixtral"]
)  # whose experts are one tensor in transformers 5
def test_sides(name: str, tmp_path: Path) -> None:
    """A is on the input side of the module in transformers, B on its output side, as peft wants them."""
    base = save_toy(name, tmp_path / "base")
    extract_lora(tune(base, tmp_path / "tuned", 3), base, tmp_path / "lora", rank=3)
    halves = tensors(tmp_path / "lora")
    layers = dict(getattr(tf, config_of(base)["architectures"][0]).from_pretrained(base).named_modules())
    checked = 0
    for key, a in halves.items():
        if "lora_A" in key:
            layer = layers.get(key.removeprefix("base_model.model.").removesuffix(".lora_A.weight"))
            b = halves[key.replace("lora_A", "lora_B")]
            if layer is not None:  # transformers renames the layers of ViT
                stored = (b.shape[0], a.shape[1])
                assert layer.weight.shape == (stored[::-1] if isinstance(layer, Conv1D) else stored)
                checked += 1
    assert checked > 0


@pytest.mark.parametrize("name", ["llama", "bert", "gpt2"])
def test_everything(name: str, tmp_path: Path) -> None:
    """Norms, biases, tables: reported as lost, or saved whole, or tables by factors."""
    base = save_toy(name, tmp_path / "base")
    tuned = tune(base, tmp_path / "tuned", 2, others=0.1)
    report = extract_lora(tuned, base, tmp_path / "without", rank=48)
    lost = {n: x for n, x in report.tensors.items() if x.kept == "lost"}
    a, b = tensors(tuned), tensors(base)
    assert set(lost) == {n for n, x in b.items() if not linear(n, x)}
    assert all(x.lost == pytest.approx(float((a[n] - b[n]).norm())) for n, x in lost.items())
    assert report.lost == pytest.approx(sum(x.lost**2 for x in lost.values()) ** 0.5)
    assert report.norm == pytest.approx(sum(float((a[n] - x).norm()) ** 2 for n, x in b.items()) ** 0.5)
    for embeddings in (False, True):
        out = tmp_path / f"{embeddings}"
        report = extract_lora(tuned, base, out, rank=48, save_modules=True, embeddings=embeddings)
        assert report.share < 1e-13
        assert error(f"{base}+{out}", tuned) < 1e-13
        kept = {x.kept for n, x in report.tensors.items() if "embed_tokens" in n or "word_emb" in n or "wte" in n}
        assert kept == {"lora" if embeddings else "saved"}


@pytest.mark.parametrize("name", ["llama", "gpt2"])  # an own head, and a tied one
@pytest.mark.parametrize("rows", [3, -2])
def test_another_number_of_tokens(name: str, rows: int, tmp_path: Path) -> None:
    """Tables with more or fewer rows are saved whole with the tokenizer that says whose they are, or lost whole; base
    and adapter are the fine-tune then, its ``vocab_size`` and its tokenizer too. Without their own kind of difference
    the shapes are refused."""
    base = save_toy(name, tmp_path / "base")
    tuned, count = tune(base, tmp_path / "tuned", 2), config_of(base)["vocab_size"]
    stored = tensors(tuned)
    tables = {n: x for n, x in stored.items() if x.ndim == 2 and len(x) == count}
    for n, x in tables.items():
        stored[n] = torch.cat([x, x[:rows] + 1]) if rows > 0 else x[:rows].clone()
    overwrite(tuned, stored)
    (tuned / "config.json").write_text(json.dumps({**config_of(base), "vocab_size": count + rows}))
    (tuned / "tokenizer_config.json").write_text('{"added": "here"}')
    report = extract_lora(tuned, base, tmp_path / "lora", save_modules=True)
    assert {n for n, x in report.tensors.items() if x.kept == "saved"} == set(tables)
    ref = f"{base}+{tmp_path / 'lora'}"
    assert error(ref, tuned) < 1e-12
    view = open_model_ref(ref)
    assert view.config["vocab_size"] == count + rows
    config = json.loads((tmp_path / "lora" / "adapter_config.json").read_text())
    heads = [
        key for key in tensors(tmp_path / "lora") if "lm_head" in key
    ]  # peft takes a tied one from the file too
    assert (len(heads), config.get("ensure_weight_tying")) == (1, True if name == "gpt2" else None)
    assert (tmp_path / "lora" / "tokenizer_config.json").read_text() == '{"added": "here"}'
    report = extract_lora(tuned, base, tmp_path / "without")
    lost = {n: x.lost for n, x in report.tensors.items() if x.kept == "lost"}
    before, wide = tensors(base), (lambda x: torch.cat([x, x.new_zeros(count + 3 - len(x), x.shape[1])]))
    assert lost == pytest.approx({n: float((wide(stored[n]) - wide(before[n])).norm()) for n in tables})
    assert not (tmp_path / "without" / "tokenizer_config.json").exists()
    if len(tables) > 1:
        with pytest.raises(IsomergeError, match="all or none"):
            extract_lora(tuned, base, tmp_path / "one", save_modules=True, exclude=r"lm_head")


def test_added_rows_of_zeros(tmp_path: Path) -> None:
    """Tables that differ by rows of zeros alone are of another number of tokens all the same: saved whole, or refused
    where nothing else would be kept. Fails (KeyError) where a difference of norm 0 is taken for none."""
    base = save_toy("llama", tmp_path / "base")
    tuned = shutil.copytree(base, tmp_path / "tuned")
    stored, count = tensors(tuned), config_of(base)["vocab_size"]
    tables = [n for n, x in stored.items() if x.ndim == 2 and len(x) == count]
    stored |= {n: torch.cat([stored[n], torch.zeros_like(stored[n][:3])]) for n in tables}
    overwrite(tuned, stored)
    (tuned / "config.json").write_text(json.dumps({**config_of(base), "vocab_size": count + 3}))
    report = extract_lora(tuned, base, tmp_path / "lora", save_modules=True)
    assert {n: x.kept for n, x in report.tensors.items()} == dict.fromkeys(tables, "saved")
    assert error(f"{base}+{tmp_path / 'lora'}", tuned) == 0
    with pytest.raises(IsomergeError, match="would be kept"):
        extract_lora(tuned, base, tmp_path / "without")


def test_pickles(tmp_path: Path) -> None:
    """Pickles are read where that is allowed, and refused otherwise. Fails where models are opened without the
    allowance to see whether they are of images."""
    base = save_toy("llama", tmp_path / "base")
    tuned = tune(base, tmp_path / "tuned", 2)
    torch.save(tensors(tuned), tuned / "pytorch_model.bin")
    (tuned / "model.safetensors").unlink()
    with pytest.raises(IsomergeError, match="is a pickle"):
        isomerge.extract_lora(tuned, base, out=tmp_path / "lora")
    assert isomerge.extract_lora(tuned, base, out=tmp_path / "lora", allow_pickle=True)["rank"] == 2


def test_half_precision(tmp_path: Path) -> None:
    """float32 factors give back bfloat16 weights to the last bit, but for a few near zero, where the bits are
    finer."""
    base = save_toy("llama", tmp_path / "base", dtype=torch.bfloat16)
    tuned = tune(base, tmp_path / "tuned", 2)
    extract_lora(tuned, base, tmp_path / "lora", rank=48)
    assert error(f"{base}+{tmp_path / 'lora'}", tuned) < 2e-6
    view = open_model_ref(f"{base}+{tmp_path / 'lora'}")
    assert all(float((view.read(n) == x).double().mean()) > 0.99 for n, x in tensors(tuned).items())
    halves = tensors(tmp_path / "lora")
    assert {x.dtype for x in halves.values()} == {torch.float32}


def planted(values: list[float], shape: tuple[int, int]) -> torch.Tensor:
    """A matrix with known singular values."""
    rng = torch.Generator().manual_seed(3)
    u, v = (torch.linalg.qr(torch.randn(n, len(values), generator=rng, dtype=torch.float64)).Q for n in shape)
    return u @ torch.diag(torch.tensor(values, dtype=torch.float64)) @ v.T


@pytest.mark.parametrize("shape", [(20, 30), (30, 20)])
@pytest.mark.parametrize("exact", [True, False])
def test_cuts(shape: tuple[int, int], exact: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is lost is the rest of the singular values; energy and epsilon count as they say."""
    if not exact:
        monkeypatch.setattr(low_rank, "EXACT_UP_TO", 2)
        monkeypatch.setattr(low_rank, "OVERSAMPLING", 4)
    values = [8.0, 4.0, 2.0, 1.0, 0.5]
    x = planted(values, shape)
    for rank in (1, 3):
        b, a = factors(x, Cut(rank))
        assert (b.shape, a.shape) == ((shape[0], rank), (rank, shape[1]))
        rest = sum(s * s for s in values[rank:]) ** 0.5
        assert float((x - b @ a).norm()) == pytest.approx(rest, rel=1e-9)
    total = sum(s * s for s in values)
    for share, rank in ((64 / total - 1e-6, 1), (64 / total + 1e-6, 2), (84 / total - 1e-6, 3), (1.0, 5)):
        assert len(factors(x, Cut(5, energy=share))[1]) == rank
    for epsilon, rank in ((0.6, 1), (0.3, 2), (0.1, 4), (0.0, 5)):
        assert len(factors(x, Cut(5, epsilon=epsilon))[1]) == rank


def test_large_matrices_are_seeded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The range finder is deterministic, and close to the best where the spectrum is flat."""
    x = torch.randn(80, 70, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    best = x - torch.matmul(*factors(x, Cut(8)))
    monkeypatch.setattr(low_rank, "EXACT_UP_TO", 2)
    once, twice = (factors(x, Cut(8)) for _ in range(2))
    assert all(torch.equal(p, q) for p, q in zip(once, twice, strict=True))
    assert 1 <= float((x - once[0] @ once[1]).norm() / best.norm()) < 1.01


def test_filters(tmp_path: Path) -> None:
    """Only what is included and not excluded."""
    base = save_toy("llama", tmp_path / "base")
    tuned = tune(base, tmp_path / "tuned", 2)
    report = extract_lora(
        tuned, base, tmp_path / "lora", include=r"layers\.[01]\.", exclude="mlp", save_modules=True
    )
    kept = {n for n, x in report.tensors.items() if x.kept == "lora"}
    assert kept == {n for n in tensors(base) if "self_attn" in n and "layers.2" not in n}
    assert {x.kept for x in report.tensors.values()} == {"lora", "lost"}
    config = json.loads((tmp_path / "lora" / "adapter_config.json").read_text())
    assert config["target_modules"] == sorted(n.removesuffix(".weight") for n in kept)


def test_ranks_differ(tmp_path: Path) -> None:
    """Every layer has its own rank, and a scaling of one."""
    base = save_toy("llama", tmp_path / "base")
    one = tune(base, tmp_path / "one", 5, chosen=lambda n, x: "down_proj" in n)
    tuned = tune(one, tmp_path / "tuned", 2, chosen=lambda n, x: "layers.1.self_attn" in n)
    report = extract_lora(tuned, base, tmp_path / "lora")
    assert {x.rank for x in report.tensors.values()} == {2, 5}
    assert error(f"{base}+{tmp_path / 'lora'}", tuned) < 1e-13


@pytest.mark.parametrize("tied", ["base", "tuned"])
def test_ties(tied: str, tmp_path: Path) -> None:
    """A head that one of the two ties to its embeddings."""
    a = save_toy("llama-tied", tmp_path / "a")
    head = torch.randn(67, 48, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    b = save_toy("llama-tied", tmp_path / "b")
    overwrite(b, {**tensors(b), "lm_head.weight": head})
    (b / "config.json").write_text(json.dumps({**config_of(b), "tie_word_embeddings": False}))
    base, tuned = (a, b) if tied == "base" else (b, a)
    report = extract_lora(tuned, base, tmp_path / "lora", rank=48)
    assert list(report.tensors) == ["lm_head.weight"]
    view = open_model_ref(f"{base}+{tmp_path / 'lora'}")
    wanted = head if tied == "base" else tensors(a)["model.embed_tokens.weight"]
    assert torch.allclose(view.read("lm_head.weight"), wanted, rtol=0, atol=1e-13)
    assert view.config["tie_word_embeddings"] is False


def test_a_head_that_the_base_lacks(tmp_path: Path) -> None:
    """It is saved whole."""
    base = save_toy("llama", tmp_path / "base")
    score = torch.ones(3, 48, dtype=torch.float64)
    tuned = tune(base, tmp_path / "tuned", 2)
    overwrite(tuned, {**tensors(tuned), "score.weight": score})
    report = extract_lora(tuned, base, tmp_path / "lora", save_modules=True)
    assert report.tensors["score.weight"].kept == "saved"
    assert error(f"{base}+{tmp_path / 'lora'}", tuned) < 1e-13


def test_refusals(tmp_path: Path) -> None:
    """Sentences, and nothing left behind."""
    base = save_toy("llama", tmp_path / "base")
    tuned = tune(base, tmp_path / "tuned", 2)
    wide, gpt = save_toy("llama-mqa", tmp_path / "wide"), save_toy("gpt2", tmp_path / "gpt")
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "file").write_text("kept")
    for one, options, words in (
        (base, {}, ["equal"]),
        (wide, {}, ["k_proj", "[8, 48]", "[16, 48]"]),
        (gpt, {}, ["gpt2", "llama"]),
        (tuned, {"rank": 0}, ["--rank 0"]),
        (tuned, {"energy": 0.0}, ["--energy 0.0"]),
        (tuned, {"sv_epsilon": 1.0}, ["--sv-epsilon 1.0"]),
        (tuned, {"include": "nothing"}, ["no module that differs", "--include"]),
        (tuned, {"include": "("}, ["--include ", "'('"]),
        (tuned, {"out": tmp_path / "there"}, ["there", "exists"]),
    ):
        arguments = {"out": tmp_path / "out", **options}
        with pytest.raises(IsomergeError) as caught:
            extract_lora(one, base, **arguments)
        assert all(word in str(caught.value) for word in words)
    left = {p.name for p in tmp_path.iterdir()}
    assert left == {"base", "tuned", "wide", "gpt", "there"}
    assert (tmp_path / "there" / "file").read_text() == "kept"
    extract_lora(tuned, base, tmp_path / "there", overwrite=True)
    assert {p.name for p in (tmp_path / "there").iterdir()} == {"adapter_config.json", "adapter_model.safetensors"}


def test_overwrite_never_removes_what_is_read(tmp_path: Path) -> None:
    """A fine-tune or a base in a folder of the output, as a trainer leaves its checkpoints."""
    project = save_toy("llama", tmp_path / "project")
    inner = tune(project, project / "checkpoint-500", 2)
    other = tune(project, tmp_path / "other", 3)
    for pair in ((inner, other), (other, inner)):
        with pytest.raises(IsomergeError, match=r"project holds .*checkpoint-500.*, which is read"):
            extract_lora(*pair, project, overwrite=True)
    assert (inner / "model.safetensors").is_file()


def test_folders_of_a_type_of_the_users_own(tmp_path: Path) -> None:
    """Models that are not recognised yet are, by the spec that is given."""
    base = save_toy("llama", tmp_path / "base")
    tuned = tune(base, tmp_path / "tuned", 2)
    for folder in (base, tuned):
        (folder / "config.json").write_text(json.dumps({**config_of(folder), "model_type": "mine"}))
    built_in = (Path(archs.__file__).parent / "decoders" / "llama.spec").read_text()
    (tmp_path / "my.spec").write_text(built_in.replace("\nmodel llama", "\nmodel mine llama"))
    with pytest.raises(IsomergeError, match="no spec for model_type 'mine'"):
        extract_lora(tuned, base, tmp_path / "no", rank=2)
    found = extract_lora(tuned, base, tmp_path / "adapter", rank=2, spec_file=tmp_path / "my.spec")
    assert found.share < 1e-6
