"""Spec texts of packages, by entry points, and of folders that are registered: found without importing a package, and
refused where a model type has a text already."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import isomerge
from imported import forgotten
from isomerge.archs import expanded_texts, listing, plug_in_parts, register_specs, spec_for, spec_texts
from isomerge.errors import IsomergeError
from isomerge.observe.data.opening_data import open_data
from solve.disguises import single

TEXT = "like gpt2\nmodel {}\n"


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Path]]:
    """Writes a package with a folder of spec texts onto the path, and forgets it afterwards."""
    place = tmp_path / "site"
    place.mkdir()
    monkeypatch.syspath_prepend(str(place))

    def write(package: str, kind: str, *, value: str = "specs", text: str = TEXT) -> Path:
        folder = place / package / "specs"
        folder.mkdir(parents=True)
        (place / package / "__init__.py").write_text(
            "raise RuntimeError('a package is not imported for its texts')"
        )
        (folder / "own.spec").write_text(text.format(kind))
        info = place / f"{package}-1.2.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.2\n")
        (info / "entry_points.txt").write_text(f"[isomerge.architectures]\nown = {package}.{value}\n")
        return folder

    with forgotten():
        yield write


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """GPT-2 under another model type."""
    folder = single("gpt2", tmp_path / "model", 1)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "scratch_gpt"}))
    return folder


def test_a_package_s_texts_are_among_all(install: Callable, model: Path) -> None:
    """As they are written, and written out; the report names package and version; no package is imported."""
    own = set(spec_texts())
    folder = install("scratch_texts", "scratch_gpt")
    assert "scratch_gpt" not in own
    from isomerge.archs import plug_in_specs

    plug_in_specs._read_texts.cache_clear()  # as a new process would find it
    assert set(spec_texts()) == own | {"scratch_gpt"}
    assert spec_texts()["scratch_gpt"] == (str(folder / "own.spec"), TEXT.format("scratch_gpt"))
    gpt2, ours = (expanded_texts()[kind][1].splitlines() for kind in ("gpt2", "scratch_gpt"))
    assert [line for line in ours if not line.startswith("model ")] == [
        line for line in gpt2 if not line.startswith("model ")
    ]
    report = isomerge.inspect(model)
    assert report["architecture"] == "scratch_gpt"
    assert report["plug_ins"] == [{"kind": "architecture", "name": "scratch_gpt", "source": "scratch_texts 1.2"}]
    assert "scratch_texts" not in sys.modules
    assert "plug_ins" not in isomerge.inspect(single("gpt2", model.parent / "gpt2", 2))


def test_a_part_of_a_model(install: Callable) -> None:
    """A group of keys with a model type of its own is looked up as well, with its own config."""
    install("scratch_part", "scratch_gpt")
    part = {"model_type": "scratch_gpt", "n_embd": 8}
    found = plug_in_parts({"model_type": "llava", "text_config": part, "vision_config": {"model_type": "clip"}})
    assert [(text.source, config) for text, config in found] == [("scratch_part 1.2", part)]


def test_a_type_of_isomerge_s_own_is_refused(install: Callable, model: Path) -> None:
    """Where it is asked for, naming both; others are read as before."""
    install("scratch_llama", "llama")
    with pytest.raises(IsomergeError, match=r"model type llama: isomerge itself and scratch_llama 1\.2"):
        spec_for({"model_type": "llama"})
    assert spec_texts()["llama"][0] == "llama.spec"
    rows, problems = listing()
    assert "llama" not in {row["model_type"] for row in rows}
    assert [text.partition(": ")[0] for text in problems] == ["model type llama"]
    assert "gpt2" in spec_texts()


def test_two_packages_with_one_type(install: Callable, model: Path) -> None:
    install("scratch_one", "scratch_gpt")
    install("scratch_two", "scratch_gpt")
    with pytest.raises(IsomergeError, match=r"scratch_one 1\.2 .* and scratch_two 1\.2 .* both have a spec text"):
        isomerge.inspect(model)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"value": "absent"}, "scratch_broken.absent is no folder of an installed package"),
        ({"text": "size res = n_embd\n"}, "names no model type"),
    ],
)
def test_a_broken_package_is_told_of_where_a_type_is_unknown(
    how: dict[str, str], words: str, install: Callable, model: Path, tmp_path: Path
) -> None:
    """It may be the one that has it; models of other types are opened as before."""
    install("scratch_broken", "scratch_gpt", **how)
    with pytest.raises(IsomergeError, match=words) as caught:
        isomerge.inspect(model)
    assert "scratch_broken 1.2" in caught.value.sentence
    assert isomerge.inspect(single("gpt2", tmp_path / "gpt2", 2))["spaces"]


def test_a_wrong_text_stops_no_other_model(install: Callable, model: Path, tmp_path: Path) -> None:
    """Data are opened, which looks into all texts; whoever reads the wrong one is told."""
    install("scratch_wrong", "scratch_gpt", text="like nothing_known\nmodel {}\n")
    folder = single("gpt2", tmp_path / "gpt2", 2)
    (tmp_path / "t.jsonl").write_text('{"input_ids": [1, 2, 3]}\n')
    config = json.loads((folder / "config.json").read_text())
    assert len(open_data(str(tmp_path / "t.jsonl"), folder, config=config)) == 1
    with pytest.raises(IsomergeError, match=r"own\.spec.*nothing_known"):
        isomerge.inspect(model)


def test_a_package_that_also_registers_its_folder(install: Callable, model: Path) -> None:
    """One text is one, by whatever way it comes."""
    register_specs(install("scratch_both", "scratch_gpt"))
    assert isomerge.inspect(model)["architecture"] == "scratch_gpt"


def test_registered_folders(model: Path, tmp_path: Path) -> None:
    """At once, also after others were read; again with a text that has changed; named by the folder."""
    folder = tmp_path / "specs"
    folder.mkdir()
    with forgotten():
        for wrong in (folder, tmp_path / "absent"):
            with pytest.raises(IsomergeError, match=r"\*\.spec"):
                register_specs(wrong)
        assert "scratch_gpt" not in spec_texts()
        (folder / "own.spec").write_text(TEXT.format("scratch_gpt"))
        register_specs(folder)
        assert isomerge.inspect(model)["plug_ins"][0]["source"] == str(folder)
        (folder / "own.spec").write_text(TEXT.format("scratch_gpt scratch_other"))
        register_specs(folder)
        assert "scratch_other" in spec_texts()
        (folder / "more.spec").write_text(TEXT.format("scratch_other"))
        with pytest.raises(IsomergeError, match=r"scratch_other: .*more\.spec and .*own\.spec both"):
            register_specs(folder)
        other = tmp_path / "others"
        other.mkdir()
        for kind, taker in (("scratch_gpt", r".*own\.spec"), ("bert", r"isomerge itself \(bert\.spec\)")):
            (other / "x.spec").write_text(TEXT.format(kind))
            with pytest.raises(IsomergeError, match=rf"model type {kind}: {taker}"):
                register_specs(other)
        assert spec_texts()["bert"][0] == "bert.spec"
    assert "scratch_gpt" not in spec_texts()
