"""Tied heads: what they rule out, what --untie frees, and that the outputs stay either way."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers as tf
from safetensors.torch import load_file, save_file

import isomerge
from depth import more
from families.gpt import GPT_OF_THREE
from families.vit import PATCHES
from isomerge.errors import IsomergeError
from isomerge.models.recognised import recognise
from isomerge.solve.pairs import stream_descent as streams
from solve.disguises import single, turn, untied, write_like
from toy_settings import BODY_OF_THREE, CAUSAL_OF_THREE
from toys import config_of, outputs, randomise, relative, tensors


@pytest.fixture(autouse=True)
def few_sweeps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here needs unrelated models to settle."""
    monkeypatch.setattr(streams, "SWEEPS", 2)


NAMED = "default,residual"
"""T5 returns its encoder's stream, which turns by name alone; of others this is ``all``."""
TIED = {"gpt2": "OFixingOnes", "llama-tied": "O", "t5-gated": "O", "mt5": "O"}


def pair(name: str, folder: Path) -> tuple[Path, Path]:
    """Two unrelated toys."""
    return single(name, folder / "a"), single(name, folder / "b", 5)


@pytest.mark.parametrize("name", ["t5-gated", *more("gpt2", "llama-tied", "mt5")])
def test_untied_alignment(name: str, tmp_path: Path) -> None:
    """The output has a head of its own, says so, loads in transformers and computes the source's function."""
    a, b = pair(name, tmp_path)
    alignment, report = isomerge.align(b, onto=a, out=tmp_path / "out", spaces=NAMED, untie=True)
    assert report["streams"][0]["groups"] == {"res": TIED[name]}
    returned = "t5" in name
    notes = [note for note in report["notes"] if "are unrelated" not in note]
    assert any("in another basis" in note for note in notes) == bool(notes) == returned
    assert config_of(tmp_path / "out")["tie_word_embeddings"] is False
    new = tensors(tmp_path / "out")
    table = next(new[n] for n in new if n.endswith(("wte.weight", "embed_tokens.weight", "shared.weight")))
    assert set(new) == {*tensors(b), "lm_head.weight"}
    assert float((new["lm_head.weight"] - table).abs().max()) > 0.1
    assert relative(outputs(tmp_path / "out"), outputs(b)) <= 1e-5
    assert isomerge.verify(b, tmp_path / "out")["same"]
    isomerge.apply(alignment, b, out=tmp_path / "again", untie=True)
    assert all(torch.equal(t, new[n]) for n, t in tensors(tmp_path / "again").items())


@pytest.mark.parametrize("name", ["gpt2", *more("llama-tied", "t5-gated", "mt5")])
def test_untied_twin_comes_back(name: str, tmp_path: Path) -> None:
    """A rotated twin with a head of its own: aligned onto the tied original, and merged with it to the same
    function."""
    a = single(name, tmp_path / "a")
    moved = turn(name, untied(a, tmp_path / "own"), tmp_path / "moved", 3)
    assert relative(outputs(moved), outputs(a)) <= 1e-5
    assert isomerge.verify(a, moved)["same"] != ("t5" in name)
    _, report = isomerge.align(moved, onto=a, spaces=NAMED, untie=True)
    assert report["distance"]["after"] <= 1e-5 * report["distance"]["norm"]
    isomerge.merge([a, moved], out=tmp_path / "out", spaces=NAMED, untie=True)
    assert relative(outputs(tmp_path / "out"), outputs(a)) <= 1e-5
    with pytest.raises(IsomergeError, match=r"tie_word_embeddings is True and False.*untie=True"):
        isomerge.merge([a, moved], out=tmp_path / "no", spaces="all")


@pytest.mark.parametrize(
    ("name", "keeps"), [("gpt2", "Perm"), ("llama-tied", "SignedPerm"), ("t5-relu", "SignedPerm")]
)
def test_without_untie(name: str, keeps: str, tmp_path: Path) -> None:
    """``all`` keeps to what ties allow and says so; the larger group by name is refused; the output stays tied."""
    a, b = pair(name, tmp_path)
    _, report = isomerge.align(b, onto=a, out=tmp_path / "out", spaces=NAMED)
    assert report["streams"][0]["groups"] == {"res": keeps}
    assert any(f"keeps to {keeps}" in note and "--untie" in note for note in report["notes"])
    assert set(tensors(tmp_path / "out")) == set(tensors(b))
    assert config_of(tmp_path / "out")["tie_word_embeddings"] is True
    assert relative(outputs(tmp_path / "out"), outputs(b)) <= 1e-5
    group = "OFixingOnes" if name == "gpt2" else "O"
    with pytest.raises(IsomergeError, match=rf"spaces='res:{group}'.*tied.*untie=True"):
        isomerge.align(b, onto=a, out=tmp_path / "no", spaces=f"res:{group}")
    assert not (tmp_path / "no").exists()


