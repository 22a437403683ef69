"""What a match is given beside weights: part of a run's key, checked before anything is read, in every form."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as tf
from safetensors.torch import load_file, save_file

import isomerge
from isomerge.errors import IsomergeError
from isomerge.models.recognised import recognise
from isomerge.observe.data.examples import Examples
from isomerge.observe.read_files import data_key
from isomerge.options import MatchingOptions
from isomerge.solve.match_checks import check_matching, matching_of
from isomerge.solve.match_inputs import inputs_key
from isomerge.solve.match_options import Matching
from isomerge.solve.pairs.solutions import load_places, save_places
from observe.data.checkpoints import picture, save_picture
from solve.disguises import single
from toy_settings import CAUSAL_OF_THREE
from toys import config_of, randomise

pytestmark = [
    pytest.mark.in_few_sweeps("how far streams of strangers settle does not matter here"),
    pytest.mark.matched("of layers: else strangers' streams are matched as well, and small changes not at all"),
]


def ids(seed: int, count: int = 12) -> torch.Tensor:
    """Random token ids."""
    return torch.randint(1, 60, (count, 9), generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two unrelated models; read only."""
    folder = tmp_path_factory.mktemp("pair")
    return single("llama", folder / "a", 0), single("llama", folder / "b", 1)


