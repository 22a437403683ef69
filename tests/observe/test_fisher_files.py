"""Statistics for merging: what is in the files, who may read them, and merges from moved files."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn
from transformers.pytorch_utils import Conv1D

import isomerge
from isomerge.errors import IsomergeError
from isomerge.evidence.law import random_alignment
from isomerge.fusion.registry import STATISTICS, method
from isomerge.merging.fusion_statistics import FusionStatistics
from isomerge.models.recognised import recognise
from isomerge.observe.live.modules import load_module
from isomerge.observe.stats.gathering import gather, parse_kinds
from isomerge.observe.stats.statistics import read_activations, read_statistics
from observe.test_fisher_information import labelled
from observe.test_fisher_moves import moved_twin
from observe.test_statistics import examples_for, near
from solve.disguises import perturb, single, untied
from toys import config_of, load_toy


def stats(folder: Path, path: Path, kinds: str, count: int = 4, **how: Any) -> dict[str, Any]:
    """The command on labelled examples."""
    return isomerge.stats(folder, data=labelled(folder, count), out=path, kinds=kinds, overwrite=True, **how)


def rewritten(path: Path, out: Path, tensors: Callable = lambda t: None, header: Callable = lambda h: None) -> Path:
    """A copy with other tensors and another header."""
    found = load_file(path)
    with safe_open(str(path), "pt") as file:
        meta = json.loads(file.metadata()["isomerge"])
    tensors(found)
    header(meta)
    save_file(found, out, metadata={"isomerge": json.dumps(meta)})
    return out


def test_kinds_are_what_is_asked_for(tmp_path: Path) -> None:
    """By key; kfac brings its other factor, and nothing more is computed or kept."""
    a, path = single("vit", tmp_path / "a"), tmp_path / "s"
    wanted = {
        "activations": {"rows"},
        "regmean": {"gram", "mean"},
        "fisher": {"fisher"},
        "kfac, regmean": {"gram", "mean", "kfac"},
        "fisher,kfac,activations": {"rows", "gram", "mean", "fisher", "kfac"},
    }
    for kinds, words in wanted.items():
        report = stats(a, path, kinds)
        with safe_open(str(path), "pt") as file:
            assert {key.partition("/")[0] for key in file.keys()} == words  # noqa: SIM118
        assert set(report["kinds"]) == set(parse_kinds(kinds))
    assert report["fisher"]["labels"] == "given"
    assert report["fisher"]["samples"] == 4
    for kinds, said in (("fisher,shapes", "kinds='shapes'.*: choose from"), ("", "kinds=.* is empty")):
        with pytest.raises(IsomergeError, match=said):
            stats(a, path, kinds)
    with pytest.raises(IsomergeError, match=r"fisher_labels='real'.*: choose from"):
        stats(a, path, "fisher", fisher_labels="real")
    stats(a, path, "fisher,kfac", fisher_labels="sampled", seed=3)
    first = path.read_bytes()
    stats(a, path, "fisher,kfac", fisher_labels="sampled", seed=3)
    assert path.read_bytes() == first
    with pytest.raises(IsomergeError, match="no activations in this file"):
        read_activations(path, recognise(a))


@pytest.mark.parametrize("name", ["bert-relu", "gpt2", "gpt2-untied", "t5-gated", "mistral", "deberta-conv"])
def test_every_linear_layer_has_the_gram_of_its_input(name: str, tmp_path: Path) -> None:
    """Poolers, heads and projections as well, by hooks on whatever is linear in the module; tied heads have
    none."""
    a = single(name, tmp_path / "a")
    model, examples = recognise(a), examples_for(a, 6, padded=False)
    module: Any = load_module(model)
    found = gather(model, module, examples, batch_size=4)
    table = module.get_input_embeddings().weight
    seen: dict[int, list[torch.Tensor]] = {}
    linears = [m for m in module.modules() if isinstance(m, (nn.Linear, Conv1D)) and m.weight is not table]
    for m in linears:
        m.register_forward_pre_hook(lambda m, x: seen.setdefault(id(m), []).append(x[0].double().flatten(0, -2)))
    with torch.no_grad():
        for example in examples.batches(1):
            module(**example)
    assert len(found.linears) == len(linears) >= 12
    by_place = {id(m): n for n, m in module.named_modules()}
    canonical = {model.spec.match(f"{by_place[id(m)]}.weight").canonical: id(m) for m in linears}
    for block, (tap, axis) in found.linears.items():
        x = torch.cat(seen[canonical[block]])
        assert near(found.grams[tap], x.mT @ x / len(x)) < 1e-5
        assert found.tokens[tap] == len(x)
        assert axis == (0 if "gpt2" in name and block != "lm_head.weight" else 1)


def test_files_are_checked_before_anything_is_read(tmp_path: Path) -> None:
    """One per model, of that model, with the kinds that the method needs; damaged tensors are told by name."""
    a = single("vit", tmp_path / "a")
    model, path = recognise(a), tmp_path / "s"
    stats(a, path, "fisher,kfac")
    grams, other = tmp_path / "grams", recognise(perturb(a, tmp_path / "b", 1e-6))
    stats(a, grams, "regmean")
    cases = [
        ([path], [model, model], ["fisher"], "1 statistics files for 2 models"),
        ([path, grams], [model, model], ["fisher"], r"grams: there is no fisher .* --kinds fisher,regmean"),
        ([grams], [model], ["kfac"], "there is no kfac"),
        ([path], [other], ["fisher"], "made for another model"),
    ]
    for paths, models, kinds, said in cases:
        with pytest.raises(IsomergeError, match=said):
            FusionStatistics.open(paths, models, kinds)
    key = "encoder.layer.0.output.dense.weight"
    block = next(b for b in model.blocks if b.key == key)
    broken = [
        ("fishers", lambda t: t[f"fisher/{key}"].fill_(torch.nan)),
        ("fishers", lambda t: t.update({f"fisher/{key}": t[f"fisher/{key}"][1:].clone()})),
        ("factors", lambda t: t.update({f"kfac/{key}": t[f"kfac/{key}"][1:].clone()})),
        ("factors", lambda t: t.update({f"gram/{key}:in": t[f"gram/{key}:in"][1:].clone()})),
    ]
    for number, (what, change) in enumerate(broken):
        bad = rewritten(path, tmp_path / f"bad{number}", change)
        opened = FusionStatistics.open([bad], [model], ["fisher", "kfac"])
        with pytest.raises(IsomergeError, match=f"bad{number}: .*{key}.* this file is damaged"):
            opened.given(what, block)
    bad = rewritten(path, tmp_path / "bad", header=lambda h: h["linears"].update({key: ["nowhere", 1]}))
    with pytest.raises(IsomergeError, match="list of linear layers does not fit"):
        FusionStatistics.open([bad], [model], ["kfac"]).grams(block)


@pytest.mark.parametrize("name", ["vit", "gpt2-untied", "llama"])
def test_older_and_newer_files_are_read(name: str, tmp_path: Path) -> None:
    """Files that do not list linear layers give the same Grams; kinds that nobody knows are left alone."""
    a = single(name, tmp_path / "a")
    model, path = recognise(a), tmp_path / "s"
    stats(a, path, "activations,regmean")

    def forget(header: dict[str, Any]) -> None:
        del header["linears"]

    def invent(tensors: dict[str, torch.Tensor]) -> None:
        tensors["sketch/of.something"] = torch.full((3,), torch.nan)

    old, new = rewritten(path, tmp_path / "old", header=forget), rewritten(path, tmp_path / "new", invent)
    now, then, later = (FusionStatistics.open([p], [model], ["regmean"]) for p in (path, old, new))
    checked = 0
    for block in model.blocks:
        one, two, three = (x.grams(block)[0] for x in (now, then, later))
        if two is not None:
            assert one is not None
            assert three is not None
            assert one.axis == two.axis == three.axis
            assert torch.equal(one.gram, two.gram)
            assert torch.equal(one.gram, three.gram)
            checked += 1
    assert checked >= 3 * (4 if name == "gpt2-untied" else 6)
    assert read_statistics(old, model).linears == read_statistics(path, model).linears
    assert read_statistics(new, model).grams.keys() == read_statistics(path, model).grams.keys()


def test_tied_tensors_share_a_fisher_until_they_part(tmp_path: Path) -> None:
    """Of a tied model with both tensors stored, one Fisher serves both; of one that was untied since, it serves
    none."""
    a = single("gpt2", tmp_path / "a")
    twice = untied(a, tmp_path / "twice")
    (twice / "config.json").write_text(json.dumps({**config_of(twice), "tie_word_embeddings": True}))
    model = recognise(twice)
    stats(twice, tmp_path / "s", "fisher")
    statistics = FusionStatistics.open([tmp_path / "s"], [model], ["fisher"])
    table, head = (next(b for b in model.blocks if b.key == key) for key in ("wte.weight", "lm_head.weight"))
    (one,), (two,) = statistics.fishers(table), statistics.fishers(head)
    assert one is not None
    assert torch.equal(one, two)
    stats(a, tmp_path / "t", "fisher")
    for model, count in ((recognise(a), 1), (recognise(a, untie=True), 0)):
        opened = FusionStatistics.open([tmp_path / "t"], [model], ["fisher"])
        found = [opened.fishers(b)[0] for b in model.blocks if b.key in ("wte.weight", "lm_head.weight")]
        assert sum(x is not None for x in found) == count
        assert opened.fishers(next(b for b in model.blocks if b.key == "wpe.weight"))[0] is not None


@pytest.mark.parametrize("parameter", ["fishers", "grams", "factors"])
def test_merges_from_moved_files_are_those_on_aligned_models(parameter: str, tmp_path: Path) -> None:
    """Statistics of a source as it was, moved with it, merge as statistics that are made of the aligned source."""
    a = single("llama-biased", tmp_path / "anchor", 5)
    b, moved, g = moved_twin("llama-biased", tmp_path, rotations=parameter != "fishers")
    kind, name = (
        STATISTICS[parameter],
        {"fishers": "fisher", "grams": "regmean", "factors": "fisher_kfac"}[parameter],
    )
    for folder, file in ((a, "1"), (b, "2"), (moved, "3")):
        stats(folder, tmp_path / file, kind, 16)
    models = [recognise(a), recognise(b)]
    files = FusionStatistics.open([tmp_path / "1", tmp_path / "2"], models, [kind], normalize=False)
    live = FusionStatistics.open(
        [tmp_path / "1", tmp_path / "3"], [models[0], recognise(moved)], [kind], normalize=False
    )
    files.check(parameter, models[0].blocks, [None, g])
    weights = [recognise(folder) for folder in (a, moved)]
    unlike = 0
    for block in models[0].blocks:
        tensors = [m.assemble(block, torch.float64) for m in weights]
        one = method(name).fuse(
            tensors, {"weight": [1.0, 2.0]}, statistics=files.given(parameter, block, [None, g])
        )
        two = method(name).fuse(tensors, {"weight": [1.0, 2.0]}, statistics=live.given(parameter, block))
        # statistics agree to 1e-5; solving with them multiplies this by the condition of factors of 100 tokens
        assert near(one, two) < 1e-3, block.key
        unlike += near(one, (tensors[0] + 2 * tensors[1]) / 3) > 0.05
    assert unlike >= 20


def test_norms_make_models_comparable(tmp_path: Path) -> None:
    """Fishers are divided by their norm over all parameters, unless they shall not be."""
    a = single("vit", tmp_path / "a")
    model = recognise(a)
    stats(a, tmp_path / "s", "fisher")
    found = FusionStatistics.open([tmp_path / "s"], [model], ["fisher"])
    total = sum(float(found.fishers(block)[0].square().sum()) for block in model.blocks)
    assert abs(total - 1) < 1e-5
    plain = FusionStatistics.open([tmp_path / "s"], [model], ["fisher"], normalize=False)
    ratios = [float(plain.fishers(b)[0].sum() / found.fishers(b)[0].sum()) for b in model.blocks[-6:]]
    assert max(ratios) - min(ratios) < 1e-6 * max(ratios)


def test_rotated_fishers_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    """`check` looks at all blocks of all models, and reads no tensor."""
    a = single("vit", tmp_path / "a")
    model, toy = recognise(a), load_toy("vit", a)
    stats(a, tmp_path / "s", "fisher,kfac")
    statistics = FusionStatistics.open([tmp_path / "s"] * 2, [model] * 2, ["fisher", "kfac"])
    rng = torch.Generator().manual_seed(0)
    turned, permuted = (random_alignment(toy.spec, toy.blocks, rng, n) for n in (["h", "qk"], ["h", "ff"]))
    statistics.check("fishers", model.blocks, [None, permuted])
    statistics.check("factors", model.blocks, [None, turned])
    with pytest.raises(IsomergeError, match=r"query.weight cannot follow the space qk \(GL\)"):
        statistics.check("fishers", model.blocks, [permuted, turned])


def test_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """--kinds and --fisher-labels reach the file, and the sentence says what is in it."""
    from isomerge.cli.app import main

    a = single("vit", tmp_path / "a")
    save_file(dict(examples_for(a, 3).tensors), tmp_path / "data.safetensors")
    out = tmp_path / "s.safetensors"
    given = ["stats", a, "--data", tmp_path / "data.safetensors", "--kinds", "fisher,kfac", "-o", out]
    monkeypatch.setattr("sys.argv", ["isomerge", *map(str, given), "--fisher-labels", "expected"])
    monkeypatch.setenv("COLUMNS", "200")
    with contextlib.suppress(SystemExit):
        main()
    said = capsys.readouterr()
    assert "regmean, fisher, kfac, from 3 examples" in said.out + said.err
    with safe_open(str(out), "pt") as file:
        assert json.loads(file.metadata()["isomerge"])["fisher"]["labels"] == "expected"
