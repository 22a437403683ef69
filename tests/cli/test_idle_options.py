"""No option is passed over in silence: what a run does not use is refused or noted, by every door, and changes no
byte."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import isomerge as library
from isomerge.doors import COMMANDS, request_of
from isomerge.doors import function_of as python_name
from isomerge.errors import IsomergeError
from isomerge.options.option import ALWAYS, Option
from isomerge.options.unused import note_idle, notes, noting, word_of

ALIGN = ("align", "b", "--onto", "a", "-o", "OUT")
AS_STORED = ("merge", "a", "b", "--no-align", "-o", "OUT")
STATS = ("stats", "a", "--data", "t.jsonl", "--kinds", "regmean", "-o", "OUT")
NOTED: dict[tuple[str, ...], dict[str, list[str]]] = {
    ALIGN: {
        "functional": ["--no-functional"], "limit": ["--limit", "3"], "length": ["--length", "9"], "rows": ["--rows", "9"],
        "seed": ["--seed", "3"],
    },
    (*ALIGN, "--spaces", "none"): {"layers": ["--layers", "0"]},
    ("merge", "a", "b", "--match", "git-rebasin", "-o", "OUT"): {"rows": ["--rows", "9"], "limit": ["--limit", "3"]},
    AS_STORED: {
        "spaces": ["--spaces", "ff"], "layers": ["--layers", "0"], "onto": ["--onto", "b"], "stats": ["--stats", "x", "--stats", "x"],
        "merge_base": ["--no-merge-base"], "functional": ["--no-functional"], "limit": ["--limit", "3"], "rows": ["--rows", "9"],
        "length": ["--length", "9"], "seed": ["--seed", "3"], "heads": ["--heads", "copy"],
    },
    STATS: {"rows": ["--rows", "9"], "dtype": ["--dtype", "float16"], "fisher_labels": ["--fisher-labels", "sampled"], "seed": ["--seed", "3"]},
    ("diff", "a", "b", "--spaces", "none"): {"layers": ["--layers", "0"]},
    ("canon", "own", "-o", "OUT"): {"untie": ["--untie"], "limit": ["--limit", "3"], "length": ["--length", "9"]},
    ("widen", "own", "--set", "hidden_size=60", "-o", "OUT"): {"untie": ["--untie"]},
    ("relational", "own", "-o", "OUT"): {"seed": ["--seed", "5"]},
}  # fmt: skip
"""By a command, the options that do nothing in it, all given at once."""
WORDS = {
    "stats_src": ["--stats-src", "x"], "stats_anchor": ["--stats-anchor", "x"], "evidence": ["--evidence", "weights"],
    "search": ["--search", "1"], "input_metric": ["--input-metric"], "steps": ["--steps", "3"],
    "learn_permutations": ["--learn-permutations"], "batch_size": ["--batch-size", "3"], "precision": ["--precision", "bfloat16"],
    "gradient_checkpointing": ["--gradient-checkpointing"], "learn_target": ["--learn-target", "distill"],
    "learn_effort": ["--learn-effort", "thorough"], "transport": ["--transport", "heads=within"], "address": ["--address", "auto"],
}  # fmt: skip
REFUSES: dict[tuple[str, ...], dict[str, list[str]]] = {
    ALIGN: WORDS,
    (*ALIGN, "--match", "git-rebasin"): {"data": ["--data", "t.jsonl"], "evidence": ["--evidence", "weights"]},
    ("merge", "a", "b", "-o", "OUT"): {
        **WORDS, "weights": ["--weights", "1,2", "--method", "karcher"], "parameters": ["-p", "zzz=1"],
        "source_bases": ["--source-base", "a"], "select_layers": ["--select-layers", "validation"],
    },
    AS_STORED: {
        "learn": ["--learn", "t.jsonl"], "match": ["--match", "git-rebasin"],
        "anchor": ["--anchor", "none"],
    },
    ("canon", "a", "-o", "OUT"): {"data": ["--data", "t.jsonl"]},
    ("barrier", "a", "b", "--data", "t.jsonl"): {"grid": ["--grid", "5"]},
    ("barrier", "a", "b", "c", "--data", "t.jsonl", "--dry-run"): {"points": ["--points", "5"], "aligned": ["--aligned", "b"]},
}  # fmt: skip
"""By a command, the options that contradict it, each alone."""
DIRECT: dict[tuple[str, str], tuple[dict[str, Any], Any]] = {
    ("merge", "device"): ({"align": False}, "cuda"),
    ("merge", "evidence"): ({"match": "ot-acts"}, "weights"),
    ("merge", "data"): ({"evidence": "weights"}, "x"),
    ("align", "data"): ({"evidence": "weights"}, "x"),
    ("discover", "overwrite"): ({}, True),
    ("merge_lora", "density"): ({"method": "svd"}, 0.5),
    ("merge_lora", "rank"): ({"method": "cat"}, 3),
    ("merge_lora", "majority_sign"): ({"method": "linear"}, "frequency"),
    ("merge_lora", "seed"): ({"method": "svd"}, 3),
    ("task_mask", "tall_lambda"): ({"kind": "emr"}, 0.3),
    ("transplant_tokenizer", "limit"): ({"out": "x"}, 3),
    ("tune", "rate"): ({"sampler": "tpe"}, 0.5),
    ("tune", "judge_share"): ({"judge_data": "x"}, 0.2),
    ("tune", "length"): ({"tasks": ["x"]}, 9),
    ("prove", "inputs"): ({"model": "x"}, (1,)),
    ("prove", "forward"): ({"model": "x"}, print),
    **{("report", name): ({}, 3) for name in ("points", "limit", "length", "batch_size", "device", "allow_pickle")},
    **{
        (f, name): ({}, "x")
        for f in ("align", "canon", "merge", "tune", "apply", "widen", "transplant_tokenizer", "layershuffle")
        for name in ("out_shard_size", "dtype", "overwrite", "push_to_hub", "private")
    },
}
"""Where the command line has no such case, or it would need a device: what else is asked for, and a value."""
ELSEWHERE = {
    *(("align", "untie"), ("apply", "untie"), ("merge", "untie")),  # as of canon: where models are opened
    *(("align", name) for name in ("match", "learn", "device", "spaces")),  # as of merge: it always matches
    ("diff", "spaces"),
    ("merge", "intermediate_dir"),  # tests/cli/test_recipe_steps.py
    ("merge", "tokenizer_source"),  # tests/checkpoint/test_vocabulary.py
    ("transplant_tokenizer", "neighbours"),  # tests/models/test_token_vectors.py
    *(("generate", "length"), ("generate", "batch_size"), ("stats", "length"), ("barrier", "length")),  # below
    ("evaluate", "length"),  # as of barrier
    # tests/run/test_live_texts.py, tests/run/test_own_modules.py
    *((function, name) for function in ("align", "merge", "barrier", "evaluate") for name in ("loss", "tokenizer")),
    ("stats", "tokenizer"),
    ("surgery", "length"),
    ("surgery", "tokenizer"),
    ("layershuffle", "address"),  # as of merge
    *(("tune", name) for name in ("layer_groups", "task_path", "address")),  # tests/cli/test_tune.py, as of barrier and merge
}  # fmt: skip


def function_of(words: tuple[str, ...]) -> str:
    return python_name(words[0])


def declared(function: str) -> dict[str, Option]:
    """The options of a function, by name."""
    command = next(name for name in COMMANDS if python_name(name) == function)
    return {name: about for name, (_, about) in request_of(command).declared().items()}


def word(function: str, name: str, value: Any = None) -> str:
    """How the command line writes an option."""
    return f"--{word_of(name, declared(function)[name], value)}"


def test_every_entry_is_tried() -> None:
    """All that do not act always, where they cannot."""
    tried = {
        (function_of(words), name)
        for case in (NOTED, REFUSES)
        for words, options in case.items()
        for name in options
    }
    wanted = {
        (python_name(command), name)
        for command in COMMANDS
        for name, about in declared(python_name(command)).items()
        if about.acts != ALWAYS
    }
    assert wanted - tried - DIRECT.keys() - ELSEWHERE == set()


@pytest.fixture(scope="module")
def place(stored: Callable, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models, data, and a model with a head of its own."""
    root = tmp_path_factory.mktemp("idle")
    for name, toy, seed in (("a", "gpt2", 0), ("b", "gpt2", 5), ("c", "gpt2", 6), ("own", "llama", 0)):
        (root / name).symlink_to(stored(toy, seed))
    (root / "t.jsonl").write_text('{"input_ids": [1, 2, 3, 4]}\n{"input_ids": [4, 3, 2, 1]}\n')
    return root


