"""One command that decides: what is matched, whether it is learned, and what came out on the data."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import isomerge as library
from isomerge.errors import IsomergeError
from isomerge.observe.data.examples import Examples
from isomerge.observe.live.modules import load_module
from isomerge.observe.losses import evaluate
from solve.disguises import files_of, perturb, turn
from toys import outputs, relative, save_toy

pytestmark = pytest.mark.in_few_sweeps("how far streams of strangers settle does not matter here")

LEARNED = {"steps": 3, "seed": 1}


@pytest.fixture(scope="module")
def llamas(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A model, one that was trained apart, a fine-tune, and a twin whose stream is turned."""
    root = tmp_path_factory.mktemp("llamas")
    a = save_toy("llama", root / "a", dtype=torch.float32)
    return {
        "a": a,
        "stranger": save_toy("llama", root / "stranger", seed=5, dtype=torch.float32),
        "tuned": perturb(a, root / "tuned", 0.05),
        "turned": turn("llama", a, root / "turned", 3),
    }


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tokens for them."""
    file = tmp_path_factory.mktemp("texts") / "ids.safetensors"
    save_file({"input_ids": torch.randint(1, 60, (24, 9), generator=torch.Generator().manual_seed(0))}, file)
    return file


def test_fine_tunes_are_left_and_measured(llamas: dict[str, Path], texts: Path, tmp_path: Path) -> None:
    """Data do not make a match of models that are aligned already: the merge is their plain mean, and is measured."""
    models = [llamas["a"], llamas["tuned"]]
    report = library.merge(models, out=tmp_path / "out", data=texts)
    assert report["decided"]["what"] == "nothing is matched"
    assert report["decided"]["otherwise"] == [["align", "true"]]
    one, two, mean = (load_file(p / "model.safetensors") for p in (*models, tmp_path / "out"))
    assert all(torch.allclose(mean[k], (one[k] + two[k]) / 2, atol=1e-7) for k in one)
    assert any(not torch.equal(one[k], mean[k]) for k in one)
    assert not report["measured"]["held_out"]


def test_measures_are_the_models_own(llamas: dict[str, Path], texts: Path, tmp_path: Path) -> None:
    """The losses in the report are those of the models and of the output as they are loaded; so says the card."""
    models = [llamas["a"], llamas["tuned"]]
    found = library.merge(models, out=tmp_path / "out", data=texts)["measured"]
    examples = Examples(load_file(texts), True)
    for row, model in zip(found["models"], models, strict=True):
        assert row["loss"] == pytest.approx(evaluate(load_module(model), examples).loss, rel=1e-5)
    assert found["merged"]["loss"] == pytest.approx(
        evaluate(load_module(tmp_path / "out"), examples).loss, rel=1e-5
    )
    assert found["examples"] == 24
    assert found["ensemble"]["loss"] < max(row["loss"] for row in found["models"])
    card = (tmp_path / "out" / "README.md").read_text()
    assert f"| this merge | {found['merged']['loss']:.4f} |" in card
    assert f"| the models' ensemble | {found['ensemble']['loss']:.4f} |" in card


def test_strangers_are_matched_whole_and_learned(llamas: dict[str, Path], texts: Path, tmp_path: Path) -> None:
    """Without data the whole stream is matched; with data the match is learned on them, as --learn does it; what says
    otherwise is obeyed."""
    models = [llamas["a"], llamas["stranger"]]
    plain = library.merge(models, out=tmp_path / "plain")
    assert plain["spaces"] == "all"
    assert "show no common base" in plain["decided"]["why"]
    assert plain["measured"] is None
    learned = library.merge(models, out=tmp_path / "learned", data=texts, **LEARNED)
    assert "learned on the data (3 steps)" in learned["decided"]["what"]
    assert learned["streams"][0]["learned"]["steps"] == 3
    assert learned["measured"]["held_out"]
    asked = library.merge(models, out=tmp_path / "asked", data=texts, learn=texts, spaces="all", **LEARNED)
    assert asked["decided"] is None
    same = load_file(tmp_path / "asked" / "model.safetensors")
    assert all(torch.equal(x, same[k]) for k, x in load_file(tmp_path / "learned" / "model.safetensors").items())
    still = library.merge(models, out=tmp_path / "still", data=texts, learn_effort="none")
    assert "learned" not in still["streams"][0]
    assert "learned" not in still["decided"]["what"]
    inside = library.merge(models, out=tmp_path / "inside", spaces="default")
    assert inside["decided"] is None
    assert inside["spaces"] == "default"


def test_a_relative_is_turned_and_not_learned(llamas: dict[str, Path], texts: Path, tmp_path: Path) -> None:
    """A relative in another basis needs no learning: it comes back exactly, and options of learning are noted."""
    report = library.merge([llamas["a"], llamas["turned"]], out=tmp_path / "out", data=texts, steps=3)
    assert report["spaces"] == "all"
    assert "another basis" in report["decided"]["why"]
    assert "learned" not in report["streams"][0]
    assert any(
        note.startswith("--steps is not used: nothing is learned, as nothing shows") for note in report["notes"]
    )
    assert relative(outputs(tmp_path / "out"), outputs(llamas["a"])) <= 1e-4


def test_the_recipe_decides_alike(llamas: dict[str, Path], texts: Path, tmp_path: Path) -> None:
    """What is kept with the output makes it again, byte for byte."""
    models = [llamas["a"], llamas["stranger"]]
    library.merge(models, out=tmp_path / "out", data=texts, **LEARNED)
    library.merge(tmp_path / "out" / "isomerge_recipe.yml", out=tmp_path / "again")
    assert files_of(tmp_path / "out") == files_of(tmp_path / "again")


def test_models_write_their_own_data(llamas: dict[str, Path], tmp_path: Path) -> None:
    """--data generate is isomerge generate, and the match learned on its file."""
    models = [llamas["a"], llamas["stranger"]]
    how: dict[str, Any] = {"limit": 24, "length": 9, **LEARNED}
    report = library.merge(models, out=tmp_path / "out", data="generate", **how)
    assert "texts that they write" in report["decided"]["what"]
    assert report["measured"]["data"] == "generate"
    library.generate(models, out=tmp_path / "texts.safetensors", limit=24, length=9, seed=1)
    library.merge(models, out=tmp_path / "two", data=tmp_path / "texts.safetensors", **how)
    one, two = (load_file(tmp_path / name / "model.safetensors") for name in ("out", "two"))
    assert all(torch.equal(x, two[k]) for k, x in one.items())
    assert not any(tmp_path.glob("**/generated.safetensors"))


def test_noise_is_not_learned_from(stored: Callable, tmp_path: Path) -> None:
    """Models of images make noise, which is looked at by activations alone; where it is asked for it is learned."""
    models, how = [stored("vit", 0), stored("vit", 5)], {"limit": 16, "steps": 2}
    report = library.merge(models, out=tmp_path / "out", data="generate", **how)
    assert "learned" not in report["streams"][0]
    assert "functional" in report["streams"][0]
    assert "learned" not in report["decided"]["what"]
    asked = library.merge(models, out=tmp_path / "asked", learn="generate", **how)
    assert "learned" in asked["streams"][0]


def test_generate_is_no_folder(llamas: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where something of that name is there, the word is not guessed; and models that cannot write are refused."""
    monkeypatch.chdir(tmp_path)
    bert = [save_toy("bert", tmp_path / f"bert{seed}", seed=seed, dtype=torch.float32) for seed in (0, 5)]
    with pytest.raises(IsomergeError, match="neither writes texts nor sees only images"):
        library.merge(bert, out=tmp_path / "out", data="generate")
    (tmp_path / "generate").mkdir()
    with pytest.raises(IsomergeError, match=r"say \./generate"):
        library.merge([llamas["a"], llamas["tuned"]], out=tmp_path / "out", data="generate")
    assert not (tmp_path / "out").exists()


