"""Classifier heads in merges: whose is written, where it is moved to, and what each output's config says."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as tf
from safetensors.torch import load_file

import isomerge
from families.vit import PATCHES
from isomerge.archs import spec_for
from isomerge.errors import IsomergeError
from isomerge.merging.heads import head_lines, with_labels
from solve.disguises import but_for_advice, files_of, turn
from toy_settings import BODY_OF_THREE
from toys import config_of, loaded, outputs, randomise, relative, tensors

KINDS = {
    "bert": (tf.BertForSequenceClassification, tf.BertConfig, BODY_OF_THREE, "classifier"),
    "xlm-roberta": (tf.XLMRobertaForSequenceClassification, tf.XLMRobertaConfig, BODY_OF_THREE, "classifier"),
    "vit": (tf.ViTForImageClassification, tf.ViTConfig, PATCHES, "classifier"),
}


def classifier(
    kind: str, folder: Path, labels: int, seed: int = 0, body: Path | None = None, names: str | None = None
) -> Path:
    """A toy with that many labels, of its own where no letters name them; its body is another's where one is given."""
    model, config, sizes, _ = KINDS[kind]
    names = dict(enumerate(names or (f"{folder.name}-{k}" for k in range(labels))))
    made = model(
        config(**{**sizes, "num_labels": labels, "id2label": names, "label2id": {v: k for k, v in names.items()}})
    )
    randomise(made, seed)
    if body is not None:
        own = {n: t for n, t in model.from_pretrained(body).state_dict().items() if not n.startswith("classifier")}
        missing, unexpected = made.load_state_dict(own, strict=False)
        assert not unexpected
        assert all(name.startswith("classifier") for name in missing)
    made.save_pretrained(folder)
    return folder


@pytest.fixture(params=list(KINDS))
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Path]:
    """A classifier of 5 labels; a twin of its body in another basis of the residual stream, with a head of 3."""
    one = classifier(request.param, tmp_path / "one", 5)
    other = classifier(request.param, tmp_path / "other", 3, seed=9, body=one)
    return one, turn(request.param, other, tmp_path / "two", 4)


def bare(folder: Path) -> Path:
    """Without the files of alignments, which ``toys.outputs`` takes for weights."""
    for file in folder.glob("alignment*"):
        file.unlink()
    return folder


def test_keep_gives_the_models_outputs_back(pair: tuple[Path, Path], tmp_path: Path) -> None:
    """The body is both models', the head the second's, moved. float32: the bound of the headline law."""
    one, two = pair
    report = isomerge.merge([one, two], out=tmp_path / "out", spaces="all", heads="keep:2")
    assert report["streams"]
    assert relative(outputs(bare(tmp_path / "out")), outputs(two)) <= 1e-4
    assert config_of(tmp_path / "out")["id2label"] == config_of(two)["id2label"] != config_of(one)["id2label"]
    stored, own = (tensors(folder) for folder in (tmp_path / "out", two))
    assert max(float((stored[n] - own[n]).abs().max()) for n in own if n.startswith("classifier")) > 0.01
    isomerge.merge([one, two], out=tmp_path / "named", spaces="all", heads=f"keep:{two}")
    assert tensors(bare(tmp_path / "named")).keys() == stored.keys()
    assert all(torch.equal(t, stored[n]) for n, t in tensors(tmp_path / "named").items())


def test_copy_is_the_first_models_head(pair: tuple[Path, Path], tmp_path: Path) -> None:
    """As it is, in a body that is both models'."""
    one, two = pair
    for how in ("copy", "keep:1"):
        out = tmp_path / how[:4]
        isomerge.merge([one, two], out=out, spaces="all", heads=how)
        assert relative(outputs(bare(out)), outputs(one)) <= 1e-4
        own = tensors(one)
        heads = {n: t for n, t in tensors(out).items() if n.startswith("classifier")}
        # a merge chooses gains for both models, which are a rounding apart
        assert all(torch.allclose(t, own[n], rtol=1e-6, atol=1e-7) for n, t in heads.items())
        assert config_of(out) == config_of(one)