def run(
    isomerge: Callable, words: tuple[str, ...], out: Path, more: list[str]
) -> tuple[Any, bytes, dict[str, Any]]:
    """What a command says, the tensors that it writes, and its report."""
    report = out.with_suffix(".json")
    said = isomerge(*[str(out) if word == "OUT" else word for word in words], *more, "--json", report)
    file = out if out.is_file() else out / "model.safetensors"
    found = json.loads(report.read_text()) if said.code == 0 else {}
    return said, file.read_bytes() if file.is_file() else b"", found


@pytest.mark.parametrize("words", NOTED, ids=" ".join)
def test_what_is_not_used_is_noted(
    words: tuple[str, ...], place: Path, isomerge: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On stderr and in the JSON, and the output is what it is without."""
    monkeypatch.chdir(place)
    options = NOTED[words]
    plain, before, report = run(isomerge, words, tmp_path / "plain", [])
    said, after, told = run(
        isomerge, words, tmp_path / "out", [word for option in options.values() for word in option]
    )
    assert (plain.code, said.code) == (0, 0), said.err
    assert "is not used" not in plain.err + json.dumps(report)
    for name in options:
        text = f"{word(function_of(words), name, False if options[name][0].startswith('--no-') else None)} is not used: "
        assert f"note: {text}" in said.err
        assert [note for note in told["notes"] if note.startswith(text)]
    assert said.err.count("is not used") == len(options)
    assert len([note for note in told["notes"] if "is not used" in note]) == len(options)
    assert before == after


@pytest.mark.parametrize("words", REFUSES, ids=" ".join)
def test_what_contradicts_is_refused(
    words: tuple[str, ...], place: Path, isomerge: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything is computed."""
    monkeypatch.chdir(place)
    for option in REFUSES[words].values():
        said, written, _ = run(isomerge, words, tmp_path / "out", option)
        assert (said.code, said.out, written) == (2, "", b""), (option, said)


@pytest.mark.parametrize(("function", "name"), DIRECT)
def test_what_a_door_knows(function: str, name: str) -> None:
    """Of the table alone: one note where it does nothing, none where it is as by default."""
    more, value = DIRECT[function, name]
    request = request_of(next(command for command in COMMANDS if python_name(command) == function))
    defaults = request.defaults()
    for given, count in ((value, 1), (defaults.get(name), 0)):
        with noting():
            note_idle(request, {**defaults, "out": None, **more, name: given}, defaults)
            assert sum(f"{word(function, name)} is" in text for text in notes()) == count


def test_data_beside_a_match_that_reads_none_are_refused_in_python(place: Path, tmp_path: Path) -> None:
    """As on the command line; and a method that reads them is no contradiction."""
    with pytest.raises(IsomergeError, match=r"match='git-rebasin'.* reads no data"):
        library.align(place / "b", onto=place / "a", match="git-rebasin", data=place / "t.jsonl")
    with noting():
        defaults = request_of("merge").defaults()
        given = {**defaults, "match": "git-rebasin", "data": "x", "method_reads": True}
        note_idle(request_of("merge"), given, defaults)
        assert notes() == []


def test_a_recipe_is_a_door(
    place: Path, tmp_path: Path, isomerge: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its keys are noted as well, in Python, on the command line, and in a dry run."""
    monkeypatch.chdir(place)
    block = "{enabled: false, layers: '0', seed: 3, rows: 9, merge_base: false}"
    (tmp_path / "r.yml").write_text(f"models: [{{model: a}}, {{model: b}}]\nmerge_method: linear\nalign: {block}\n")
    wanted = {f"`align.{name}` is not used" for name in ("layers", "seed", "rows", "merge_base")}
    report = library.merge(tmp_path / "r.yml", out=tmp_path / "out")
    stored = json.loads((tmp_path / "out" / "isomerge.json").read_text())
    for found in (report["notes"], stored["notes"]):
        assert {note.partition(":")[0] for note in found if "is not used" in note} == wanted
    said = isomerge("merge", tmp_path / "r.yml", tmp_path / "x", "--dry-run", "--json", tmp_path / "d.json")
    assert said.err.count("is not used") == len(wanted)
    assert len(
        [note for note in json.loads((tmp_path / "d.json").read_text())["notes"] if "is not used" in note]
    ) == len(wanted)


def test_where_there_is_no_report_python_warns(place: Path, tmp_path: Path) -> None:
    """And one door within another does not tell twice."""
    library.merge([place / "a", place / "b"], out=tmp_path / "out", align=False)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        library.report(tmp_path / "out", points=5)
    assert [str(w.message) for w in told if "is not used" in str(w.message)] == [
        "--points is not used: nothing is measured without --data"
    ]


def test_tokens_of_images_are_noted(
    place: Path, tmp_path: Path, stored: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever reads them, and whoever makes them."""
    import torch

    from isomerge.observe.data.examples import Examples
    from isomerge.solve import match_inputs

    images = Examples({"pixel_values": torch.zeros(1, 3, 8, 8)}, labelled=False)
    monkeypatch.setattr("isomerge.observe.data.opening_data.open_data", lambda *_, **__: images)
    for length, count in ((9, 1), (128, 0)):
        with noting():
            match_inputs.data_for(library.open(place / "a"), "x", length=length)
            assert len(notes()) == count
    report = library.generate([stored("vit", 0)], out=tmp_path / "n.safetensors", limit=2, length=9, batch_size=3)
    assert [note.partition(" ")[0] for note in report["notes"]] == ["--length", "--batch-size"]