def test_a_stored_head_that_the_config_ties(tmp_path: Path) -> None:
    """Both tensors are there (as pickles have them): moved alike without --untie, each its own way with it."""
    folders = []
    for folder in pair("gpt2", tmp_path):
        both = write_like(folder, tmp_path / f"both-{folder.name}", lambda t: t.update(
            {"lm_head.weight": t["transformer.wte.weight"].clone()}
        ))  # fmt: skip
        folders.append(both)
    a, b = folders
    _, report = isomerge.align(b, onto=a, out=tmp_path / "tied", spaces="all")
    new = tensors(tmp_path / "tied")
    assert report["streams"][0]["groups"] == {"res": "Perm"}
    assert torch.equal(new["lm_head.weight"], new["transformer.wte.weight"])
    isomerge.align(b, onto=a, out=tmp_path / "own", spaces="all", untie=True)
    new = tensors(tmp_path / "own")
    assert not torch.equal(new["lm_head.weight"], new["transformer.wte.weight"])
    assert config_of(tmp_path / "own")["tie_word_embeddings"] is False
    for out in ("tied", "own"):
        assert relative(outputs(tmp_path / out), outputs(b)) <= 1e-5


def test_names_without_a_prefix(tmp_path: Path) -> None:
    """As the first GPT_OF_THREE-2 is stored: tensors without the base model's prefix, a config that is silent about the
    tie."""
    for seed, tag in ((0, "a"), (5, "b")):
        folder = single("gpt2", tmp_path / tag, seed)
        found = {n.removeprefix("transformer."): t for n, t in load_file(folder / "model.safetensors").items()}
        save_file(found, folder / "model.safetensors", metadata={"format": "pt"})
        text = (folder / "config.json").read_text()
        (folder / "config.json").write_text(text.replace('"tie_word_embeddings": true,', ""))
    isomerge.align(tmp_path / "b", onto=tmp_path / "a", out=tmp_path / "out", spaces="all", untie=True)
    assert relative(outputs(tmp_path / "out"), outputs(tmp_path / "b")) <= 1e-5


def test_t5_of_old_configs_keeps_its_scale(tmp_path: Path) -> None:
    """T5's first configs say nothing of ties and scaled outputs; both are on, and stay so when the head is
    untied."""
    for seed, tag in ((0, "a"), (5, "b")):
        folder = single("t5-relu", tmp_path / tag, seed)
        lines = (folder / "config.json").read_text().splitlines()
        kept = [line for line in lines if "tie_word" not in line and "scale_decoder" not in line]
        (folder / "config.json").write_text("\n".join(kept))
    isomerge.align(tmp_path / "b", onto=tmp_path / "a", out=tmp_path / "out", spaces=NAMED, untie=True)
    assert relative(outputs(tmp_path / "out"), outputs(tmp_path / "b")) <= 1e-5


def test_nothing_to_untie(tmp_path: Path) -> None:
    """BERT's tied head is moved with its embeddings by every symmetry: --untie leaves it as it is."""
    a, b = pair("bert", tmp_path)
    for untie in (False, True):
        isomerge.align(b, onto=a, out=tmp_path / str(untie), spaces="all", untie=untie)
    names = ("model.safetensors", "config.json")
    assert all((tmp_path / "True" / n).read_bytes() == (tmp_path / "False" / n).read_bytes() for n in names)