def test_what_cannot_be_learned_goes_on(llamas: dict[str, Path], texts: Path, tmp_path: Path) -> None:
    """Learning that was decided and cannot be is left out and told; where it was asked for it is an error."""
    models, one = [llamas["a"], llamas["stranger"]], {"limit": 1}
    report = library.merge(models, out=tmp_path / "out", data=texts, **one)
    assert "single example" in report["streams"][0]["not_learned"]
    with pytest.raises(IsomergeError, match="single example"):
        library.merge(models, out=tmp_path / "no", learn=texts, **one)


def test_nothing_to_measure_is_told(stored: Callable, tmp_path: Path) -> None:
    """Images without labels have no loss; data that are not there are an error before anything is written."""
    a, b = stored("vit", 0), stored("vit", 5)
    save_file({"pixel_values": torch.randn(4, 3, 8, 8)}, tmp_path / "seen.safetensors")
    report = library.merge([a, b], out=tmp_path / "out", data=tmp_path / "seen.safetensors", align=False)
    assert report["measured"] is None
    assert any("no labels" in note for note in report["notes"])
    with pytest.raises(IsomergeError, match="no such file"):
        library.merge([a, b], out=tmp_path / "no", data=tmp_path / "lost.safetensors", align=False)
    assert not (tmp_path / "no").exists()


