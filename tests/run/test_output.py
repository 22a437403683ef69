"""What a run writes: an ordinary checkpoint, whole or not there, the same bytes for the same inputs."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers as tf
import yaml
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import isomerge
from depth import more
from isomerge.checkpoint.output_folder import check_out
from isomerge.errors import IsomergeError
from isomerge.evidence.pictures import import_ahead
from isomerge.merging.fusing import Fuser
from solve.disguises import disguise, files_of, single
from toy_settings import BODY_OF_THREE
from toys import config_of, outputs, randomise, relative, save_toy, tensors

pytestmark = pytest.mark.matched(
    "of layers: else strangers' streams are matched as well, and small changes not at all"
)


def equal(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> bool:
    """Same names, dtypes and values."""
    return one.keys() == two.keys() and all(
        t.dtype == two[n].dtype and torch.equal(t, two[n]) for n, t in one.items()
    )


def average(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The mean of two tensors as `linear` computes it."""
    return torch.zeros_like(a).add_(a, alpha=0.5).add_(b, alpha=0.5)


def edit(folder: Path, change: Callable[[dict[str, torch.Tensor]], Any]) -> Path:
    """Change a single-file checkpoint's tensors in place."""
    found = load_file(folder / "model.safetensors")
    found = {n: t.clone() for n, t in found.items()}
    change(found)
    save_file(found, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, Path]]:
    """Two unrelated toys of one kind; read only."""
    made: dict[str, tuple[Path, Path]] = {}

    def make(name: str) -> tuple[Path, Path]:
        if name not in made:
            root = tmp_path_factory.mktemp(name)
            made[name] = (single(name, root / "a", 0), single(name, root / "b", 5))
        return made[name]

    return make


# ------------------------------------------------------------------------------------------------ folders


@pytest.mark.parametrize("name", ["mixtral", *more("gpt2", "t5-gated")])
def test_shards_in_and_out(name: str, pair: Callable, tmp_path: Path) -> None:
    """Sharded inputs and a sharded output give the tensors of the single file."""
    a, b = pair(name)
    isomerge.merge([a, b], out=tmp_path / "whole")
    for model in (a, b):
        isomerge.align(
            model, onto=model, spaces="none", out=tmp_path / f"{model.name}-shards", out_shard_size="20K"
        )
    shards = [tmp_path / f"{m.name}-shards" for m in (a, b)]
    assert all(len(list(s.glob("model-*.safetensors"))) > 3 for s in shards)
    isomerge.merge(shards, out=tmp_path / "out", out_shard_size=30_000)
    files = sorted((tmp_path / "out").glob("model-*.safetensors"))
    assert len(files) > 3
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    assert set(index["weight_map"].values()) == {f.name for f in files}
    whole, parts = tensors(tmp_path / "whole"), tensors(tmp_path / "out")
    assert index["metadata"]["total_size"] == sum(t.nbytes for t in parts.values())
    assert whole.keys() == parts.keys()
    assert all(torch.allclose(t, parts[n], atol=1e-6) for n, t in whole.items())
    isomerge.merge(shards, out=tmp_path / "joined")
    assert equal(tensors(tmp_path / "joined"), parts)


def test_shards_change_no_bit(pair: Callable, tmp_path: Path) -> None:
    """How the inputs are cut into files shows nowhere in the result, not even in the last bit."""
    a, b = pair("gpt2")
    isomerge.align(a, onto=a, spaces="none", out=tmp_path / "shards", out_shard_size="20K")
    for name, model in (("whole", a), ("parts", tmp_path / "shards")):
        isomerge.merge([model, b], out=tmp_path / name)
    assert equal(tensors(tmp_path / "whole"), tensors(tmp_path / "parts"))


