"""Statistics files: what is in them, whom they belong to, and the law that they move along with their model."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import isomerge
from depth import more
from isomerge.errors import IsomergeError
from isomerge.evidence.law import random_turn, with_streams
from isomerge.models.recognised import Model, recognise
from isomerge.observe.data.examples import Examples
from isomerge.observe.live.modules import load_module
from isomerge.observe.stats.gathering import gather
from isomerge.observe.stats.statistics import (
    Statistics,
    check_same_data,
    check_statistics,
    read_activations,
    read_statistics,
    weights_digest,
    write_statistics,
)
from isomerge.observe.stats.taps import capture
from isomerge.run.alignment_runs import plan_align
from isomerge.run.writing_run import Output
from isomerge.solve.match_options import WEIGHTS, Matching
from solve.disguises import files_of, perturb, single, turn
from toys import config_of, load_toy, outputs, relative, save_toy, write_toy

pytestmark = [
    pytest.mark.in_few_sweeps("how far streams of strangers settle does not matter here"),
    pytest.mark.matched("of layers: else strangers' streams are matched as well, and small changes not at all"),
]

LAW = ["gpt2-untied", "bert", "t5-gated", "qwen3", *more("llama", "vit", "dinov2", "llama-mha")]


def examples_for(folder: Path, count: int = 24, seed: int = 0, *, padded: bool = True) -> Examples:
    """Random inputs for a toy; with ``padded``, texts of unlike lengths."""
    config, rng = config_of(folder), torch.Generator().manual_seed(seed)
    if "image_size" in config:
        size = (count, 3, config["image_size"], config["image_size"])
        return Examples({"pixel_values": torch.randn(size, generator=rng)}, False)
    found = {"input_ids": torch.randint(1, 60, (count, 9), generator=rng)}
    if config.get("is_encoder_decoder"):
        found["decoder_input_ids"] = torch.randint(1, 60, (count, 5), generator=rng)
    elif padded:
        lengths = torch.randint(4, 10, (count, 1), generator=rng)
        found["attention_mask"] = (torch.arange(9)[None] < lengths).long()
    return Examples(found, False)


def gathered(folder: Path, examples: Examples, **how: int):
    """The model and its statistics."""
    model = recognise(folder)
    return model, gather(model, load_module(model), examples, **how)


def covariance(statistics: Statistics, key: str) -> torch.Tensor:
    """Cov x of a tap [width, width]: additive gauges of biases do not change it."""
    return statistics.grams[key] - statistics.means[key].outer(statistics.means[key])


def stored(folder: Path, examples: Examples, path: Path, **how: int) -> Path:
    """A statistics file."""
    model, found = gathered(folder, examples, **how)
    write_statistics(path, found, model)
    return path


def near(a: torch.Tensor, b: torch.Tensor) -> float:
    """The largest difference, relative to the largest number."""
    return float((a - b).abs().max() / b.abs().max().clamp_min(1e-30))


@pytest.mark.parametrize("name", LAW)
def test_statistics_move_along_with_the_model(name: str, tmp_path: Path) -> None:
    """Of a model moved by every space and shift: rows (centred), means and Grams are those of the model, moved."""
    a = save_toy(name, tmp_path / "a")
    toy = load_toy(name, a)
    blocks, rng = toy.fresh(), torch.Generator().manual_seed(3)
    g = random_turn(
        with_streams(toy.spec), toy.blocks, lambda b: blocks[b].double(), rng, condition=3.0, gains=True
    )
    g.act(blocks)
    write_toy(toy, toy.named(blocks), tmp_path / "moved")
    examples = examples_for(a)
    paths = [stored(f, examples, tmp_path / f"{f.name}.safetensors") for f in (a, tmp_path / "moved")]
    here, there = (read_statistics(p, recognise(f)) for p, f in zip(paths, (a, tmp_path / "moved"), strict=True))
    expected = here.moved(g)
    rows, wanted = there.activations.centred().values, expected.activations.centred().values
    assert rows.keys() == wanted.keys()
    assert len(rows) >= 10
    assert {k: near(rows[k], wanted[k]) for k in rows if near(rows[k], wanted[k]) > 2e-4} == {}
    assert there.grams.keys() == expected.grams.keys()
    gaps = {k: near(covariance(there, k), covariance(expected, k)) for k in there.grams}
    gaps |= {f"gram {k}": near(there.grams[k], expected.grams[k]) for k in there.grams}
    gaps |= {f"mean {k}": near(there.means[k], expected.means[k]) for k in there.grams}
    assert {k: gap for k, gap in gaps.items() if gap > 5e-4} == {}
    unmoved = {k: near(covariance(there, k), covariance(here, k)) for k in there.grams}
    assert max(unmoved.values()) > 0.1
    assert there.inputs == here.inputs
    assert there.linears == here.linears


@pytest.mark.parametrize("name", ["llama", "vit", "gpt2"])
def test_grams_are_means_over_every_token(name: str, tmp_path: Path) -> None:
    """Over all tokens without padding, not only the kept rows; what readers read is there once, by their norm."""
    a = single(name, tmp_path / "a")
    examples = examples_for(a)
    model, few = gathered(a, examples, rows=10, batch_size=7)
    everything = capture(model, load_module(model), examples, rows=10**6)
    kept = int(examples.tensors["attention_mask"].sum()) if name != "vit" else 24 * 5
    places = [k for k in everything.values if not k.startswith(("classifier", "layernorm", "lm_head"))]
    for key in places:
        x = everything.values[key].double()
        assert len(x) == kept
        assert few.tokens.get(key, kept) == kept
        if key in few.grams:
            assert near(few.grams[key], x.mT @ x / kept) < 1e-5
            assert near(few.means[key], x.mean(0)) < 1e-5
    assert all(len(x) == 10 for x in few.activations.values.values())
    readers = [b for b in few.inputs if "0." in b]
    assert readers
    assert len({few.inputs[b] for b in readers}) < len(readers) or name == "gpt2"
    assert {few.inputs[b] for b in readers} <= few.grams.keys()
    assert all(few.inputs[b] in few.activations.values for b in readers)


def test_rows_are_those_of_a_live_run(tmp_path: Path) -> None:
    """Bit for bit, also where there are more examples than rows, which only Grams see."""
    a = single("llama", tmp_path / "a")
    examples = examples_for(a, 40)
    model, _ = gathered(a, examples, rows=20)
    path = stored(a, examples, tmp_path / "s.safetensors", rows=20)
    live, found = capture(model, load_module(model), examples.head(20), rows=20), read_activations(path, model)
    assert list(live.values) == list(found.values)
    assert live.taps == found.taps
    assert live.fingerprint == found.fingerprint
    assert all(torch.equal(live.values[k], found.values[k]) for k in live.values)
    head = gathered(a, examples.head(20), rows=20)[1]
    assert not torch.equal(head.grams["norm.weight:out"], read_statistics(path, model).grams["norm.weight:out"])


@pytest.mark.parametrize("evidence", ["both", *more("activations")])
def test_files_and_live_data_give_the_same_match(evidence: str, tmp_path: Path) -> None:
    """align with statistics files writes the bytes of align with the data."""
    folders = [single("vit", tmp_path / "a"), single("vit", tmp_path / "b", 5)]
    examples = examples_for(folders[0], 20)
    save_file(dict(examples.tensors), tmp_path / "data.safetensors")
    files = tuple(str(stored(f, examples, tmp_path / f"{f.name}.safetensors")) for f in folders)
    for out, how in (("live", {"data": str(tmp_path / "data.safetensors")}), ("files", {"stats": files})):
        a, b = map(recognise, folders)
        # the functional match needs the data themselves
        matching = Matching(evidence=evidence, functional=False, **how)
        plan_align(b, a, Output(tmp_path / out), spaces="all", matching=matching).run()
    live, found = (files_of(tmp_path / out) for out in ("live", "files"))
    assert live["model.safetensors"] == found["model.safetensors"]
    assert live["alignment.safetensors"] == found["alignment.safetensors"]
    a, b = map(recognise, folders)
    plan_align(b, a, Output(tmp_path / "weights"), spaces="all", matching=WEIGHTS).run()
    assert files_of(tmp_path / "weights")["model.safetensors"] != found["model.safetensors"]


@pytest.mark.parametrize("name", ["vit", "gpt2-untied", *more("llama", "bert")])
def test_activations_alone_find_a_twin(name: str, tmp_path: Path) -> None:
    """A twin turned by every space, known by its activations alone, comes back."""
    a = single(name, tmp_path / "a")
    moved = turn(name, a, tmp_path / "moved", 3)
    examples = examples_for(a, 60)
    files = tuple(str(stored(f, examples, tmp_path / f"{f.name}.safetensors")) for f in (a, moved))
    matching = Matching(stats=files, evidence="activations")
    planned = plan_align(recognise(moved), recognise(a), Output(tmp_path / "back"), spaces="all", matching=matching)
    _, report = planned.run()
    total = report.moves.distance.total
    assert total.before > 1
    assert total.after <= 1e-3 * total.norm
    assert relative(outputs(tmp_path / "back"), outputs(a)) <= 1e-4


def test_unlike_data_are_refused(tmp_path: Path) -> None:
    """Rows of other examples, or chosen otherwise, do not belong together."""
    a, b = single("llama", tmp_path / "a"), single("llama", tmp_path / "b", 5)
    first = str(stored(a, examples_for(a), tmp_path / "a.safetensors"))
    for number, (seed, how) in enumerate([(1, {}), (0, {"rows": 20}), (0, {"batch_size": 5})]):
        other = str(stored(b, examples_for(b, seed=seed), tmp_path / f"b{number}.safetensors", **how))
        with pytest.raises(IsomergeError, match="different data" if seed else "rows that were chosen otherwise"):
            plan_align(
                recognise(b),
                recognise(a),
                Output(tmp_path / "out"),
                spaces="all",
                matching=Matching(stats=(first, other)),
            ).run()
    assert not (tmp_path / "out").exists()


def test_files_belong_to_one_model(tmp_path: Path) -> None:
    """Another model, another architecture, an untied head, shards."""
    a = single("llama", tmp_path / "a")
    path = stored(a, examples_for(a), tmp_path / "a.safetensors")
    for other, said in (
        (perturb(a, tmp_path / "b", 1e-6), "made for another model"),
        (single("mistral", tmp_path / "c"), "made for llama, but .* is mistral"),
    ):
        with pytest.raises(IsomergeError, match=said):
            read_activations(path, recognise(other))
    toy = load_toy("llama", a)
    shards = write_toy(toy, toy.stored, tmp_path / "shards", out_shard_size=30_000)
    assert len(list(shards.glob("*.safetensors"))) > 2
    assert read_activations(path, recognise(shards)).values
    tied = single("gpt2", tmp_path / "tied")
    assert weights_digest(recognise(tied)) == weights_digest(recognise(tied, untie=True))


def test_bytes_are_reproducible(tmp_path: Path) -> None:
    """Twice the same, one metadata key; half precision is about half the rows."""
    a = single("vit", tmp_path / "a")
    model, found = gathered(a, examples_for(a))
    header = write_statistics(tmp_path / "one", found, model)
    write_statistics(tmp_path / "two", gathered(a, examples_for(a))[1], model)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    with safe_open(str(tmp_path / "one"), "pt") as file:
        assert json.loads(file.metadata()["isomerge"]) == json.loads(json.dumps(header))
        kinds = {key.partition("/")[0] for key in file.keys()}  # noqa: SIM118
    assert kinds == {"rows", "mean", "gram"}
    write_statistics(tmp_path / "half", found, model, dtype="float16")
    one, half = (read_activations(tmp_path / n, model) for n in ("one", "half"))
    gaps = {key: near(half.values[key], x) for key, x in one.values.items()}
    assert 0 < max(gaps.values()) < 1e-3
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "half", "one", "two"]


def _damage(path: Path, out: Path, change: Callable, header: Callable = lambda h: None) -> Path:
    """A copy with other tensors and another header."""
    tensors = load_file(path)
    with safe_open(str(path), "pt") as file:
        meta = json.loads(file.metadata()["isomerge"])
    change(tensors)
    header(meta)
    save_file(tensors, out, metadata={"isomerge": json.dumps(meta)})
    return out


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    """By name and in one sentence: no file, other files, versions, numbers, widths, taps."""
    a = single("vit", tmp_path / "a")
    model: Model = recognise(a)
    path = stored(a, examples_for(a), tmp_path / "s")
    key = "rows/encoder.layer.0.layernorm_before.weight:out"
    cases = [
        (lambda t: t[key].fill_(torch.nan), lambda h: None, "is not what a tap"),
        (lambda t: t.update({key: t[key][:, :-1].clone()}), lambda h: None, "is not what a tap"),
        (lambda t: None, lambda h: h.update(version=2), "version 2"),
        (lambda t: None, lambda h: h.update(format="x"), "not a statistics file"),
        (lambda t: None, lambda h: h["taps"].__setitem__(0, ["a", "nowhere", "in", 0]), "list of taps"),
        (lambda t: t.pop("mean/" + key[5:]), lambda h: None, "means or Grams are missing"),
        (lambda t: [t.pop(k) for k in list(t) if k.startswith("rows/")], lambda h: None, "no activations"),
    ]
    for number, (change, header, said) in enumerate(cases):
        bad = _damage(path, tmp_path / f"bad{number}", change, header)
        with pytest.raises(IsomergeError, match=said) as error:
            read_statistics(bad, model)
        assert str(bad) in str(error.value)
        if said.startswith(("version", "not a")):  # what a header tells is told before anything is written
            with pytest.raises(IsomergeError, match=said):
                check_statistics([str(bad)], [model])
    (tmp_path / "text").write_text("hello")
    for bad in (tmp_path / "text", tmp_path / "none"):
        with pytest.raises(IsomergeError, match="not a readable statistics file"):
            read_activations(bad, model)


def test_the_command(tmp_path: Path) -> None:
    """isomerge.stats writes a file that reads back, and refuses what it would overwrite."""
    a = single("vit", tmp_path / "a")
    examples = examples_for(a)
    report = isomerge.stats(a, data=examples, out=tmp_path / "s.safetensors", rows=16)
    assert report["examples"] == 24
    assert report["bytes"] == (tmp_path / "s.safetensors").stat().st_size
    assert all(len(x) == 16 for x in read_activations(tmp_path / "s.safetensors", recognise(a)).values.values())
    with pytest.raises(IsomergeError, match="exists"):
        isomerge.stats(a, data=examples, out=tmp_path / "s.safetensors")
    before = (a / "model.safetensors").read_bytes()
    with pytest.raises(IsomergeError, match="is read, and would be replaced"):
        isomerge.stats(a, data=examples, out=tmp_path / "." / "a" / "model.safetensors", overwrite=True)
    assert (a / "model.safetensors").read_bytes() == before
    with pytest.raises(IsomergeError, match="no such folder"):
        isomerge.stats(a, data=examples, out=tmp_path / "no" / "s.safetensors")
    with pytest.raises(IsomergeError, match="rows=0"):
        isomerge.stats(a, data=examples, out=tmp_path / "t.safetensors", rows=0)


@pytest.mark.parametrize(
    ("one", "other", "words"),
    [
        ("x 9 2 unpadded", "y 9 2 unpadded", "a and b are of different data: .* --data, --limit and --length"),
        (
            "x 9 2 unpadded",
            "x 9 3 unpadded",
            "a and b have rows that were chosen otherwise: .* --rows and --batch-size",
        ),
        ("", "x 9 2 unpadded", "^a has no rows of activations: make it with --kinds"),
        ("x 9 2 unpadded", None, "^b has no rows of activations: make it with --kinds"),
    ],
)
def test_files_that_do_not_belong_together(one: str, other: str | None, words: str) -> None:
    """What is unlike is said."""
    with pytest.raises(IsomergeError, match=words):
        check_same_data(["a", "b"], [one, other])
    check_same_data(["a", "b"], [one, one])