def test_the_command_line_says_it_in_two_lines(
    llamas: dict[str, Path], texts: Path, isomerge: Callable, tmp_path: Path
) -> None:
    """What was decided and how to decide otherwise; the losses in one line; plain names of parts, letters with -v."""
    a, b = llamas["a"], llamas["stranger"]
    said = isomerge("merge", a, b, "-o", tmp_path / "out", "--data", texts, "--steps", 2)
    lines = said.out.splitlines()
    at = next(k for k, line in enumerate(lines) if line.startswith("Decided: "))
    assert "show no common base" in lines[at]
    assert lines[at + 1] == "To decide otherwise: --learn-effort none, or --spaces default, or --no-align."
    (losses,) = [line for line in lines if line.startswith("Loss on ")]
    assert all(word in losses for word in ("a ", "stranger ", "merged ", "their ensemble "))
    assert "residual stream" in said.out
    assert "\n  ov " not in said.out
    loud = isomerge("merge", a, b, "-o", tmp_path / "loud", "-v")
    assert "\n  ov " in loud.out
    dry = isomerge("merge", a, b, "-o", tmp_path / "dry", "--dry-run")
    assert "Decided: the whole residual stream" in dry.out


def test_vocabularies_are_brought_together(llamas: dict[str, Path], isomerge: Callable, tmp_path: Path) -> None:
    """Of models with different numbers of tokens the output has all; it says so, as --tokenizer-source union does it."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel

    def with_tokens(folder: Path, out: Path, count: int, first: int = 0) -> Path:
        """A copy with a tokenizer of so many tokens, of which this is the first, and as many rows."""
        out.mkdir()
        weights, config = load_file(folder / "model.safetensors"), json.loads((folder / "config.json").read_text())
        rng = torch.Generator().manual_seed(count)
        for name in ("model.embed_tokens.weight", "lm_head.weight"):
            more = torch.randn(count, weights[name].shape[1], generator=rng) * 0.1
            weights[name] = torch.cat([weights[name], more])[:count].contiguous()
        save_file(weights, out / "model.safetensors", metadata={"format": "pt"})
        (out / "config.json").write_text(json.dumps({**config, "vocab_size": count}))
        ids = {f"w{(k + first) % count}": k for k in range(count)}
        Tokenizer(WordLevel(ids, unk_token="w0")).save(str(out / "tokenizer.json"))
        return out

    a = with_tokens(llamas["a"], tmp_path / "a", 67)
    b = with_tokens(llamas["tuned"], tmp_path / "b", 70)
    said = isomerge("merge", a, b, "-o", tmp_path / "out")
    assert said.code == 0, said.err
    assert "Decided: the output has the tokens of all models, as they have 67 and 70" in said.out
    assert json.loads((tmp_path / "out" / "config.json").read_text())["vocab_size"] == 70
    library.merge([a, b], out=tmp_path / "union", tokenizer_source="union")
    one, two = (load_file(tmp_path / name / "model.safetensors") for name in ("out", "union"))
    assert all(torch.equal(x, two[name]) for name, x in one.items())
    assert "tokenizer_source: union" in (tmp_path / "out" / "isomerge_recipe.yml").read_text()
    assert isomerge("merge", a, b, "-o", tmp_path / "base", "--tokenizer-source", "base").code == 0
    assert json.loads((tmp_path / "base" / "config.json").read_text())["vocab_size"] == 67
    c = with_tokens(llamas["tuned"], tmp_path / "c", 67, first=1)
    told = (
        f"rows are merged by their tokens, and the output has those of all, as the tokenizers of {a} and {c} differ"
    )
    said = isomerge("merge", a, c, "-o", tmp_path / "turned", "--no-align", "--dry-run", "--json", tmp_path / "x")
    assert f"Decided: {told}" in said.out
    assert json.loads((tmp_path / "x").read_text())["vocabulary"].startswith(told)
    said = isomerge("merge", a, c, "-o", tmp_path / "turned", "--no-align", "--json", tmp_path / "y")
    assert f"Decided: {told}" in said.out
    assert json.loads((tmp_path / "y").read_text())["vocabulary"].startswith(told)
    said = isomerge("merge", a, c, "-o", tmp_path / "first", "--no-align", "--tokenizer-source", "base")
    assert "Decided: rows" not in said.out