def test_separate_heads_share_one_body(pair: tuple[Path, Path], tmp_path: Path) -> None:
    """Every folder is a complete checkpoint and gives its model's outputs; weights of the body are stored once."""
    one, two = pair
    out = tmp_path / "out"
    isomerge.merge([one, two], out=out, spaces="all", heads="separate", out_shard_size=60_000)
    assert relative(outputs(bare(out)), outputs(one)) <= 1e-4
    for folder, model in (("1-one", one), ("2-two", two)):
        here = out / "heads" / folder
        assert relative(outputs(here), outputs(model)) <= 1e-4
        assert config_of(here)["id2label"] == config_of(model)["id2label"]
        loaded(here)
        assert isomerge.inspect(here)["tensors"] == len(tensors(model))
        shared = [file for file in here.glob("model-0*") if os.path.samefile(file, out / file.name)]
        assert len(shared) == len(list(here.glob("model-0*"))) > 1
        names = set().union(*(load_file(file) for file in shared))
        assert not any(name.startswith("classifier") for name in names)
    isomerge.merge([one, two], out=tmp_path / "again", spaces="all", heads="separate", out_shard_size=60_000)
    first, again = files_of(out), files_of(tmp_path / "again")
    assert {n: b for n, b in again.items() if not n.startswith("alignment")} == first


def test_a_model_without_a_head(tmp_path: Path) -> None:
    """A base that is a bare encoder gives the body alone; the kept head brings its labels and its class."""
    base = tmp_path / "base"
    model = tf.BertModel(tf.BertConfig(**BODY_OF_THREE))
    randomise(model, 3)
    model.save_pretrained(base)
    tuned = [classifier("bert", tmp_path / f"t{k}", k) for k in (3, 4)]
    isomerge.merge(tuned, out=tmp_path / "out", base_model=base, method="task_arithmetic", heads="separate")
    assert sorted(p.name for p in (tmp_path / "out" / "heads").iterdir()) == ["2-t3", "3-t4"]
    assert "`heads/2-t3`, `heads/3-t4`" in (tmp_path / "out" / "README.md").read_text()
    for name, labels in (("2-t3", 3), ("3-t4", 4)):
        assert outputs(tmp_path / "out" / "heads" / name).shape[-1] == labels
    isomerge.merge(tuned, out=tmp_path / "kept", base_model=base, method="task_arithmetic", heads="keep:3")
    for file in (tmp_path / "kept").glob("alignment*"):
        file.unlink()
    same = outputs(tmp_path / "out" / "heads" / "3-t4")
    assert torch.equal(outputs(tmp_path / "kept"), same)


@pytest.mark.parametrize("bare_first", [True, False])
def test_a_pooler_that_is_an_output_meets_one_inside_of_a_classifier(bare_first: bool, tmp_path: Path) -> None:
    """Neurons in one class, the stream's own coordinates where the config does not name the class: no element moves
    both, so neither moves, the rest does, and whatever is moved is the same function."""
    model = tf.BertModel(tf.BertConfig(**BODY_OF_THREE))
    randomise(model, 3)
    model.save_pretrained(tmp_path / "bare")
    config = config_of(tmp_path / "bare")
    del config["architectures"]
    (tmp_path / "bare" / "config.json").write_text(json.dumps(config))
    tuned = classifier("bert", tmp_path / "tuned", 3, seed=5)
    refs = [tmp_path / "bare", tuned] if bare_first else [tuned, tmp_path / "bare"]
    isomerge.merge(refs, out=tmp_path / "left", align=False)
    isomerge.merge(refs, out=tmp_path / "out", align=True, spaces="all")
    isomerge.align(refs[1], onto=refs[0], out=tmp_path / "moved")
    assert isomerge.verify(refs[1], tmp_path / "moved")["same"]