def test_apply_needs_untie_as_well(tmp_path: Path) -> None:
    """A patch that turns a tied head is refused without it, from file and as an object."""
    a, b = pair("gpt2", tmp_path)
    alignment, _ = isomerge.align(b, onto=a, spaces="all", untie=True)
    alignment.save(tmp_path / "patch")
    for patch in (alignment, tmp_path / "patch"):
        with pytest.raises(IsomergeError, match=r"moves nf.*untie=True"):
            isomerge.apply(patch, b, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


HEADLESS = {
    "bert": lambda: tf.BertModel(tf.BertConfig(**BODY_OF_THREE)),
    "llama": lambda: tf.LlamaModel(tf.LlamaConfig(**CAUSAL_OF_THREE)),
    "gpt2": lambda: tf.GPT2Model(tf.GPT2Config(**GPT_OF_THREE)),
    "vit": lambda: tf.ViTModel(tf.ViTConfig(**PATCHES)),
}


@pytest.mark.parametrize("name", ["bert", "llama", *more("gpt2", "vit")])
def test_models_without_a_head_keep_their_basis(name: str, tmp_path: Path) -> None:
    """The stream is what they give out: ``all`` keeps to layers and the gains inside, with a note, ``residual`` is
    refused, so is a patch."""
    folders = []
    for seed in (0, 5):
        model = HEADLESS[name]().eval()
        randomise(model, seed)
        model.save_pretrained(tmp_path / str(seed))
        folders.append(tmp_path / str(seed))
    a, b = folders
    alignment, report = isomerge.align(b, onto=a, out=tmp_path / "out", spaces="all")
    _, default = isomerge.align(b, onto=a)
    assert not any(found["groups"] for found in report["streams"])
    assert not {key for key in alignment if key.rpartition(":")[2].startswith("res")}
    assert any("no head" in note for note in report["notes"])
    assert report["distance"]["after"] <= default["distance"]["after"] * (1 + 1e-6)
    assert relative(outputs(tmp_path / "out"), outputs(b)) < 1e-5
    for word in ("residual", "default,res:Perm"):
        with pytest.raises(IsomergeError, match=r"no head.*choose spaces='default'"):
            isomerge.align(b, onto=a, out=tmp_path / "no", spaces=word)
    (stream,) = isomerge.inspect(a)["streams"]
    assert stream["group"] is None
    assert "no head" in stream["why"]
    model = recognise(a)
    from isomerge.evidence.law import random_alignment

    g = random_alignment(
        model.spec.with_group("res", "Perm"), model.blocks, torch.Generator().manual_seed(1), ["res"]
    )
    with pytest.raises(IsomergeError, match="no head"):
        isomerge.apply(g, a, out=tmp_path / "no")
    assert not (tmp_path / "no").exists()


@pytest.mark.parametrize("name", ["gpt2", *more("llama-tied", "t5-gated")])
def test_barrier_to_an_untied_alignment(name: str, tmp_path: Path) -> None:
    """The two lines of docs/guide/learned.md: what was learned with --untie is measured against the tied models."""
    a, b = pair(name, tmp_path)
    ids = torch.randint(1, 60, (4, 8), generator=torch.Generator().manual_seed(0))
    save_file({"input_ids": ids}, tmp_path / "x.safetensors")
    isomerge.align(b, onto=a, out=tmp_path / "out", spaces=NAMED, untie=True)
    options = {"data": str(tmp_path / "x.safetensors"), "points": 3, "spaces": "none"}
    found = isomerge.barrier(a, b, aligned=[tmp_path / "out"], **options)
    stored, aligned = found["lines"]
    assert found["untied"] == [str(a), str(b)]
    assert aligned["ends"] == [pytest.approx(end, rel=1e-4) for end in stored["ends"]]
    assert aligned["midpoint"]["loss"] != pytest.approx(stored["midpoint"]["loss"], rel=1e-3)
    plain = isomerge.barrier(a, b, **options)
    assert plain["untied"] == []
    assert plain["lines"][0]["losses"] == pytest.approx(stored["losses"], rel=1e-5)


@pytest.mark.parametrize("kind", ["GPT2LMHeadModel", "GPT2Model", "GPT2ForSequenceClassification"])
@pytest.mark.parametrize("tied", [True, False])
def test_a_tie_takes_trades_of_its_table(kind: str, tied: bool, tmp_path: Path) -> None:
    """What words and positions trade shows in logits of the words, and nowhere else."""
    model = getattr(tf, kind)(tf.GPT2Config(**SMALL, tie_word_embeddings=tied))
    model.save_pretrained(tmp_path)
    trades = {shift.name for shift in recognise(tmp_path).spec.shifts if shift.trades}
    assert trades == (set() if tied and kind == "GPT2LMHeadModel" else {"wp"})


SMALL = {"vocab_size": 17, "n_positions": 8, "n_embd": 8, "n_layer": 1, "n_head": 2, "pad_token_id": 0}
