"""fsck: an untouched output is sound, and every kind of damage is told by the file that has it."""

from __future__ import annotations

import json
import os
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import isomerge
from isomerge.errors import IsomergeError
from isomerge.run.report_file import is_as_written, signed
from solve.disguises import single


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with models ``a`` and ``b`` and their merge ``out``, in shards."""
    folder = tmp_path_factory.mktemp("fsck")
    a, b = single("bert", folder / "a"), single("bert", folder / "b", 5)
    (a / "vocab.txt").write_text("one\ntwo\n")
    isomerge.merge([a, b], out=folder / "out", out_shard_size=60_000)
    return folder


@pytest.fixture
def out(made: Path, tmp_path: Path) -> Path:
    """A copy of the output, to be damaged."""
    return Path(shutil.copytree(made / "out", tmp_path / "out"))


def report_of(out: Path) -> dict[str, Any]:
    return json.loads((out / "isomerge.json").read_text())


def shards(out: Path) -> list[Path]:
    found = sorted(out.glob("model-*.safetensors"))
    assert len(found) > 2
    return found


def test_checksums_are_those_of_the_files(made: Path) -> None:
    """All files but the report, by the library's CRC-32; the inputs' as well, though they were read in pieces."""
    report = report_of(made / "out")
    names = {p.name for p in (made / "out").iterdir()} - {"isomerge.json"}
    assert report["files"].keys() == names
    rows = [*((made / "out" / n, e) for n, e in report["files"].items())]
    rows += [(Path(row["model"]) / row["file"], row) for row in report["inputs"]]
    assert {path.name for path, _ in rows[len(names) :]} == {"model.safetensors", "config.json"}
    for path, entry in rows:
        raw = path.read_bytes()
        assert (entry["bytes"], entry["crc32"]) == (len(raw), f"{zlib.crc32(raw):08x}")


def test_an_untouched_output_is_sound(made: Path) -> None:
    """Nothing to say, and all inputs are unchanged."""
    seen: list[tuple[int, int]] = []
    found = isomerge.fsck(made / "out", observer=lambda what, done, total: seen.append((done, total)))
    assert found["sound"]
    assert found["problems"] == found["strangers"] == []
    assert {row["state"] for row in found["files"]} == {"ok"}
    assert {row["state"] for row in found["inputs"]} == {"unchanged"}
    assert len(found["inputs"]) == 4
    assert seen[-1][0] == seen[-1][1] == sum(row["bytes"] for row in found["files"])


@pytest.mark.parametrize("command", ["align", "apply", "canon", "merge --heads separate"])
def test_every_command_s_output(command: str, made: Path, tmp_path: Path) -> None:
    """What the others write is checked likewise; separate heads are linked under more names."""
    a, b, to = made / "a", made / "b", tmp_path / "out"
    if command == "align":
        isomerge.align(b, onto=a, out=to)
    elif command == "apply":
        isomerge.apply(made / "out" / "alignment.safetensors", b, out=to)
    elif command == "canon":
        isomerge.canon(a, out=to)
    else:
        one, two = single("bert-relu", tmp_path / "a"), single("bert-relu", tmp_path / "b", 5)
        isomerge.merge([one, two], out=to, heads="separate")
    found = isomerge.fsck(to)
    assert found["sound"], found["problems"]
    if "separate" in command:
        assert any("/" in row["file"] and row["file"].endswith(".safetensors") for row in found["files"])


def flip(path: Path, at: int) -> None:
    """One bit of a file."""
    raw = bytearray(path.read_bytes())
    raw[at] ^= 16
    path.write_bytes(raw)


def rewrite(out: Path, name: str, content: bytes) -> None:
    """Another content with a checksum to match: only a look inside can tell."""
    (out / name).write_bytes(content)
    report = report_of(out)
    report["files"][name] = {"bytes": len(content), "crc32": f"{zlib.crc32(content):08x}"}
    (out / "isomerge.json").write_bytes(signed(report)[0])


def retensor(out: Path, change: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    """Other tensors in a shard, with a checksum to match."""
    file = shards(out)[0]
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file, metadata={"format": "pt"})
    rewrite(out, file.name, file.read_bytes())


def shorten(tensors: dict[str, torch.Tensor]) -> None:
    name = next(iter(tensors))
    tensors[name] = tensors[name][:-1].clone()


def edit_json(out: Path, name: str, change: Callable[[Any], Any]) -> None:
    document = json.loads((out / name).read_text())
    change(document)
    rewrite(out, name, json.dumps(document).encode())


def first_float(tensors: dict[str, torch.Tensor]) -> torch.Tensor:
    return next(t for t in tensors.values() if t.is_floating_point() and t.numel())


DAMAGE: dict[str, tuple[Callable[[Path], Any], str, str]] = {
    "a bit of a tensor": (lambda o: flip(shards(o)[0], -3), "model-00001", "checksum"),
    "a bit of a header": (lambda o: flip(shards(o)[0], 40), "model-00001", ""),
    "truncated": (lambda o: os.truncate(shards(o)[1], 500), "model-00002", "truncated"),
    "longer": (lambda o: shards(o)[1].open("ab").write(b"\0"), "model-00002", "longer"),
    "missing shard": (lambda o: shards(o)[0].unlink(), "model-00001", "missing"),
    "missing card": (lambda o: (o / "README.md").unlink(), "README.md", "missing"),
    "other vocabulary": (lambda o: (o / "vocab.txt").write_text("one\nTwo\n"), "vocab.txt", "checksum"),
    "a link to nothing": (lambda o: relink(o / "vocab.txt", "nowhere"), "vocab.txt", "failed"),
    "a pipe": (lambda o: pipe(o / "vocab.txt"), "vocab.txt", "regular file"),
    "NaN": (
        lambda o: retensor(o, lambda t: first_float(t).view(-1)[-1:].fill_(float("nan"))),
        "model-00001",
        "NaN",
    ),
    "infinite": (
        lambda o: retensor(o, lambda t: first_float(t).view(-1)[:1].fill_(float("inf"))),
        "model-00001",
        "NaN",
    ),
    "lost tensor": (lambda o: retensor(o, lambda t: t.pop(next(iter(t)))), "config.json", "lacks it"),
    "other shape": (lambda o: retensor(o, shorten), "config.json", "has length 47"),
    "other sizes": (lambda o: edit_json(o, "config.json", lambda c: c.update(hidden_size=60)), "config.json", ""),
    "index": (
        lambda o: edit_json(o, "model.safetensors.index.json", lambda i: i["weight_map"].popitem()),
        "config.json",
        "place",
    ),
    "weights in their place": (
        lambda o: shutil.copy(shards(o)[0], o / "model.safetensors"),
        "model.safetensors",
        "remove it",
    ),
    "an adapter beside them": (
        lambda o: (o / "adapter_config.json").write_text("{}"),
        "adapter_config.json",
        "remove it",
    ),
}


def relink(path: Path, target: str) -> None:
    path.unlink()
    path.symlink_to(target)


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_is_told(kind: str, out: Path) -> None:
    """By the name of the file, and by what is wrong with it."""
    damage, file, words = DAMAGE[kind]
    assert isomerge.fsck(out)["sound"]
    damage(out)
    found = isomerge.fsck(out)
    assert not found["sound"]
    told = [p["problem"] for p in found["problems"] if file in p["file"] or file in p["problem"]]
    assert any(words in text for text in told), found["problems"]
    assert all("\n" not in p["problem"] for p in found["problems"])


def test_a_report_that_was_edited(out: Path) -> None:
    """By a byte, a text that looks like its digest, another layout; or its digest was taken out."""
    file = out / "isomerge.json"
    raw = file.read_bytes()
    assert isomerge.fsck(out)["report"] == "ok"
    line = next(line for line in raw.splitlines(keepends=True) if line.startswith(b'  "digest": "'))
    report = json.loads(raw)
    edits = (
        raw.replace(b'"command": "merge"', b'"command": "align"'),
        raw + b"\n",
        raw.replace(line, line * 2),
        raw.replace(line, b'  "digest": "0",\n'),
        raw.replace(line, b""),
        json.dumps({**report, "models": ["meta/one", "meta/two"]}).encode(),
        json.dumps({**report, "models": ["meta/one", "meta/two"]}, indent=4, sort_keys=True).encode(),
    )
    for edited in edits:
        assert edited != raw
        file.write_bytes(edited)
        assert not is_as_written(edited)
        if edited.count(b'"digest"') <= 1:
            checked = isomerge.fsck(out)
            assert [p["file"] for p in checked["problems"]] == ["isomerge.json"]
            assert (checked["sound"], checked["report"]) == (False, "changed")


def test_weights_of_diffusers_are_looked_into(toy: Callable, tmp_path: Path) -> None:
    """They have names of their own: shapes are compared with the config, and files that would be loaded are
    told."""
    isomerge.merge([toy("flux").folder] * 2, out=tmp_path / "out", align=False)
    out = tmp_path / "out"
    shutil.copy(out / "diffusion_pytorch_model.safetensors", out / "diffusion_pytorch_model.bin")
    assert [p["problem"][-9:] for p in isomerge.fsck(out)["problems"]] == ["remove it"]
    (out / "diffusion_pytorch_model.bin").unlink()
    tensors = load_file(out / "diffusion_pytorch_model.safetensors")
    shorten(tensors)
    save_file(tensors, out / "diffusion_pytorch_model.safetensors", metadata={"format": "pt"})
    rewrite(out, "diffusion_pytorch_model.safetensors", (out / "diffusion_pytorch_model.safetensors").read_bytes())
    assert [p["file"] for p in isomerge.fsck(out)["problems"]] == ["config.json"]


def test_other_files_are_told_but_no_problem(out: Path) -> None:
    """What people put beside a model changes nothing of it."""
    (out / "report.html").write_text("<html>")
    (out / ".gitattributes").write_text("*.safetensors filter=lfs")
    found = isomerge.fsck(out)
    assert found["sound"]
    assert found["strangers"] == [".gitattributes", "report.html"]


def test_inputs_that_changed_or_went(tmp_path: Path) -> None:
    """The output stays sound, and each input has its state."""
    a, b, to = single("gpt2", tmp_path / "a"), single("gpt2", tmp_path / "b", 5), tmp_path / "out"
    isomerge.merge([a, b], out=to)
    flip(a / "model.safetensors", -1)
    shutil.rmtree(b)
    found = isomerge.fsck(to)
    assert found["sound"]
    states = {(Path(row["model"]).name, row["file"]): row["state"] for row in found["inputs"]}
    assert states == {
        ("a", "model.safetensors"): "changed",
        ("a", "config.json"): "unchanged",
        ("b", "model.safetensors"): "absent",
        ("b", "config.json"): "absent",
    }


def test_adapters_are_inputs(made: Path, tmp_path: Path) -> None:
    """Of model+adapter both are listed, each under its own name."""
    isomerge.extract_lora(made / "b", made / "a", out=tmp_path / "adapter", rank=4)
    ref = f"{made / 'a'}+{tmp_path / 'adapter'}"
    isomerge.merge([made / "a", ref], out=tmp_path / "out")
    rows = {(row["model"], row["file"]) for row in report_of(tmp_path / "out")["inputs"]}
    assert (str(tmp_path / "adapter"), "adapter_model.safetensors") in rows
    assert (str(made / "a"), "model.safetensors") in rows
    assert {row["state"] for row in isomerge.fsck(tmp_path / "out")["inputs"]} == {"unchanged"}
    flip(tmp_path / "adapter" / "adapter_model.safetensors", -1)
    states = {row["file"]: row["state"] for row in isomerge.fsck(tmp_path / "out")["inputs"]}
    assert states["adapter_model.safetensors"] == "changed"


def test_inputs_of_slices_are_there(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of models that are sliced are looked for where they are, whatever the stack of them is called. Fails where
    its name is taken for the first one's folder."""
    monkeypatch.chdir(made)
    slices = [{"sources": [{"model": name, "layer_range": [0, 1]}]} for name in ("a", str(made / "b"))]
    (tmp_path / "r.yml").write_text(json.dumps({"merge_method": "passthrough", "slices": slices}))
    isomerge.merge(tmp_path / "r.yml", out=tmp_path / "slices")
    inputs = isomerge.fsck(tmp_path / "slices")["inputs"]
    assert [Path(row["file"]).name for row in inputs].count("model.safetensors") == 2
    assert {row["state"] for row in inputs} == {"unchanged"}