def test_ordinary_checkpoint(pair: Callable, tmp_path: Path) -> None:
    """Companions travel, config.json stays, transformers loads every tensor, and no other file appears."""
    a, b = (Path(shutil.copytree(m, tmp_path / m.name)) for m in pair("bert"))
    companions = ["tokenizer.json", "vocab.txt", "tokenizer_config.json", "special_tokens_map.json"]
    companions += ["preprocessor_config.json", "chat_template.jinja", "1_Pooling/config.json", "modules.json"]
    for name in [*companions, "training_args.bin", "optimizer.pt", "modeling_custom.py", "2_Dense/model.bin"]:
        (a / name).parent.mkdir(exist_ok=True)
        (a / name).write_text(f'{{"file": "{name}"}}')
        (b / name).parent.mkdir(exist_ok=True)
        (b / name).write_text('{"file": "of b"}')
    (a / "README.md").write_text("# the card of a")
    for what in ("merge", "align"):
        out = tmp_path / what
        isomerge.merge([a, b], out=out) if what == "merge" else isomerge.align(a, onto=b, out=out)
        expected = {*companions, "config.json", "model.safetensors", "README.md", "isomerge.json", "distances.png"}
        expected |= {"isomerge_recipe.yml"} if what == "merge" else set()
        assert set(files_of(out)) == {*expected, "alignment.safetensors"}
        assert all((out / n).read_bytes() == (a / n).read_bytes() for n in companions)
        assert config_of(out) == config_of(a)
        assert (out / "README.md").read_text() != "# the card of a"
        _, info = tf.BertForMaskedLM.from_pretrained(out, output_loading_info=True)
        assert not info["missing_keys"]
        assert not info["unexpected_keys"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "align", "b", "merge"]


def test_card_and_report(pair: Callable, tmp_path: Path) -> None:
    """README.md opens with YAML front-matter; isomerge.json has versions and distances; both name the models."""
    a, b = pair("llama")
    report = isomerge.merge([a, b], out=tmp_path / "out", weights=[3, 1])
    card = (tmp_path / "out" / "README.md").read_text()
    _, front, body = card.split("---\n", 2)
    meta = yaml.safe_load(front)
    assert meta["library_name"] == "transformers"
    assert {"isomerge", "merge"} <= set(meta["tags"])
    assert "base_model" not in meta  # local folders are no hub ids
    assert str(a) not in body
    assert f"`{a.name}`" in body
    assert f"`{b.name}`" in body
    assert f"{report['distance']['before']:.4f}" in body
    stored = json.loads((tmp_path / "out" / "isomerge.json").read_text())
    assert stored == json.loads(json.dumps(report))
    assert stored["versions"]["isomerge"] == isomerge.__version__
    assert stored["versions"]["torch"] == torch.__version__
    assert stored["versions"]["transformers"] == tf.__version__
    assert stored["models"] == [str(a), str(b)]
    assert stored["weights"] == [3, 1]
    distance = stored["distance"]
    assert set(distance["layers"]) == {"0", "1", "2", "outside"}
    assert {"kv", "g", "c", "ov", "ff", "u", "fixed"} == set(distance["spaces"])
    mine, theirs = tensors(a), tensors(b)
    gap = sum(float((t.double() - theirs[n].double()).square().sum()) for n, t in mine.items()) ** 0.5
    norm = sum(float(t.double().square().sum()) for t in mine.values()) ** 0.5
    assert distance["before"] == pytest.approx(gap, rel=1e-9)
    assert distance["norm"] == pytest.approx(norm, rel=1e-9)
    layers = sum(d["before"] ** 2 for d in distance["layers"].values()) ** 0.5
    assert distance["before"] == pytest.approx(layers, rel=1e-9)


@pytest.mark.parametrize(
    "name", ["bert", "mixtral", *more("t5-gated", "gpt2", "llama-biased", "deberta-conv", "vit")]
)
def test_alignment_replays(name: str, pair: Callable, tmp_path: Path) -> None:
    """The stored alignment, applied to the source, gives align's weights byte for byte."""
    a, b = pair(name)
    alignment, _ = isomerge.align(b, onto=a, out=tmp_path / "out")
    patch = tmp_path / "out" / "alignment.safetensors"
    for what, element in (("file", patch), ("object", alignment)):
        isomerge.apply(element, b, out=tmp_path / what)
        replayed, aligned = files_of(tmp_path / what), files_of(tmp_path / "out")
        for file in ("model.safetensors", "config.json", "alignment.safetensors"):
            assert replayed[file] == aligned[file]


def test_the_same_bytes_twice(pair: Callable, tmp_path: Path) -> None:
    """Nothing in an output depends on the time, the place or the run."""
    a, b = pair("bert")
    for turn in ("one", "two"):
        isomerge.merge([a, b], out=tmp_path / turn / "merged", out_shard_size=60_000)
        isomerge.align(b, onto=a, out=tmp_path / turn / "aligned")
    assert files_of(tmp_path / "one") == files_of(tmp_path / "two")


def test_patches_are_reproducible(pair: Callable, tmp_path: Path) -> None:
    """The patch file's bytes are those of its content: saved eight times, one file."""
    a, b = pair("gpt2")
    alignment, _ = isomerge.align(b, onto=a)
    for turn in range(8):
        alignment.save(tmp_path / f"{turn}.safetensors")
    assert len({file.read_bytes() for file in tmp_path.iterdir()}) == 1


