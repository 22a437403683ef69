"""Rows by what they mean: models whose tokens or classes stand in another order are merged, aligned, measured and
compared as the model in the first one's order would be; what has no partner is told or refused."""

from __future__ import annotations

import json
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as tf
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

import isomerge as library
from families.vit import PATCHES
from isomerge.errors import IsomergeError
from isomerge.models.recognised import recognise
from isomerge.models.row_meanings import difference, in_order, partners
from raw_files import one_sentence
from solve.disguises import perturb
from toy_settings import BODY_OF_THREE
from toys import config_of, randomise, tensors

ROWS = 23
WORDS = ["[UNK]", *(f"w{k}" for k in range(20))]
"""Two rows fewer than the models have."""
ORDER = [7, 3, 0, 15, 9, 1, 20, 4, 12, 6, 2, 18, 10, 5, 17, 8, 14, 11, 19, 13, 16, 21, 22]
TABLES = ("model.embed_tokens.weight", "lm_head.weight")
LLAMA = {
    "vocab_size": ROWS, "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
    "intermediate_size": 6, "head_dim": 4, "tie_word_embeddings": False,
}  # fmt: skip


def with_tokenizer(folder: Path, tokens: list[str]) -> Path:
    """Writes a tokenizer of these words into a folder, in their order."""
    Tokenizer(WordLevel({word: k for k, word in enumerate(tokens)}, unk_token="[UNK]")).save(
        str(folder / "tokenizer.json")
    )
    return folder


def llama(folder: Path, seed: int = 0, tokens: list[str] = WORDS) -> Path:
    """A toy that reads words."""
    model = tf.LlamaForCausalLM(tf.LlamaConfig(**LLAMA)).double()
    randomise(model, seed)
    model.save_pretrained(folder)
    return with_tokenizer(folder, tokens)