BAD_REPORTS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "none": (lambda o: (o / "isomerge.json").unlink(), "does not exist"),
    "no JSON": (lambda o: (o / "isomerge.json").write_text("{"), "not valid JSON"),
    "deep": (lambda o: (o / "isomerge.json").write_text("[" * 10**6), "not valid JSON"),
    "no checksums": (lambda o: edit_report(o, lambda r: r.pop("files")), "no checksums"),
    "leaves the folder": (lambda o: edit_report(o, lambda r: r["files"].update({"../a/x": {}})), "'../a/x'"),
    "absolute": (lambda o: edit_report(o, lambda r: r["files"].update({"/etc/passwd": {}})), "'/etc/passwd'"),
    "no entry": (lambda o: edit_report(o, lambda r: r["files"].update({"README.md": 3})), "CRC-32"),
    "crc is a number": (lambda o: edit_report(o, lambda r: r["files"]["README.md"].update(crc32=5)), "CRC-32"),
    "inputs are text": (lambda o: edit_report(o, lambda r: r.update(inputs="a")), "list of inputs"),
    "input without file": (
        lambda o: edit_report(o, lambda r: r["inputs"].append({"model": "a"})),
        "list of inputs",
    ),
}


def edit_report(out: Path, change: Callable[[Any], Any]) -> None:
    report = report_of(out)
    change(report)
    (out / "isomerge.json").write_bytes(signed(report)[0])


@pytest.mark.parametrize("kind", BAD_REPORTS)
def test_a_report_that_cannot_be_checked_against(kind: str, out: Path) -> None:
    """A sentence that names it."""
    damage, words = BAD_REPORTS[kind]
    damage(out)
    with pytest.raises(IsomergeError, match=r"isomerge\.json") as caught:
        isomerge.fsck(out)
    assert words in str(caught.value)


def test_a_hostile_report_reads_no_device(out: Path) -> None:
    """Inputs may be anywhere; only regular files are looked at."""
    os.mkfifo(out.parent / "pipe")
    rows = [
        {"model": "x", "file": str(p), "bytes": 1, "crc32": "00000000"} for p in (out.parent / "pipe", "/dev/zero")
    ]
    edit_report(out, lambda r: r.update(inputs=rows))
    assert [row["state"] for row in isomerge.fsck(out)["inputs"]] == ["absent", "absent"]