@pytest.mark.parametrize("kind", ["bert", "vit"])
@pytest.mark.parametrize("base", ["bare", "other classes"])
def test_fine_tunes_agree_on_a_head(kind: str, base: str, tmp_path: Path) -> None:
    """Which their base lacks, or has for other classes: their class and labels, and the mean of their heads.

    Mutants: without `agreed` the output is the base's, of its class; without `left_out` nobody hears of it.
    """
    names = "abc"
    tuned = [classifier(kind, tmp_path / f"t{k}", 3, seed=k, names=names) for k in range(2)]
    if base == "bare":
        _, config, sizes, _ = KINDS[kind]
        bare_one = (tf.BertForMaskedLM if kind == "bert" else tf.ViTModel)(config(**sizes))
        randomise(bare_one, 3)
        bare_one.save_pretrained(tmp_path / "base")
    else:
        classifier(kind, tmp_path / "base", 7, seed=3)
    how: dict[str, Any] = {"base_model": tmp_path / "base", "method": "task_arithmetic", "align": False}
    report = isomerge.merge(tuned, out=tmp_path / "out", **how)
    out = bare(tmp_path / "out")
    assert outputs(out).shape[-1] == 3
    assert [*config_of(out)["id2label"].values()] == [*names]
    assert any("the head the mean of theirs" in note for note in report["notes"])
    stored, heads = tensors(out), [tensors(folder) for folder in tuned]
    for name in ("classifier.weight", "classifier.bias"):
        assert torch.allclose(stored[name], (heads[0][name] + heads[1][name]) / 2)
    lost = [note for note in report["notes"] if "is left out" in note]
    assert any("cls.predictions" in note for note in lost) is (kind == "bert" and base == "bare")


def test_what_others_have_and_the_first_has_not_is_told(tmp_path: Path) -> None:
    """Where the first is fused as well, its tensors alone are written, and it is told of whom others are not."""
    model = tf.BertModel(tf.BertConfig(**BODY_OF_THREE))
    randomise(model, 3)
    model.save_pretrained(tmp_path / "base")
    one = classifier("bert", tmp_path / "one", 3)
    mixed = isomerge.merge([tmp_path / "base", one], out=tmp_path / "mixed", align=False)
    assert any(
        "of one is left out: classifier.bias, classifier.weight" in n.replace(str(tmp_path) + "/", "")
        for n in mixed["notes"]
    )


WRONG = [
    ("keep", "choose from average, copy, separate, keep:MODEL"),
    ("keep:3", "give a number from 1 to 2"),
    ("mean", "choose from average, copy"),
]