def test_data_are_part_of_the_key(pair: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other bytes under the same name, another tokenizer, another file in a folder: another run."""
    anchor = recognise(single("llama", tmp_path / "a"))
    file, folder = tmp_path / "x.safetensors", tmp_path / "texts"
    folder.mkdir()
    monkeypatch.chdir(tmp_path)
    keys = []

    def note() -> None:
        ways: list[dict[str, Any]] = [
            {"data": str(file)}, {"learn": str(folder)}, {"stats": (str(file), str(file))}, {"data": "mine:rows"},
        ]  # fmt: skip
        keys.append([inputs_key(Matching(**how), anchor) for how in ways])

    def write(seed: int) -> None:
        save_file({"input_ids": ids(seed)}, file)
        (folder / f"{seed}.txt").write_text("a b c")
        (tmp_path / "mine.py").write_text(f"def rows():\n    return [{seed}]\n")
        os.utime(file, (seed, seed))
        os.utime(tmp_path / "mine.py", (seed, seed))
        note()

    write(1)
    note()
    assert keys[0] == keys[1]
    write(2)
    assert all(one != two for one, two in zip(keys[1], keys[2], strict=True))
    (tmp_path / "a" / "tokenizer.json").write_text("{}")
    note()
    assert [one == two for one, two in zip(keys[2], keys[3], strict=True)] == [False, False, True, False]


def test_images_that_a_file_names_are_part_of_the_key(pair: tuple[Path, Path], tmp_path: Path) -> None:
    """The file that names them stays, an image changes: another run; who reads no images does not look for them."""
    seeing, reading = recognise(single("vit", tmp_path / "vit")), recognise(pair[0])
    (tmp_path / "texts").mkdir()
    table, lines = tmp_path / "x.csv", tmp_path / "texts" / "x.jsonl"
    table.write_text("image,label\nred.png,0\n")
    lines.write_text('{"image": "../red.png"}\n')

    def keys(model: Any) -> list[Any]:
        return [data_key(ref, model) for ref in (str(table), str(lines), tmp_path / "texts")]

    found = []
    for seed in (1, 2):
        save_picture(tmp_path / "red.png", picture(seed, channels=3))
        os.utime(tmp_path / "red.png", (seed, seed))
        found.append((keys(seeing), keys(seeing), keys(reading)))
    (one, again, texts), (two, _, later) = found
    assert one == again
    assert all(a != b for a, b in zip(one, two, strict=True))
    assert texts == later


def test_a_killed_run_with_other_data_begins_again(pair: tuple[Path, Path], tmp_path: Path) -> None:
    """What an interrupted run has found from data that have changed since is not taken."""
    a, b = pair
    file = tmp_path / "x.safetensors"

    def run(out: Path, **options: Any) -> dict[str, torch.Tensor]:
        isomerge.align(b, onto=a, out=out, data=str(file), evidence="activations", **options)
        return load_file(out / "model.safetensors")

    stopped = 0

    def at_writing(what: str, done: int, total: int) -> None:
        nonlocal stopped
        stopped += not what.startswith(("residual", "reading"))
        if stopped:
            raise KeyboardInterrupt

    save_file({"input_ids": ids(1)}, file)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "out", observer=at_writing)
    save_file({"input_ids": ids(2)}, file)
    os.utime(file, (5, 5))
    found, wanted = run(tmp_path / "out", overwrite=True), run(tmp_path / "fresh")
    assert all(torch.equal(found[k], wanted[k]) for k in wanted)


def test_examples_and_paths(pair: tuple[Path, Path], tmp_path: Path) -> None:
    """Data may be a name, a path or examples in memory."""
    a, b = pair
    file = tmp_path / "x.safetensors"
    save_file({"input_ids": ids(1)}, file)
    found = [
        isomerge.align(b, onto=a, data=data, limit=8)[0]
        for data in (str(file), file, Examples({"input_ids": ids(1)}, True))
    ]
    assert found[0].digest() == found[1].digest() == found[2].digest()
    assert isomerge.barrier(a, b, data=file, points=3, spaces="none")["lines"]
    with pytest.raises(IsomergeError, match="not a readable"):
        isomerge.align(b, onto=a, stats_src=tmp_path / "none", stats_anchor=tmp_path / "none")


def test_examples_need_no_folder(pair: tuple[Path, Path]) -> None:
    """Models in memory are matched on examples in memory as those on disk are."""
    data = Examples({"input_ids": ids(1)}, True)
    stored, loaded = list(pair), [(load_file(f / "model.safetensors"), config_of(f)) for f in pair]
    found = [
        isomerge.align(b, onto=a, data=data, spaces="default", functional=False)[0].digest()
        for a, b in (stored, loaded)
    ]
    assert found[0] == found[1]


def test_activations_need_no_head(tmp_path: Path) -> None:
    """A model that predicts nothing has activations all the same."""
    folders = []
    for seed in (0, 1):
        module = tf.LlamaModel(tf.LlamaConfig(**CAUSAL_OF_THREE))
        randomise(module, seed)
        module.save_pretrained(tmp_path / str(seed))
        folders.append(tmp_path / str(seed))
    save_file({"input_ids": ids(1)}, tmp_path / "x.safetensors")
    how = {"data": tmp_path / "x.safetensors", "evidence": "activations"}
    by_weights, by_data = (isomerge.align(folders[1], onto=folders[0], spaces="default", **w) for w in ({}, how))
    assert by_weights[0].digest() != by_data[0].digest()
    with pytest.raises(IsomergeError, match="LlamaModel predicts nothing"):
        isomerge.align(folders[1], onto=folders[0], learn=tmp_path / "x.safetensors", steps=1)


def test_statistics_are_checked_for_every_model_first(pair: tuple[Path, Path], tmp_path: Path) -> None:
    """The file of the last source is looked at before the first one is matched."""
    a, b = pair
    save_file({"input_ids": ids(1)}, tmp_path / "x.safetensors")
    files = [tmp_path / f"{k}.stats.safetensors" for k in range(3)]
    for model, file, rows in ((a, files[0], 64), (b, files[1], 64), (b, files[2], 32)):
        isomerge.stats(model, data=str(tmp_path / "x.safetensors"), out=file, rows=rows)
    seen: list[str] = []

    def merge(last: Path) -> None:
        isomerge.merge(
            [a, b, b], out=tmp_path / "out", stats_anchor=files[0], stats_src=[files[1], last],
            observer=lambda what, *_: seen.append(what),
        )  # fmt: skip

    for last, says in (
        (files[2], "rows that were chosen otherwise"),
        (tmp_path / "no", "not a readable"),
        (a / "model.safetensors", "not a stat"),
    ):
        with pytest.raises(IsomergeError, match=says):
            merge(last)
    assert not seen
    assert not (tmp_path / "out").exists()


def test_contradictions() -> None:
    """Options that would be ignored are refused."""
    for options, says in (
        ({"learn": "x", "batch_size": 0}, "--batch-size 0"),
        ({"learn": "x", "seed": -1}, "--seed -1"),
        ({"learn_permutations": True}, "--learn-permutations is for learning"),
        ({"gradient_checkpointing": True}, "--gradient-checkpointing is for learning"),
        ({"learn_target": "labels"}, "--learn-target is for learning"),
        ({"learn_effort": "thorough"}, "--learn-effort is for learning"),
        ({"batch_size": 8}, "--batch-size is for learning"),
        ({"precision": "bfloat16"}, "--precision is for learning"),
    ):
        with pytest.raises(IsomergeError, match=says):
            matching_of(MatchingOptions(**options))
    for options, spaces, says in (
        ({"evidence": "activations"}, "all", "--evidence activations .* add --data"),
        ({"data": "x"}, "paper-joint", "--spaces paper-joint is an algorithm of weights"),
        ({"data": "x", "rows": 0}, "all", "--rows 0: at least 1"),
        ({"data": "x", "search": float("nan")}, "all", "--search nan"),
        ({"learn": "x", "device": "abacus"}, "all", "--device abacus"),
    ):
        with pytest.raises(IsomergeError, match=says):
            check_matching(matching_of(MatchingOptions(**options)), 1, spaces)


def test_places_survive(pair: tuple[Path, Path], tmp_path: Path) -> None:
    """Streams and units are read back bit for bit, with the report."""
    from isomerge.models.unit_plan import make_plan
    from isomerge.solve.pairs.pair import PairSolver
    from isomerge.solve.pairs.stream_descent import StreamSolver

    one, two = map(recognise, pair)

    def solver() -> StreamSolver:
        return StreamSolver(
            PairSolver(one, two, make_plan(two, [one], "all"), torch.float32, guard=False), lambda *_: None
        )

    first, second = solver(), solver()
    first.solve(2)
    assert load_places(tmp_path / "p.safetensors", second) is None
    save_places(tmp_path / "p.safetensors", first, {"tried": 3})
    assert load_places(tmp_path / "p.safetensors", second) == {"tried": 3}
    assert first.alignment().digest() == second.alignment().digest()


def test_a_search_is_made_once(pair: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupted while learning after a search, a run goes on from where the search had come."""
    from isomerge.solve.pairs import solutions

    file, made = tmp_path / "x.safetensors", []
    save_file({"input_ids": ids(1, 16)}, file)
    real = solutions.search_forward
    monkeypatch.setattr(solutions, "search_forward", lambda *a, **k: made.append(k) or real(*a, **k))

    def run(observer: Any) -> Any:
        return isomerge.align(
            pair[1], onto=pair[0], out=tmp_path / "out", learn=file, learn_target="distill", search=0.3, steps=3,
            seed=7, observer=observer,
        )  # fmt: skip

    def killed(what: str, done: int, total: int) -> None:
        if what.startswith("learning"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(killed)
    report = run(lambda *_: None)[1]
    assert len(made) == 1
    assert made[0]["seed"] == 7
    assert report["streams"][0]["search"]["tried"] is not None