def reordered(folder: Path, out: Path, order: list[int], tables: tuple[str, ...]) -> Path:
    """A copy with rows of these tables in another order: row k is row ``order[k]``."""
    shutil.copytree(folder, out)
    rows = {n: t[order].contiguous() if n in tables else t for n, t in load_file(out / "model.safetensors").items()}
    save_file(rows, out / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((out / "config.json").read_text())
    for key in ("bos_token_id", "eos_token_id"):
        if config.get(key) is not None:
            config[key] = order.index(config[key])
    (out / "config.json").write_text(json.dumps(config))
    return out


def shuffled(folder: Path, out: Path, tokens: list[str] = WORDS) -> Path:
    """The same function of texts, with every token at another id."""
    copy = reordered(folder, out, ORDER, TABLES)
    return with_tokenizer(copy, [tokens[k] for k in ORDER if k < len(tokens)])


@pytest.fixture
def twins(tmp_path: Path) -> tuple[Path, Path, Path]:
    """A model, another one, and the other one shuffled."""
    one, two = llama(tmp_path / "one"), llama(tmp_path / "two", 1)
    return one, two, shuffled(two, tmp_path / "shuffled")


def by_recipe(models: list[Path], out: Path) -> Any:
    """The mean by a recipe that says nothing of tokens."""
    lines = [f"- {{model: {json.dumps(str(model))}, parameters: {{weight: 0.5}}}}" for model in models]
    out.with_suffix(".yml").write_text("\n".join(["models:", *lines, "merge_method: linear", "dtype: float64"]))
    return library.merge(out.with_suffix(".yml"), out=out)


DOORS: dict[str, Callable[[list[Path], Path], Any]] = {
    "as stored": lambda models, out: library.merge(models, out=out, align=False),
    "aligned": lambda models, out: library.merge(models, out=out, align=True, spaces="default"),
    "no anchor": lambda models, out: library.merge(models, out=out, align=True, anchor="none", spaces="default"),
    "task vectors": lambda models, out: library.merge(
        models, out=out, align=False, method="task_arithmetic", base_model=models[0], parameters={"weight": 0.7}
    ),
    "recipe": by_recipe,
}


@pytest.mark.parametrize("door", DOORS)
def test_merges_go_by_token(door: str, twins: tuple[Path, Path, Path], tmp_path: Path) -> None:
    """What is merged with a shuffled model is what is merged with the model; it is told. By number it is another."""
    one, two, other = twins
    DOORS[door]([one, two], tmp_path / "plain")
    report = DOORS[door]([one, other], tmp_path / "out")
    wanted, merged = tensors(tmp_path / "plain"), tensors(tmp_path / "out")
    # rows without a token are the first model's
    assert all(torch.equal(wanted[n][: len(WORDS)], merged[n][: len(WORDS)]) for n in TABLES)
    assert all(torch.equal(wanted[n], merged[n]) for n in wanted if n not in TABLES)
    assert f"the tokenizers of {one} and {other} differ in 21 rows" in report["vocabulary"]
    assert "tokenizer_source: union" in (tmp_path / "out" / "isomerge_recipe.yml").read_text()
    assert "by their tokens" in library.report(tmp_path / "out").html


def test_other_tokens_have_rows_of_their_own(tmp_path: Path) -> None:
    """A token that one model knows is its row in the output, and not the mean with the row of another token."""
    one = llama(tmp_path / "one")
    renamed = [*WORDS[:5], "other", *WORDS[6:]]
    two = llama(tmp_path / "two", 1, renamed)
    report = library.merge([one, two], out=tmp_path / "out", align=False)
    assert "row 5 is 'w4' and 'other'" in report["vocabulary"]
    ids = json.loads((tmp_path / "out" / "tokenizer.json").read_text())["model"]["vocab"]
    mine, theirs, merged = tensors(one), tensors(two), tensors(tmp_path / "out")
    for name in TABLES:
        assert torch.equal(merged[name][ids["w4"]], mine[name][5])
        assert torch.equal(merged[name][ids["other"]], theirs[name][5])
        assert torch.allclose(merged[name][ids["w9"]], (mine[name][10] + theirs[name][10]) / 2)


@pytest.mark.parametrize("tokens", [WORDS, [*WORDS[:5], "other", *WORDS[6:]]])
def test_a_model_keeps_its_checksum_among_lenders(tokens: list[str], tmp_path: Path) -> None:
    """The checksums of a recipe are those of each model's own files, also where it gets rows of others or their
    tokenizer, and the report has every file once. Fails where files of lenders count as the model's."""
    models = [llama(tmp_path / "one"), llama(tmp_path / "two", 1, tokens), llama(tmp_path / "three", 2)]
    report = library.merge(models, out=tmp_path / "out", align=False, tokenizer_source="union")
    wanted = [f"crc32:{zlib.crc32((model / 'model.safetensors').read_bytes()):08x}" for model in models]
    assert [row["checksum"] for row in report["checksums"]] == wanted
    names = ("config.json", "model.safetensors")
    assert [(row["model"], row["file"]) for row in report["inputs"]] == [(str(m), n) for m in models for n in names]


def test_a_row_that_is_a_token_of_one_model_alone(tmp_path: Path) -> None:
    """It is that model's in a merge; an alignment tells that rows were taken by number."""
    one, two = llama(tmp_path / "one"), llama(tmp_path / "two", 1, [*WORDS, "more"])
    report = library.merge([one, two], out=tmp_path / "out", align=False)
    assert "row 21 is nothing and 'more'" in report["vocabulary"]
    for name in TABLES:
        assert torch.equal(tensors(tmp_path / "out")[name][21], tensors(two)[name][21])
    (note,) = in_order([recognise(one), recognise(two)]).notes
    assert "taken by their numbers" in note


@pytest.mark.parametrize("spaces", ["default", "none"])
def test_alignments_are_written_where_rows_are_stored(
    spaces: str, twins: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    """The source's function by its own tokenizer; matched as the model is that was not shuffled."""
    one, two, other = twins
    library.align(two, onto=one, out=tmp_path / "plain", spaces=spaces, align=True)
    _, report = library.align(other, onto=one, out=tmp_path / "out", spaces=spaces, align=True)
    assert "in the order of" in report["notes"][0]
    wanted, moved = tensors(tmp_path / "plain"), tensors(tmp_path / "out")
    assert all(torch.equal(wanted[n][ORDER] if n in TABLES else wanted[n], moved[n]) for n in moved)
    assert (tmp_path / "out" / "tokenizer.json").read_bytes() == (other / "tokenizer.json").read_bytes()
    assert library.verify(other, tmp_path / "out")["same"]


def test_comparisons_go_by_token(twins: tuple[Path, Path, Path]) -> None:
    """A model and its shuffled copy are one function of texts, and it is told on what ground."""
    _, two, other = twins
    report = library.verify(two, other)
    assert report["same"]
    assert "rows are taken by what they mean" in report["notes"][0]
    assert library.orbit_distance(two, other)["distance"] < 1e-9
    assert library.diff(two, other)["notes"][0].startswith("the tokenizers of")


def test_barriers_go_by_token(twins: tuple[Path, Path, Path], tmp_path: Path) -> None:
    """The line to a shuffled model is the line to the model."""
    one, two, other = twins
    ids = torch.randint(0, len(WORDS), (4, 6), generator=torch.Generator().manual_seed(0))
    save_file({"input_ids": ids}, tmp_path / "data.safetensors")
    how: dict[str, Any] = {"data": tmp_path / "data.safetensors", "points": 3, "spaces": "none"}
    plain, report = library.barrier(one, two, **how), library.barrier(one, other, **how)
    # a head predicts rows without a token as well, and these are the first model's
    assert report["lines"][0]["losses"] == pytest.approx(plain["lines"][0]["losses"], abs=0.05)
    assert "averaged by token" in report["notes"][0]


def test_slices_and_bases(twins: tuple[Path, Path, Path], tmp_path: Path) -> None:
    """A head that is another model's reads its own rows; models that were tuned from others keep theirs, or nothing."""
    one, two, other = twins
    for name, second in (("plain", two), ("out", other)):
        slices = [{"sources": [{"model": str(m), "layer_range": [k, k + 1]}]} for k, m in enumerate((one, second))]
        recipe = {"slices": slices, "merge_method": "passthrough", "dtype": "float64"}
        (tmp_path / f"{name}.yml").write_text(json.dumps(recipe))
        library.merge(tmp_path / f"{name}.yml", out=tmp_path / name)
    wanted, merged = (tensors(tmp_path / name)["lm_head.weight"][: len(WORDS)] for name in ("plain", "out"))
    assert torch.equal(wanted, merged)
    with pytest.raises(IsomergeError) as error:
        library.merge(
            [one, two], out=tmp_path / "bases", method="task_arithmetic", base_model=one, source_bases=[one, other]
        )
    one_sentence(error.value, "differ in 21 rows", "keep their rows")


def test_who_has_no_tokenizer_is_told(tmp_path: Path) -> None:
    """Nobody knows which tokens its rows are of; where nobody has one, there is nothing to tell."""
    one, two = llama(tmp_path / "one"), llama(tmp_path / "two", 1)
    (two / "tokenizer.json").unlink()
    report = library.merge([one, two], out=tmp_path / "out", align=False)
    assert report["notes"][0] == (
        f"{two} has no tokenizer that can be read: the rows are taken to be of the tokens of {one}"
    )
    (one / "tokenizer.json").write_text('{"model": 3}')
    report = library.merge([one, two], out=tmp_path / "out", overwrite=True, align=False)
    assert not any("tokenizer" in note for note in report["notes"])


def test_rows_that_cannot_be_moved_are_refused(twins: tuple[Path, Path, Path], tmp_path: Path) -> None:
    """Of an architecture without a spec nobody knows which tensors have rows of tokens."""
    one, _, other = twins
    for folder in (one, other):
        config = config_of(folder) | {"model_type": "unheard_of", "architectures": ["UnheardOfForCausalLM"]}
        (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(IsomergeError) as error:
        library.merge([one, other], out=tmp_path / "out", align=False)
    one_sentence(error.value, "differ in 21 rows", "rows of other tokens cannot be merged")


CLASSES = ["cat", "dog", "cow", "hen"]
TURN = [2, 0, 3, 1]
DETR = {
    "use_timm_backbone": False, "backbone_config": {"model_type": "resnet", "embedding_size": 4, "hidden_sizes": [4, 4, 4, 4],
    "depths": [1, 1, 1, 1], "out_features": ["stage4"]}, "d_model": 8, "encoder_layers": 1, "decoder_layers": 1,
    "encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 8, "decoder_ffn_dim": 8, "num_queries": 3,
}  # fmt: skip
HEADED: dict[str, tuple[Any, Any, dict[str, Any], tuple[str, ...]]] = {
    "bert": (tf.BertForSequenceClassification, tf.BertConfig, BODY_OF_THREE, ("classifier.weight", "classifier.bias")),
    "tokens": (tf.BertForTokenClassification, tf.BertConfig, BODY_OF_THREE, ("classifier.weight", "classifier.bias")),
    "vit": (tf.ViTForImageClassification, tf.ViTConfig, PATCHES, ("classifier.weight", "classifier.bias")),
    "detr": (
        tf.DetrForObjectDetection, tf.DetrConfig, DETR,
        ("class_labels_classifier.weight", "class_labels_classifier.bias"),
    ),
}  # fmt: skip


def headed(kind: str, folder: Path, seed: int, names: list[str]) -> Path:
    """A toy that tells these classes apart."""
    model, config, sizes, _ = HEADED[kind]
    labels = {"id2label": dict(enumerate(names)), "label2id": {name: k for k, name in enumerate(names)}}
    made = model(config(**{**sizes, "num_labels": len(names), **labels})).double()
    randomise(made, seed)
    made.save_pretrained(folder)
    return folder


def turned(kind: str, folder: Path, out: Path) -> Path:
    """The same with its classes in another order, and their names written in another way."""
    rows = load_file(folder / "model.safetensors")[HEADED[kind][3][0]].shape[0]
    reordered(folder, out, [*TURN, *range(len(TURN), rows)], HEADED[kind][3])
    names = [CLASSES[k].upper() for k in TURN]
    config = config_of(out) | {"id2label": dict(enumerate(names)), "label2id": {n: k for k, n in enumerate(names)}}
    (out / "config.json").write_text(json.dumps(config))
    return out


@pytest.mark.parametrize("align", [True, False])
@pytest.mark.parametrize("kind", HEADED)
def test_merges_go_by_class(kind: str, align: bool, tmp_path: Path) -> None:
    """Heads are averaged by the names of their classes, in the first one's order, with its names; a detector's row of
    nothing stays the last. By number they are other ones."""
    one, two = (headed(kind, tmp_path / f"{seed}", seed, CLASSES) for seed in (0, 1))
    other = turned(kind, two, tmp_path / "turned")
    how: dict[str, Any] = {"align": align, **({"spaces": "default"} if align else {})}
    library.merge([one, two], out=tmp_path / "plain", **how)
    report = library.merge([one, other], out=tmp_path / "out", **how)
    wanted, merged = tensors(tmp_path / "plain"), tensors(tmp_path / "out")
    assert all(torch.equal(wanted[name], merged[name]) for name in wanted)
    assert config_of(tmp_path / "out")["id2label"] == config_of(one)["id2label"]
    assert "differ in 4 rows: row 0 is 'cat' and 'cow'; rows are taken by what they mean" in report["notes"][0]
    kept = library.merge([one, other], out=tmp_path / "kept", heads="keep:2", **how)
    assert not any("classes" in note for note in kept["notes"])
    assert config_of(tmp_path / "kept")["id2label"] == config_of(other)["id2label"]


def test_task_vectors_go_by_class(tmp_path: Path) -> None:
    """What a model was tuned from may have its classes in a third order."""
    one, two, base = (headed("bert", tmp_path / f"{seed}", seed, CLASSES) for seed in (0, 1, 2))
    other = turned("bert", base, tmp_path / "turned")
    how: dict[str, Any] = {"method": "task_arithmetic", "base_model": one, "align": True, "spaces": "default"}
    for name, origin in (("plain", base), ("out", other)):
        library.merge([one, two], out=tmp_path / name, source_bases=[origin], **how)
    wanted, merged = tensors(tmp_path / "plain"), tensors(tmp_path / "out")
    assert all(torch.equal(wanted[name], merged[name]) for name in wanted)


def test_modules_and_alignments_go_by_class(tmp_path: Path) -> None:
    """Modules in memory have names of classes, too; an alignment is written where rows are stored; a model and its
    turned copy are one function of class names."""
    one, two = (headed("bert", tmp_path / f"{seed}", seed, CLASSES) for seed in (0, 1))
    other = turned("bert", two, tmp_path / "turned")
    modules = [tf.BertForSequenceClassification.from_pretrained(f, dtype=torch.float64) for f in (one, other)]
    library.merge(modules, out=tmp_path / "live", align=False)
    library.merge([one, two], out=tmp_path / "plain", align=False)
    assert torch.equal(*(tensors(tmp_path / n)["classifier.weight"] for n in ("live", "plain")))
    library.align(other, onto=one, out=tmp_path / "out")
    assert library.verify(other, tmp_path / "out")["same"]
    assert config_of(tmp_path / "out")["id2label"] == config_of(other)["id2label"]
    assert library.verify(two, other)["same"]


def test_barriers_go_by_class(tmp_path: Path) -> None:
    """The line to a turned model is the line to the model, and one of other classes is refused."""
    one, two = (headed("bert", tmp_path / f"{seed}", seed, CLASSES) for seed in (0, 1))
    other = turned("bert", two, tmp_path / "turned")
    ids = torch.randint(3, 20, (6, 5), generator=torch.Generator().manual_seed(0))
    save_file({"input_ids": ids, "labels": torch.tensor([0, 1, 2, 3, 0, 1])}, tmp_path / "data.safetensors")
    how: dict[str, Any] = {"data": tmp_path / "data.safetensors", "points": 3, "spaces": "none"}
    plain, report = library.barrier(one, two, **how), library.barrier(one, other, **how)
    assert report["lines"][0]["losses"] == plain["lines"][0]["losses"]
    assert "in the order of" in report["notes"][0]
    strange = headed("bert", tmp_path / "strange", 1, ["ox", *CLASSES[1:]])
    with pytest.raises(IsomergeError) as error:
        library.barrier(one, strange, **how)
    one_sentence(error.value, "the classes of", "row 0 is 'cat' and 'ox'", "id2label in config.json")


@pytest.mark.parametrize("count", [6, 9])
def test_partners(count: int) -> None:
    """Every row has one partner; those of one name have each other, and others stay where they are if they can."""
    mine, theirs = {"a": 0, "b": 1, "c": 2, "x": 4}, {"b": 0, "y": 1, "a": 4, "c": 2}
    rows = partners(mine, theirs, count)
    assert sorted(rows) == list(range(count))
    assert [rows[k] for k in (0, 1, 2)] == [4, 0, 2]
    assert rows[3] == 3
    assert rows[5:] == list(range(5, count))
    apart = difference(mine, theirs)
    assert apart is not None
    assert (apart.count, apart.row, apart.said) == (3, 0, ("a", "b"))
    assert apart.opposed
    assert not apart.reordered
    assert difference(mine, dict(mine)) is None


def headed_and_turned(tmp_path: Path) -> tuple[Path, Path, Path]:
    """A classifier, another one near it, and that with its classes in another order."""
    one = headed("bert", tmp_path / "one", 0, CLASSES)
    two = perturb(one, tmp_path / "two", 0.3)
    return one, two, turned("bert", two, tmp_path / "turned")


def by_token_and_class(tmp_path: Path, kind: str) -> tuple[Path, Path, Path]:
    """A model, another one, and the other one with rows in another order."""
    if kind == "classes":
        return headed_and_turned(tmp_path)
    one, two = llama(tmp_path / "one"), llama(tmp_path / "two", 1)
    return one, two, shuffled(two, tmp_path / "shuffled")


@pytest.mark.parametrize("kind", ["tokens", "classes"])
def test_adapters_and_masks_go_by_meaning(kind: str, tmp_path: Path) -> None:
    """An adapter that is extracted from a model in another order, and a task's mask, are those of the model in the
    base's order, byte for byte; both say so."""
    one, two, other = by_token_and_class(tmp_path, kind)
    for name, model in (("plain", two), ("out", other)):
        how: dict[str, Any] = {"rank": 32, "embeddings": True, "save_modules": True}
        extracted = library.extract_lora(model, one, out=tmp_path / f"{name}-lora", **how)
        masked = library.task_mask(two, one, model, out=tmp_path / f"{name}.mask")
        restored = library.restore_task(two, one, tmp_path / f"{name}.mask", out=tmp_path / f"{name}-task")
    told = "rows are taken by what they mean, in the order of"
    assert told in extracted["notes"][0]
    assert told in masked["notes"][0]
    assert restored["notes"] == []
    adapters = [load_file(tmp_path / f"{name}-lora" / "adapter_model.safetensors") for name in ("plain", "out")]
    assert all(torch.equal(tensor, adapters[1][key]) for key, tensor in adapters[0].items())
    masks = [load_file(tmp_path / f"{name}.mask") for name in ("plain", "out")]
    assert all(torch.equal(tensor, masks[1][key]) for key, tensor in masks[0].items())
    swapped = library.task_mask(other, one, two, out=tmp_path / "swapped.mask")
    assert len(swapped["notes"]) == 2
    again = library.restore_task(other, one, tmp_path / "swapped.mask", out=tmp_path / "swapped")
    assert told in again["notes"][0]
    assert swapped["error"] == pytest.approx(0, abs=1e-9)


def test_other_names_are_refused_or_told(tmp_path: Path) -> None:
    """Rows that have no partner are never taken for others: an adapter whose rows stay is told to be of the tuned
    model's names, and one that would mix rows is refused, as is a mask."""
    one = headed("bert", tmp_path / "one", 0, CLASSES)
    renamed = headed("bert", tmp_path / "renamed", 1, ["ox", *CLASSES[1:]])
    mixed = headed("bert", tmp_path / "mixed", 1, ["ox", "hen", *CLASSES[1:3]])
    report = library.extract_lora(renamed, one, out=tmp_path / "lora", rank=4)
    (note,) = report["notes"]
    assert note.endswith(f"rows are taken by their numbers, and are what {renamed} calls them")
    said = ("the classes of", "no partners", "give them one name (id2label in config.json)")
    base = headed("bert", tmp_path / "base", 2, CLASSES)
    library.task_mask(one, base, one, out=tmp_path / "mask")
    for refused in (
        lambda: library.extract_lora(mixed, one, out=tmp_path / "out", rank=4),
        lambda: library.task_mask(one, renamed, one, out=tmp_path / "out"),
        lambda: library.restore_task(one, mixed, tmp_path / "mask", out=tmp_path / "out"),
    ):
        with pytest.raises(IsomergeError) as error:
            refused()
        one_sentence(error.value, *said)
        assert not (tmp_path / "out").exists()
    words = llama(tmp_path / "words"), llama(tmp_path / "words2", 1, [*WORDS[:5], WORDS[6], "new", *WORDS[7:]])
    with pytest.raises(IsomergeError) as error:
        library.extract_lora(words[1], words[0], out=tmp_path / "out", rank=4)
    one_sentence(error.value, "the tokenizers of", "no partners", "isomerge transplant-tokenizer")


def test_surgery_goes_by_token_and_class(tmp_path: Path) -> None:
    """A task's model in another order has the correction of the model in the merged one's."""
    merged, task, _ = headed_and_turned(tmp_path)
    for folder in (merged, task):
        with_tokenizer(folder, WORDS)
    table = "bert.embeddings.word_embeddings.weight"
    rows = tensors(task)[table].shape[0]
    order = [*ORDER[: len(WORDS)], *range(len(WORDS), rows)]
    other = reordered(turned("bert", task, tmp_path / "again"), tmp_path / "shuffled", order, (table,))
    with_tokenizer(other, [WORDS[k] for k in ORDER if k < len(WORDS)])
    ids = torch.randint(0, len(WORDS), (12, 5), generator=torch.Generator().manual_seed(0))
    save_file({"input_ids": ids}, tmp_path / "data.safetensors")
    reports = {}
    for name, model in (("plain", task), ("out", other)):
        how: dict[str, Any] = {"data": tmp_path / "data.safetensors", "steps": 20, "rank": 2}
        reports[name] = library.surgery(merged, model, out=tmp_path / name, **how)
    notes = reports["out"]["notes"]
    assert [note.split(" of ")[0] for note in notes[:2]] == ["the tokenizers", "the classes"]
    heads = [load_file(tmp_path / name / "adapter_model.safetensors") for name in ("plain", "out")]
    assert all(torch.equal(tensor, heads[1][key]) for key, tensor in heads[0].items())
    assert reports["out"]["before"] == reports["plain"]["before"]


def test_experts_are_told_of_other_tokens(tmp_path: Path) -> None:
    """Experts bring no rows of tokens: the output has those of the base, and it is said whose differ. What a model
    in another order is to the base is seen by token, too."""
    one = llama(tmp_path / "one")
    other = shuffled(perturb(one, tmp_path / "two", 1e-3), tmp_path / "shuffled")
    entries = [{"source_model": str(m)} for m in (one, other)]
    recipe = {"base_model": str(one), "gate_mode": "random", "experts": entries, "align": False}
    (tmp_path / "recipe.yml").write_text(json.dumps(recipe))
    report = library.merge(tmp_path / "recipe.yml", out=tmp_path / "out")
    assert any(note.startswith(f"the tokenizers of {one} and {other} differ in") for note in report["notes"])
    assert not any("not in the coordinates" in note for note in report["notes"])
    assert torch.equal(tensors(tmp_path / "out")[TABLES[0]], tensors(one)[TABLES[0]])