@pytest.mark.parametrize(("heads", "words"), WRONG)
def test_wrong_words(heads: str, words: str, tmp_path: Path) -> None:
    """One sentence each, and nothing is written."""
    a, b = classifier("bert", tmp_path / "a", 3), classifier("bert", tmp_path / "b", 4)
    with pytest.raises(IsomergeError) as error:
        isomerge.merge([a, b], out=tmp_path / "out", heads=heads)
    assert words in str(error.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.matched("the bodies are strangers, whose streams are looked at even where nothing is aligned")
def test_averaged_heads_of_other_labels(tmp_path: Path) -> None:
    """Refused where classes have other names; told where one model does not name them, or has another task; not where
    there is one head, or a choice was made."""

    def notes(one: Path, two: Path, **how: str) -> list[str]:
        merged = isomerge.merge([one, two], out=tmp_path / "out", overwrite=True, align=False, **how)
        return [note for note in merged["notes"] if "heads" in note]

    a, b = classifier("bert", tmp_path / "a", 3), classifier("bert", tmp_path / "b", 3, seed=1)
    assert notes(a, a) == []
    with pytest.raises(IsomergeError, match=r"the classes of .* differ in 3 rows: row 0 is 'a-0' and 'b-0'"):
        notes(a, b)
    assert notes(a, b, heads="copy") == []
    tf.BertForSequenceClassification(tf.BertConfig(**BODY_OF_THREE, num_labels=3)).save_pretrained(
        tmp_path / "unnamed"
    )
    assert "have no names" in notes(a, tmp_path / "unnamed")[0]
    tf.BertForTokenClassification(tf.BertConfig(**BODY_OF_THREE, num_labels=3)).save_pretrained(tmp_path / "tokens")
    assert "other tasks" in notes(tmp_path / "unnamed", tmp_path / "tokens")[0]


def test_refusals(tmp_path: Path) -> None:
    """Heads that are averaged must be of one size; models that have none cannot give theirs; what runs models needs
    one kind."""
    a, b = classifier("bert", tmp_path / "a", 3), classifier("bert", tmp_path / "b", 4)
    with pytest.raises(
        IsomergeError,
        match=r"classifier\.\w+ has shape.*: models must have equal shapes; merge with .*heads='copy'",
    ):
        isomerge.merge([a, b], out=tmp_path / "out")
    with pytest.raises(IsomergeError, match="gives no alignment to move a head by"):
        isomerge.merge([a, b], out=tmp_path / "out", heads="keep:2", match="ot-wts")
    with pytest.raises(IsomergeError, match="runs the models with their heads"):
        isomerge.merge([a, b], out=tmp_path / "out", heads="copy", method="regression", data="x")
    model = tf.BertForMaskedLM(tf.BertConfig(**BODY_OF_THREE))
    model.save_pretrained(tmp_path / "lm")
    with pytest.raises(IsomergeError, match="has no classifier head"):
        isomerge.merge([a, tmp_path / "lm"], out=tmp_path / "out", heads="keep:2")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("config", "wanted"),
    [
        (tf.BertConfig(**BODY_OF_THREE), {"classifier.weight", "classifier.bias", "qa_outputs.weight", "qa_outputs.bias",
                                 "cls.seq_relationship.weight", "cls.seq_relationship.bias"}),
        (tf.RobertaConfig(**BODY_OF_THREE), {"classifier.dense.weight", "classifier.dense.bias", "classifier.out_proj.weight",
                                    "classifier.out_proj.bias", "classifier.weight", "classifier.bias",
                                    "qa_outputs.weight", "qa_outputs.bias"}),
    ],
)  # fmt: skip
def test_what_a_head_is(config: tf.PretrainedConfig, wanted: set[str]) -> None:
    """Labels, and what stands before them in the same module; never a language-model head."""
    assert head_lines(spec_for(json.loads(config.to_json_string(use_diff=False)))) == wanted


def test_labels_of_a_config() -> None:
    """What the other config does not say goes back to its default."""
    mine = {"architectures": ["A"], "hidden_size": 4, "id2label": {"0": "x"}, "problem_type": "regression"}
    found = with_labels(mine, {"architectures": ["B"], "hidden_size": 9, "label2id": {"y": 0}})
    assert found == {"architectures": ["B"], "hidden_size": 4, "label2id": {"y": 0}}


RECIPES = [
    {"weights": [0.7, 0.3], "heads": "keep:2"},
    {"method": "slerp", "parameters": {"t": [0.1, 0.5]}, "base_model": "a", "layers": "0-1", "heads": "copy"},
    {"method": "dare_linear", "parameters": {"density": 0.5}, "base_model": "a", "seed": 3, "dtype": "float16"},
    {"align": False},
    {"anchor": "none"},
]


@pytest.mark.matched("the written recipe names the spaces, so that reports say of one run alone that it chose them")
@pytest.mark.parametrize("how", RECIPES)
def test_the_written_recipe_repeats_the_merge(how: dict, tmp_path: Path) -> None:
    """Every file, the recipe included, comes out again with equal bytes, but for advice."""
    tags = (("a", 0, "xyz"), ("b", 5, "zxy"))
    models = {tag: classifier("bert", tmp_path / tag, 3, seed, names=names) for tag, seed, names in tags}
    how = {**how, **({"base_model": models["a"]} if "base_model" in how else {})}
    isomerge.merge(list(models.values()), out=tmp_path / "one", **how)
    isomerge.merge(tmp_path / "one" / "isomerge_recipe.yml", out=tmp_path / "two")
    assert but_for_advice(tmp_path / "one") == but_for_advice(tmp_path / "two")
