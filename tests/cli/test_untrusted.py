"""Files that nobody vouches for, given to the program: one sentence that names the file, exit code 2, and nothing
written.

Headers are in tests/checkpoint/test_safetensors_header.py, damaged checkpoints and patches in test_bad_input.py.
Several cases here were found by `python -m benchmarks.fuzz`.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from isomerge.checkpoint.document import MAX_VALUES
from raw_files import raw_safetensors

DEEP = "[" * 200_000


def many(count: int) -> str:
    """A document of a great many values, which would become a hundred times as many bytes of objects."""
    return '{"a": [' + "[]," * count + "1]}"


BOMBS: dict[str, str] = {
    "deep": DEEP,
    "deep objects": '{"a":' * 200_000,
    "many values": many(MAX_VALUES),
    "digits": '{"a": ' + "9" * 100_000 + "}",
    "not an object": "[1]",
}


@pytest.mark.parametrize("kind", BOMBS)
@pytest.mark.parametrize(
    "file",
    ["config.json", "model.safetensors.index.json", "isomerge.json", "barrier.json", "adapter/adapter_config.json"],
)
def test_json_bombs(
    kind: str, file: str, copies: Callable, isomerge: Callable, refuses: Callable, tmp_path: Path
) -> None:
    """In every JSON file that is read whole."""
    a, _ = copies("gpt2")
    commands: dict[str, list[Any]] = {
        "isomerge.json": ["fsck", a],
        "barrier.json": ["report", a, "--barrier", a / file],
        "adapter/adapter_config.json": ["inspect", f"{a}+{a / 'adapter'}"],
    }
    if file == "barrier.json":
        out = tmp_path / "merged"
        isomerge("merge", a, a, "-o", out, "-q")
        commands[file][1] = out
    if file.endswith("index.json"):
        (a / "model.safetensors").rename(a / "model-1.safetensors")
    (a / file).parent.mkdir(exist_ok=True)
    (a / file).write_text(BOMBS[kind])
    refuses(*commands.get(file, ["inspect", a]), words=[Path(file).name])


def test_many_values_in_a_header(copies: Callable, refuses: Callable) -> None:
    """Below the bound on bytes, beyond that on values."""
    a, _ = copies("gpt2")
    (a / "model.safetensors").write_bytes(raw_safetensors(many(MAX_VALUES).encode()))
    refuses("inspect", a, words=["model.safetensors", "values"])


def renamed(folder: Path, name: str) -> None:
    """A tensor more, of a hostile name."""
    file = folder / "model.safetensors"
    tensors = load_file(file)
    save_file({**tensors, name: torch.zeros(2)}, file)


@pytest.mark.parametrize("name", ["a\x1b[2Jb", "a\nb", "a\rb", "x\u202ey", "\x9b31m", "a\x7f"])
def test_names_of_tensors_reach_no_terminal(name: str, copies: Callable, refuses: Callable) -> None:
    """Escape sequences, line breaks and reversals are shown as escapes."""
    a, b = copies("gpt2")
    renamed(a, name)
    said = refuses("merge", a, b, "-o", a.parent / "out", words=["is not described"])
    assert name.encode("unicode_escape").decode() in said


def test_names_of_folders_reach_no_terminal(stored: Callable, isomerge: Callable, tmp_path: Path) -> None:
    """Also in what is no error."""
    hostile = Path(shutil.copytree(stored("gpt2", 0), tmp_path / "a\x1b[31mred"))
    for arguments in (["inspect", hostile, "-v"], ["diff", hostile, stored("gpt2", 5)]):
        said = isomerge(*arguments)
        assert said.code == 0
        assert "\x1b" not in said.out + said.err
    assert "a\\x1b[31mred" in isomerge("inspect", hostile).out


@pytest.mark.parametrize("target", ["../secret", "/etc/hostname"])
def test_links_out_of_the_folder(target: str, copies: Callable, refuses: Callable, tmp_path: Path) -> None:
    """What a companion file leads to would be published with the output."""
    a, b = copies("gpt2")
    (tmp_path / "secret").write_text("password")
    (a / "vocab.json").symlink_to(target)
    refuses("merge", a, b, "-o", tmp_path / "out", words=["vocab.json", "link"])


def test_links_of_the_hub_s_cache(copies: Callable, isomerge: Callable, tmp_path: Path) -> None:
    """There every file is a link to a blob of the same repository."""
    a, b = copies("gpt2")
    repo = tmp_path / "models--org--a"
    (repo / "snapshots").mkdir(parents=True)
    (repo / "blobs").mkdir()
    shutil.move(a, repo / "snapshots" / "abc")
    for number, file in enumerate(sorted((repo / "snapshots" / "abc").iterdir())):
        file.rename(repo / "blobs" / str(number))
        file.symlink_to(f"../../blobs/{number}")
    (repo / "blobs" / "tok").write_text("{}")
    (repo / "snapshots" / "abc" / "vocab.json").symlink_to("../../blobs/tok")
    out = tmp_path / "out"
    assert isomerge("merge", repo / "snapshots" / "abc", b, "-o", out, "-q").code == 0
    assert (out / "vocab.json").read_text() == "{}"
    assert not (out / "vocab.json").is_symlink()


@pytest.mark.parametrize("name", ["x" * 300 + ".safetensors", "a/../../x.safetensors", "/x.safetensors"])
def test_index_entries(name: str, copies: Callable, refuses: Callable) -> None:
    """Names that file systems do not take, and paths."""
    a, _ = copies("gpt2")
    (a / "model.safetensors").rename(a / "model-1.safetensors")
    (a / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"x": name}}))
    refuses("inspect", a, words=["model.safetensors.index.json", "plain name"])


def test_remote_code_is_not_run(copies: Callable, isomerge: Callable, tmp_path: Path) -> None:
    """A config that names code in its folder: it travels, and nothing imports it, not even to compare outputs."""
    a, b = copies("gpt2")
    for folder in (a, b):
        (folder / "evil.py").write_text(f"open({str(tmp_path / 'hacked')!r}, 'w')\nclass C: pass\n")
        config = json.loads((folder / "config.json").read_text())
        auto = dict.fromkeys(("AutoConfig", "AutoModel", "AutoModelForCausalLM"), "evil.C")
        (folder / "config.json").write_text(json.dumps({**config, "auto_map": auto}))
    assert isomerge("merge", a, b, "-o", tmp_path / "out", "-q").code == 0
    assert isomerge("verify", a, a, "--run", "-q").code == 0
    assert not (tmp_path / "hacked").exists()
    assert (tmp_path / "out" / "evil.py").read_bytes() == (a / "evil.py").read_bytes()


PATTERNS: dict[str, Any] = {
    "exponential": {"(a+)+$": 2},
    "exponential without groups": {"a?" * 30 + "a" * 30: 2},
    "alternatives": {"(a|a)*": 2},
    "long": {"a" * 501: 2},
    "no expression": {"(": 2},
    "many": {str(k): 2 for k in range(1001)},
    "list": ["a"],
}


@pytest.mark.parametrize("kind", PATTERNS)
def test_patterns_of_adapters(kind: str, stored: Callable, refuses: Callable, tmp_path: Path) -> None:
    """Regular expressions of a file that could take for ever."""
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    module = "base_model.model.transformer.h.0." + "a" * 60
    halves = {f"{module}.lora_A.weight": torch.zeros(2, 48), f"{module}.lora_B.weight": torch.zeros(48, 2)}
    save_file(halves, adapter / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 2, "rank_pattern": PATTERNS[kind]}
    (adapter / "adapter_config.json").write_text(json.dumps(config))
    refuses("inspect", f"{stored('gpt2', 0)}+{adapter}", words=["adapter_config.json", "rank_pattern"])


RECORDS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "deep": lambda h: DEEP,
    "space without indices": lambda h: h["spaces"].update(qk=["GL"]),
    "space is a number": lambda h: h["spaces"].update(qk=0.5),
    "group is a list": lambda h: h["spaces"].update(qk=[["GL"], []]),
    "index is a number": lambda h: h["spaces"].update(qk=["GL", [1]]),
}


@pytest.mark.parametrize("kind", RECORDS)
def test_records_of_patches(kind: str, stored: Callable, refuses: Callable, tmp_path: Path) -> None:
    """The record of a patch file with values of other kinds."""
    from safetensors import safe_open

    import isomerge

    path = tmp_path / "patch.safetensors"
    isomerge.align(stored("gpt2", 5), onto=stored("gpt2", 0))[0].save(path)
    with safe_open(path, "pt") as file:
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        record = json.loads(file.metadata()["isomerge"])
    text = RECORDS[kind](record)
    save_file(tensors, path, metadata={"isomerge": text if isinstance(text, str) else json.dumps(record)})
    refuses("apply", path, stored("gpt2", 5), "-o", tmp_path / "out", words=["patch.safetensors"])


@pytest.mark.parametrize("kinds", [True, "GPT2LMHeadModel", [1], {"a": 1}])
def test_architectures_of_another_kind(kinds: Any, copies: Callable, refuses: Callable) -> None:
    """Where a list of class names belongs."""
    a, _ = copies("gpt2")
    config = json.loads((a / "config.json").read_text())
    (a / "config.json").write_text(json.dumps({**config, "architectures": kinds}))
    refuses("inspect", a, words=["config.json", "architectures"])


def test_weights_whose_products_overflow(copies: Callable, refuses: Callable) -> None:
    """Finite numbers, products that are not."""
    a, b = copies("gpt2")
    tensors = load_file(b / "model.safetensors")
    save_file({name: torch.full_like(t, 3e38) for name, t in tensors.items()}, b / "model.safetensors")
    refuses("diff", a, b, words=["overflow"])


def test_pipes_are_not_waited_for(copies: Callable, refuses: Callable) -> None:
    """A named pipe in the place of a file of weights."""
    a, _ = copies("gpt2")
    (a / "model.safetensors").unlink()
    os.mkfifo(a / "model.safetensors")
    refuses("inspect", a, words=["no weights"])


def test_colours_of_figures_beyond_all_scales() -> None:
    """A report's distances may be as small and as large as numbers are."""
    from isomerge.evidence.report.svg import STEPS, step_of

    assert step_of(1e308, 1e-320) == STEPS - 1
    assert step_of(0.5, 1.0) == STEPS // 2


@pytest.mark.parametrize("models", [[], ["a"], ["a", "b", "c"], "ab", {"a": 1, "b": 2}])
def test_lines_between_other_numbers_of_models(models: Any) -> None:
    """A line is between two; found by the fuzzer, which gave one and three."""
    from isomerge.errors import IsomergeError
    from isomerge.evidence.report.loss_facts import losses_of

    line = {
        "name": "as stored",
        "points": [0, 1],
        "losses": [1, 1],
        "accuracies": [1, 1],
        "barrier": {"entezari": 0},
    }
    report = {"command": "barrier", "models": ["a", "b"], "data": {"examples": 1}, "lines": [line]}
    assert losses_of(report).models == ("a", "b")
    with pytest.raises(IsomergeError, match="two models"):
        losses_of({**report, "models": models})


@pytest.mark.parametrize("examples", [float("inf"), float("nan"), "many", None])
def test_counts_that_are_none(examples: Any) -> None:
    """JSON of Python has infinities."""
    from isomerge.errors import IsomergeError
    from isomerge.evidence.report.loss_facts import losses_of

    with pytest.raises(IsomergeError, match="is damaged"):
        losses_of({"command": "barrier", "models": ["a", "b"], "data": {"examples": examples}})