def test_nothing_is_written_without_out(pair: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """align without out returns the alignment and leaves no file, here or among temporary files."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=10_000))  # less than a model
    a, b = pair("gpt2")
    found: list[int] = []

    def look(*_: Any) -> None:
        found.extend(path.stat().st_size for path in tmp_path.rglob("model*.safetensors"))

    isomerge.canon(a, observer=look)
    alignment, report = isomerge.align(b, onto=a, observer=look)
    assert len(found) > 10
    assert max(found) < 100  # a header without tensors
    assert "files" not in report
    assert report["distance"]["after"] < report["distance"]["before"]
    assert {key.partition("[")[0] for key in alignment} == {"h", "qk", "ov", "ff", "shift.kb", "shift.vb"}
    assert list(tmp_path.iterdir()) == []


def test_overwrite(pair: Callable, tmp_path: Path) -> None:
    """A filled folder is refused without overwrite; with it the new checkpoint takes the place of all that was
    there."""
    a, b = pair("gpt2")
    out = tmp_path / "out"
    out.mkdir()
    (out / "precious.txt").write_text("keep")
    with pytest.raises(IsomergeError, match="not an empty folder"):
        isomerge.merge([a, b], out=out)
    assert files_of(tmp_path) == {"out/precious.txt": b"keep"}
    isomerge.merge([a, b], out=out, overwrite=True)
    assert "precious.txt" not in files_of(out)
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_overwrite_never_removes_what_is_read_or_what_was_no_model(
    pair: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder that is or holds an input, or that has folders and no model."""
    a, b = pair("gpt2")
    outer = tmp_path / "outer"
    shutil.copytree(a, outer)
    shutil.copytree(b, outer / "inner")
    for run in (isomerge.merge, lambda models, **how: isomerge.align(models[1], onto=models[0], **how)):
        for models in ([outer / "inner", a], [a, outer / "inner"]):
            with pytest.raises(
                IsomergeError, match=r"outer holds .*inner.*, which is read: .*overwrite=True.* would remove it"
            ):
                run(models, out=outer, overwrite=True)
    (tmp_path / "work" / "results").mkdir(parents=True)
    with pytest.raises(IsomergeError, match=r"work is no checkpoint, and holds folders \(results\)"):
        isomerge.merge([a, b], out=tmp_path / "work", overwrite=True)
    shutil.rmtree(outer / "inner")
    (outer / "here").mkdir()
    monkeypatch.chdir(outer / "here")
    with pytest.raises(IsomergeError, match=r"\.\. holds the current folder|outer holds the current folder"):
        isomerge.merge([a, b], out="..", overwrite=True)
    (empty := tmp_path / "empty").mkdir()
    for folder, overwrite in (
        (empty, False),
        (outer, True),
    ):  # by any name; a shell would be left in what was there before
        monkeypatch.chdir(folder)
        for name in (".", folder, f"../{folder.name}/"):
            with pytest.raises(IsomergeError, match="is the current folder, which cannot be replaced"):
                isomerge.merge([a, b], out=name, overwrite=overwrite)
    monkeypatch.chdir(tmp_path)
    empty.rmdir()
    (outer / "here").rmdir()
    before = files_of(outer)
    with pytest.raises(IsomergeError, match="outer is read, and would be replaced"):
        isomerge.merge([outer, b], out=outer, overwrite=True)
    assert files_of(outer) == before
    isomerge.merge([a, b], out=outer, overwrite=True)
    assert files_of(outer)["model.safetensors"] != before["model.safetensors"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["outer", "work"]


def test_overwrite_never_removes_what_is_read_beside_models(pair: Callable, tmp_path: Path) -> None:
    """Data and alignments in folders of the output."""
    a, b = pair("gpt2")
    outer = tmp_path / "outer"
    shutil.copytree(a, outer)
    (outer / "inner").mkdir()
    (outer / "inner" / "data.jsonl").write_text('{"text": "one"}\n')
    isomerge.align(b, onto=a, spaces="ff")[0].save(patch := outer / "inner" / "patch.safetensors")
    before, how = files_of(outer), {"out": outer, "overwrite": True}
    for run in (
        lambda: isomerge.merge([a, b], data=outer / "inner", **how),
        lambda: isomerge.merge([a, b], repair=outer / "inner" / "data.jsonl", align=False, **how),
        lambda: isomerge.align(b, onto=a, search=1.0, data=outer / "inner" / "data.jsonl", **how),
        lambda: isomerge.apply(patch, b, **how),
    ):
        with pytest.raises(
            IsomergeError, match=r"outer holds .*inner.*, which is read: .*overwrite=True.* would remove it"
        ):
            run()
    assert files_of(outer) == before


def test_without_room_for_a_thread_pictures_are_drawn_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is imported ahead is no reason to fail."""
    tried: list[str] = []

    def start(thread: Thread) -> None:
        tried.append(thread.name)
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(Thread, "start", start)
    import_ahead()
    assert tried == ["import ahead"]


# ------------------------------------------------------------------------------------------------- dtypes


@pytest.mark.parametrize("code", ["float32", "float16", "bfloat16", "float64"])
def test_dtype_option(code: str, pair: Callable, tmp_path: Path) -> None:
    """--dtype shows in config.json and in every tensor, and is one rounding of the float32 result."""
    a, b = pair("gpt2")
    wanted = getattr(torch, code)
    isomerge.merge([a, b], out=tmp_path / "plain")
    isomerge.merge([a, b], out=tmp_path / "out", dtype=code)
    config = config_of(tmp_path / "out")
    assert {config[k] for k in ("dtype", "torch_dtype") if k in config} == {code}
    assert {k: v for k, v in config.items() if "dtype" not in k} == {
        k: v for k, v in config_of(a).items() if "dtype" not in k
    }
    plain, found = tensors(tmp_path / "plain"), tensors(tmp_path / "out")
    assert equal({n: t.to(wanted) for n, t in plain.items()}, found)
    assert tf.AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype="auto").dtype == wanted


@pytest.mark.parametrize("name", ["bert", "llama"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_stays(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    """Half-precision inputs are merged in float32 and stored as they were; a twin merges back within rounding."""
    a = save_toy(name, tmp_path / "a", dtype=dtype)
    twin = disguise(name, a, tmp_path / "twin", 3)
    assert isomerge.verify(a, twin)["same"]
    report = isomerge.merge([a, twin], out=tmp_path / "out")
    assert {t.dtype for t in tensors(tmp_path / "out").values()} == {dtype}
    assert config_of(tmp_path / "out")["dtype"] == str(dtype).removeprefix("torch.")
    assert report["distance"]["after"] < (0.02 if dtype == torch.bfloat16 else 0.003) * report["distance"]["norm"]
    wide = {n: t.float() for n, t in tensors(a).items()}
    gap = max(float((t.float() - wide[n]).abs().max()) for n, t in tensors(tmp_path / "out").items())
    assert gap < (0.05 if dtype == torch.bfloat16 else 0.005)


@pytest.mark.parametrize("align", [False, True])
def test_eight_bits_stay_or_widen(align: bool, pair: Callable, tmp_path: Path) -> None:
    """Floats of eight bits without scales are floats: rounded once when they are written, or written in another
    dtype."""
    a, b = pair("gpt2")
    narrow = Path(shutil.copytree(a, tmp_path / "narrow"))
    edit(narrow, lambda t: t.update({n: x.to(torch.float8_e4m3fn) for n, x in t.items() if x.ndim == 2}))
    isomerge.merge([narrow, b], out=tmp_path / "kept", align=align)
    isomerge.merge([narrow, b], out=tmp_path / "wide", align=align, dtype="float32")
    stored, kept, wide = (
        load_file(f / "model.safetensors") for f in (narrow, tmp_path / "kept", tmp_path / "wide")
    )
    assert {n: t.dtype for n, t in kept.items()} == {n: t.dtype for n, t in stored.items()}
    assert {t.dtype for t in wide.values()} == {torch.float32}
    assert len({t.dtype for t in kept.values()}) == 2
    for name, tensor in kept.items():
        assert torch.equal(tensor.float(), wide[name].to(tensor.dtype).float())


def test_mixed_dtypes(pair: Callable, tmp_path: Path) -> None:
    """The first model's dtypes count, tensor by tensor; float64 anywhere makes the work float64."""
    a, b = pair("gpt2")
    half = save_toy("gpt2", tmp_path / "half", seed=5, dtype=torch.bfloat16)
    mixed = edit(
        Path(shutil.copytree(a, tmp_path / "mixed")),
        lambda t: t.update({"transformer.wte.weight": t["transformer.wte.weight"].half()}),
    )
    isomerge.merge([mixed, half], out=tmp_path / "out")
    assert {n: t.dtype for n, t in tensors(tmp_path / "out").items()} == {
        n: t.dtype for n, t in tensors(mixed).items()
    }
    double = save_toy("gpt2", tmp_path / "double", seed=5, dtype=torch.float64)
    isomerge.merge([double, a], out=tmp_path / "wide", align=False)
    one, two = tensors(double), tensors(a)
    assert equal(tensors(tmp_path / "wide"), {n: average(t, two[n].double()) for n, t in one.items()})
    assert not equal(one, {n: t.double() for n, t in tensors(b).items()})


@pytest.mark.parametrize("method", ["linear", "ties", "task_arithmetic", "nearswap", "slerp"])
def test_written_narrow_is_written_once_rounded(method: str, pair: Callable, tmp_path: Path) -> None:
    """Methods that write half precision piece by piece give the bytes of the float32 result, rounded."""
    base, b = pair("llama")
    c = save_toy("llama", tmp_path / "c", seed=9)
    how: dict[str, Any] = {"method": method, "align": False, "base_model": base}
    how |= {"parameters": {"t": 0.3}} if method in ("slerp", "nearswap") else {}
    models = [base, b] if method in ("slerp", "nearswap") else [b, c]
    isomerge.merge(models, out=tmp_path / "wide", **how)
    isomerge.merge(models, out=tmp_path / "half", dtype="bfloat16", **how)
    wide, half = tensors(tmp_path / "wide"), tensors(tmp_path / "half")
    assert equal({n: t.bfloat16() for n, t in wide.items()}, half)
    assert not equal(wide, tensors(base))


@pytest.mark.parametrize("align", [True, False])
def test_a_model_that_is_written_to_meanwhile(
    align: bool, pair: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its tensors cannot be trusted: the run stops with its name, and nothing is written."""
    a, b = pair("llama")
    other = Path(shutil.copytree(b, tmp_path / "b"))
    fuse = Fuser.fuse

    def touched(self: Fuser, *arguments: Any, **how: Any) -> Any:
        os.utime(other / "model.safetensors", ns=(0, 0))
        return fuse(self, *arguments, **how)

    monkeypatch.setattr(Fuser, "fuse", touched)
    with pytest.raises(IsomergeError, match=r"b/model\.safetensors changed after it was opened"):
        isomerge.merge([a, other], out=tmp_path / "out", align=align)
    assert [p.name for p in tmp_path.iterdir()] == ["b"]


@pytest.mark.parametrize("align", [True, False])
def test_overflow_is_an_error(align: bool, pair: Callable, tmp_path: Path) -> None:
    """A value beyond float16 is refused by name; nothing is left behind."""
    a, b = pair("gpt2")
    big = edit(
        Path(shutil.copytree(a, tmp_path / "big")), lambda t: t["transformer.ln_f.weight"].__setitem__(0, 3e5)
    )
    with pytest.raises(IsomergeError, match=r"ln_f\.weight.*F16.*dtype='float32'"):
        isomerge.merge([big, b], out=tmp_path / "out", dtype="float16", align=align)
    assert [p.name for p in tmp_path.iterdir()] == ["big"]


@pytest.mark.parametrize("align", [False, True])
@pytest.mark.parametrize("method", ["linear", "ties"])
def test_nothing_infinite_is_written(method: str, align: bool, pair: Callable, tmp_path: Path) -> None:
    """Finite weights times numbers that are too large: a sentence, in pieces and in whole tensors."""
    a, b = pair("gpt2")
    parameters = {"normalize": False} if method == "linear" else {}
    how = {"weights": [1e38, 3e38]} if method == "linear" else {"weights": [3e38], "base_model": a}
    models = [a, b] if method == "linear" else [b]
    for jobs in (None, 1):
        with pytest.raises(IsomergeError, match=r"tensor .* has NaN or infinite values as the method"):
            isomerge.merge(
                models, out=tmp_path / "out", method=method, parameters=parameters, align=align, jobs=jobs, **how
            )
    assert list(tmp_path.iterdir()) == []


def test_integer_buffers_are_kept(pair: Callable, tmp_path: Path) -> None:
    """Stored position ids are copied from the first model, also under --dtype and in align."""
    a, b = pair("bert")
    ids = torch.arange(32).unsqueeze(0)
    with_ids = edit(
        Path(shutil.copytree(a, tmp_path / "a")), lambda t: t.update({"bert.embeddings.position_ids": ids})
    )
    other = edit(
        Path(shutil.copytree(b, tmp_path / "b")), lambda t: t.update({"bert.embeddings.position_ids": ids.clone()})
    )
    isomerge.merge([with_ids, other], out=tmp_path / "both", dtype="bfloat16", spaces="ff")
    isomerge.merge([with_ids, b], out=tmp_path / "one", spaces="ff")
    isomerge.merge([b, with_ids], out=tmp_path / "none", spaces="ff")
    isomerge.align(with_ids, onto=b, out=tmp_path / "aligned", spaces="ff")
    for name in ("both", "one", "aligned"):
        found = tensors(tmp_path / name)["bert.embeddings.position_ids"]
        assert torch.equal(found, ids)
        assert found.dtype == torch.int64
    assert "bert.embeddings.position_ids" not in tensors(tmp_path / "none")


# -------------------------------------------------------------------------------------------- tied weights


@pytest.mark.parametrize(
    ("name", "head", "embedding"),
    [
        ("gpt2", "lm_head.weight", "transformer.wte.weight"),
        ("bert", "cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight"),
        *more(("llama-tied", "lm_head.weight", "model.embed_tokens.weight")),
    ],
)
def test_tied_weights_stay_tied(name: str, head: str, embedding: str, pair: Callable, tmp_path: Path) -> None:
    """Not stored before, not stored after; a copy that does store them still has both equal."""
    a, b = pair(name)
    assert head not in tensors(a)
    twice = edit(Path(shutil.copytree(a, tmp_path / "twice")), lambda t: t.update({head: t[embedding].clone()}))
    isomerge.merge([a, b], out=tmp_path / "once")
    isomerge.merge([twice, b], out=tmp_path / "explicit")
    isomerge.merge([b, twice], out=tmp_path / "other")
    once, explicit = tensors(tmp_path / "once"), tensors(tmp_path / "explicit")
    assert head not in once
    assert head not in tensors(tmp_path / "other")
    assert torch.equal(explicit[head], explicit[embedding])
    assert torch.equal(explicit[embedding], once[embedding])
    assert torch.equal(outputs(tmp_path / "once"), outputs(tmp_path / "explicit"))
    assert isomerge.verify(a, twice)["same"]


# --------------------------------------------------------------------------------------- prefixes and heads


def test_models_with_and_without_a_head(tmp_path: Path) -> None:
    """A bare BertModel and one with a masked-LM head: the first model's names and head, either way round."""
    head = tf.BertForMaskedLM(tf.BertConfig(**BODY_OF_THREE)).eval()
    bare = tf.BertModel(tf.BertConfig(**BODY_OF_THREE)).eval()
    for seed, (model, folder) in enumerate(((head, "head"), (bare, "bare"))):
        randomise(model, seed)
        model.save_pretrained(tmp_path / folder)
    report = isomerge.merge([tmp_path / "head", tmp_path / "bare"], out=tmp_path / "out")
    mine, out = tensors(tmp_path / "head"), tensors(tmp_path / "out")
    assert out.keys() == mine.keys()
    kept = {n for n in mine if n.startswith("cls.")}
    assert set(report["kept_from_first"]) == kept
    assert all(torch.equal(out[n], mine[n]) for n in kept)
    assert not torch.equal(
        out["bert.embeddings.word_embeddings.weight"], mine["bert.embeddings.word_embeddings.weight"]
    )
    back = isomerge.merge([tmp_path / "bare", tmp_path / "head"], out=tmp_path / "back")
    found = tensors(tmp_path / "back")
    assert found.keys() == tensors(tmp_path / "bare").keys()
    assert set(back["kept_from_first"]) == {"pooler.dense.weight", "pooler.dense.bias"}
    name = "encoder.layer.0.output.dense.bias"
    assert torch.allclose(found[name], out[f"bert.{name}"], atol=1e-6)
    tf.BertModel.from_pretrained(tmp_path / "back")
    only = isomerge.verify(tmp_path / "head", tmp_path / "bare")["only_in_one"]
    assert set(only) == {*kept, "pooler.dense.weight", "pooler.dense.bias"}


def test_prefix_makes_no_difference(pair: Callable, tmp_path: Path) -> None:
    """The same weights stored with and without the base model's prefix are the same function."""
    a, b = pair("gpt2")

    def strip(found: dict[str, torch.Tensor]) -> None:
        for name in list(found):
            found[name.removeprefix("transformer.")] = found.pop(name)

    bare = edit(Path(shutil.copytree(b, tmp_path / "bare")), strip)
    assert isomerge.diff(b, bare)["verdict"]["code"] == "same"
    isomerge.merge([a, b], out=tmp_path / "one")
    isomerge.merge([a, bare], out=tmp_path / "two")
    assert equal(tensors(tmp_path / "one"), tensors(tmp_path / "two"))


# ------------------------------------------------------------------------------------- several, live, weights


def test_three_models_and_weights(pair: Callable, tmp_path: Path) -> None:
    """Unaligned merging is the weighted mean; three aligned sources have an alignment and a distance each."""
    a, b = pair("gpt2")
    c = single("gpt2", tmp_path / "c", 9)
    isomerge.merge([a, b, c], out=tmp_path / "mean", weights=[2, 1, 1], align=False)
    x, y, z = (tensors(m) for m in (a, b, c))
    for name, tensor in tensors(tmp_path / "mean").items():
        assert torch.allclose(tensor, 0.5 * x[name] + 0.25 * y[name] + 0.25 * z[name], atol=1e-6)
    assert not list((tmp_path / "mean").glob("alignment*"))
    report = isomerge.merge([a, b, c], out=tmp_path / "out")
    assert {p.name for p in (tmp_path / "out").glob("alignment*")} == {
        "alignment-2.safetensors",
        "alignment-3.safetensors",
    }
    assert [s["model"] for s in report["sources"]] == [str(b), str(c)]
    squares = sum(s["distance"]["after"] ** 2 for s in report["sources"])
    assert report["distance"]["after"] == pytest.approx(squares**0.5, rel=1e-9)
    pairs = []
    for number, model in ((2, b), (3, c)):
        isomerge.apply(tmp_path / "out" / f"alignment-{number}.safetensors", model, out=tmp_path / f"moved{number}")
        pairs.append(tensors(tmp_path / f"moved{number}"))
    for file in (tmp_path / "out").glob("alignment*"):
        file.unlink()
    for name, tensor in tensors(tmp_path / "out").items():
        assert torch.allclose(tensor, (x[name] + pairs[0][name] + pairs[1][name]) / 3, atol=1e-5)


def test_all_weight_on_one_model(pair: Callable, tmp_path: Path) -> None:
    """Weights 1, 0 give the anchor back exactly; 0, 1 a twin of the other."""
    a, b = pair("llama")
    isomerge.merge([a, b], out=tmp_path / "first", weights=[1, 0])
    assert equal(tensors(tmp_path / "first"), tensors(a))
    isomerge.merge([a, b], out=tmp_path / "second", weights=[0, 1])
    assert relative(outputs(tmp_path / "second"), outputs(b)) < 1e-5


def test_live_modules(pair: Callable, tmp_path: Path) -> None:
    """A live module stands for its saved folder, on either side."""
    a, b = pair("bert")
    live_a, live_b = (tf.BertForMaskedLM.from_pretrained(m) for m in (a, b))
    isomerge.merge([a, b], out=tmp_path / "folders", spaces="ff")
    for number, models in enumerate(([a, live_b], [live_a, b], [live_a, live_b])):
        isomerge.merge(models, out=tmp_path / f"live{number}", spaces="ff")
        assert equal(tensors(tmp_path / "folders"), tensors(tmp_path / f"live{number}"))
    assert isomerge.verify(live_a, a)["same"]
    assert isomerge.diff(isomerge.open(a), live_b)["distance"]["before"] > 1
    with pytest.raises(IsomergeError, match=r"dict is no model"):
        isomerge.merge([a, {}], out=tmp_path / "no")


# ------------------------------------------------------------------------------------------ layers and spaces


@pytest.mark.parametrize(
    ("layers", "moved"),
    [
        ("0-1", {0, 1}),
        ("tail:1", {2}),
        ("0,2", {0, 2}),
        ("head:9", {0, 1, 2}),
        *more(("head:2", {0, 1}), ("1", {1}), (None, {0, 1, 2})),
    ],
)
@pytest.mark.parametrize("name", ["gpt2", *more("llama")])
def test_layers_subset(name: str, layers: str | None, moved: set[int], pair: Callable, tmp_path: Path) -> None:
    """Only the chosen layers move; the others, and everything outside the stack, are copied."""
    a, b = pair(name)
    alignment, report = isomerge.align(b, onto=a, out=tmp_path / "out", layers=layers)
    old, new = tensors(b), tensors(tmp_path / "out")
    changed = {n for n, t in old.items() if not torch.equal(t, new[n])}
    assert {int(part) for n in changed for part in n.split(".") if part.isdigit()} == moved
    assert all(any(part.isdigit() for part in n.split(".")) for n in changed)
    assert {int(key.partition("[")[2].rstrip("]")) for key in alignment} == moved
    for layer, figures in report["distance"]["layers"].items():
        assert (figures["after"] < figures["before"]) == (layer.isdigit() and int(layer) in moved)
    assert relative(outputs(tmp_path / "out"), outputs(b)) < 1e-5


def test_layers_of_two_stacks(pair: Callable) -> None:
    """An encoder and a decoder of different depth are each counted from their own end."""
    a, b = pair("t5-gated")
    alignment, _ = isomerge.align(b, onto=a, layers="tail:1")
    assert {key.partition("[")[2].rstrip("]") for key in alignment} == {"2", "1"}


def test_layers_beyond_every_stack(pair: Callable) -> None:
    """A layer that no stack has is refused."""
    a, b = pair("t5-gated")
    with pytest.raises(IsomergeError, match="layers=7"):
        isomerge.align(b, onto=a, layers="7")


SPACES = {
    "none": set(),
    "ff": {"ff"},
    "ffn": {"ff", "u"},
    "attention": {"kv", "g", "c", "ov"},
    "paper": {"c", "ov", "ff"},
    "qk,scale": {"c", "u"},
    "h": {"kv"},
    "default": {"kv", "g", "c", "ov", "ff", "u"},
}
PARTS = {
    "q_proj": {"kv", "g", "c"}, "k_proj": {"kv", "c"}, "v_proj": {"kv", "ov"}, "o_proj": {"kv", "g", "ov"},
    "gate_proj": {"ff"}, "up_proj": {"ff", "u"}, "down_proj": {"ff", "u"},
}  # fmt: skip


@pytest.mark.parametrize("spaces", SPACES)
def test_spaces_subset(spaces: str, pair: Callable, tmp_path: Path) -> None:
    """Only what the chosen spaces act on changes; the function never does."""
    a, b = pair("llama")
    alignment, report = isomerge.align(b, onto=a, out=tmp_path / "out", spaces=spaces)
    assert {key.partition("[")[0] for key in alignment} <= SPACES[spaces]
    old, new = tensors(b), tensors(tmp_path / "out")
    changed = {part for part in PARTS for n, t in old.items() if part in n and not torch.equal(t, new[n])}
    assert changed <= {part for part, acting in PARTS.items() if acting & SPACES[spaces]}
    assert bool(changed) == (spaces != "none")
    assert set(report["distance"]["spaces"]) - {"fixed"} == SPACES[spaces]
    assert relative(outputs(tmp_path / "out"), outputs(b)) < 1e-5


def test_merge_without_alignment_is_the_plain_mean(pair: Callable, tmp_path: Path) -> None:
    """align=False and spaces='none' write the same weights: the average as stored."""
    a, b = pair("bert")
    isomerge.merge([a, b], out=tmp_path / "plain", align=False)
    isomerge.merge([a, b], out=tmp_path / "none", spaces="none")
    x, y = tensors(a), tensors(b)
    assert equal(tensors(tmp_path / "plain"), {n: average(t, y[n]) for n, t in x.items()})
    assert equal(tensors(tmp_path / "plain"), tensors(tmp_path / "none"))


def test_patch_metadata(pair: Callable, tmp_path: Path) -> None:
    """The patch file says what it is for, in float64 and int64."""
    a, b = pair("gpt2")
    isomerge.align(b, onto=a, out=tmp_path / "out")
    with safe_open(tmp_path / "out" / "alignment.safetensors", "pt") as file:
        meta = json.loads(file.metadata()["isomerge"])
        dtypes = {file.get_tensor(key).dtype for key in file.keys()}  # noqa: SIM118
    assert meta["model_type"] == "gpt2"
    assert meta["sizes"]["qk"] == 8
    assert meta["spaces"]["qk"] == ["GL", ["l", "h"]]
    assert dtypes == {torch.float64, torch.int64}


def test_a_current_folder_that_was_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shell may be left in one: what is named in full can be written, and is not said to be missing."""
    (gone := tmp_path / "gone").mkdir()
    (empty := tmp_path / "empty").mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    check_out(empty, overwrite=False)
    (empty / "file").touch()
    with pytest.raises(IsomergeError, match="exists and is not an empty folder"):
        check_out(empty, overwrite=False)
    monkeypatch.chdir(tmp_path)
