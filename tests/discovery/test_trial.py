"""Spec texts on trial: true ones are proven, wrong ones refuted, empty ones seen through; and commands demand a
proof once."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import isomerge
from depth import thorough
from isomerge import remembered
from isomerge.archs import expanded_texts
from isomerge.discovery import trial
from isomerge.discovery.proofs import recall, remember
from isomerge.errors import IsomergeError
from toys import config_of, save_toy


def text_of(kind: str, *edits: tuple[str, str]) -> str:
    """The built-in text of an architecture, changed."""
    text = re.sub(" +", " ", expanded_texts()[kind][1])
    for old, new in edits:
        assert old in text, old
        text = text.replace(old, new)
    return text


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of GPT-2's class."""
    return save_toy("gpt2", tmp_path_factory.mktemp("prove") / "gpt2")


def written(folder: Path, text: str) -> Path:
    """A spec text in a file."""
    file = folder / "mine.spec"
    file.write_text(text)
    return file


def test_a_true_text_is_proven(gpt2: Path, tmp_path: Path) -> None:
    """Every law holds, every mutant is rejected but those of lines that no output depends on."""
    report = isomerge.prove(gpt2, spec=written(tmp_path, text_of("gpt2")))
    assert report["proven"]
    assert {"qk", "ov", "h", "ff", "kb", "vb", "res", "all", "all, through disk"} <= {
        law["space"] for law in report["laws"]
    }
    assert all(law["error"] < 1e-9 for law in report["laws"])
    assert report["mutants"]["count"] == report["mutants"]["rejected"] > 20
    assert report["mutants"]["survivors"] == []
    assert (
        report["redundancy"]["true"] == report["redundancy"]["declared"] > report["redundancy"]["layer_norm"] > 100
    )
    assert report["complete"] is True
    assert report["inner"] == []


KEPT = {"proven": True, "refuted": None}

WRONG = [
    ("heads in the wrong order", ("[h qk | h qk' | h ov]", "(h [qk | qk' | ov])"), "h"),
    ("a key that is not dual", ("[h qk | h qk' | h ov]", "[h qk | h qk | h ov]"), "qk"),
    ("neurons take signs", ("space ff: Perm[l]", "space ff: SignedPerm[l]"), "ff"),
]


@pytest.mark.parametrize(("edit", "space"), [w[1:] for w in WRONG], ids=[w[0] for w in WRONG])
def test_a_wrong_text_is_refuted(edit: tuple[str, str], space: str, gpt2: Path, tmp_path: Path) -> None:
    """The space is named, and align, merge, canon, verify and fingerprint refuse the text before anything is
    written."""
    spec = written(tmp_path, text_of("gpt2", edit))
    report = isomerge.prove(gpt2, spec=spec)
    assert not report["proven"]
    assert space in [law["space"] for law in report["laws"] if not law["holds"]]
    out = tmp_path / "out"
    said = r"mine.spec: .*(changes the outputs of a tiny random GPT2LMHeadModel|cannot act on).*isomerge prove"
    with pytest.raises(IsomergeError, match=said):
        isomerge.align(gpt2, onto=gpt2, out=out, spec=spec)
    for refused in (
        lambda: isomerge.merge([gpt2, gpt2], out=out, spec=spec),
        lambda: isomerge.canon(gpt2, out=out, spec=spec),
        lambda: isomerge.verify(gpt2, gpt2, spec=spec),
        lambda: isomerge.fingerprint(gpt2, spec=spec),
    ):
        with pytest.raises(IsomergeError, match=said):
            refused()
    assert not out.exists()
    assert isomerge.inspect(gpt2, spec=spec)["spaces"]  # reading a text needs no proof


@thorough
def test_a_group_that_is_too_small_is_told(gpt2: Path, tmp_path: Path) -> None:
    """Half of a symmetry is one, and the larger group is named."""
    spec = written(tmp_path, text_of("gpt2", ("space ov: GL[l, h]", "space ov: O[l, h]")))
    report = isomerge.prove(gpt2, spec=spec)
    assert report["proven"]
    assert {"space": "ov", "group": "GL"} in [{k: row[k] for k in ("space", "group")} for row in report["larger"]]


def test_a_proof_is_demanded_once(gpt2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Comments and blanks need no new proof; another line, another config or another version does."""
    monkeypatch.setenv("ISOMERGE_CACHE", str(tmp_path / "cache"))
    text, config = text_of("gpt2"), config_of(gpt2)
    spec, tried = written(tmp_path, text), []
    real = trial.try_spec
    monkeypatch.setattr("isomerge.discovery.trial.try_spec", lambda *args: tried.append(1) or real(*args))
    for number, (edited, count) in enumerate([(text, 1), (text, 1), (f"# a comment\n\n{text}   ", 1)]):
        spec.write_text(edited)
        isomerge.align(gpt2, onto=gpt2, out=tmp_path / f"out{number}", spec=spec)
        assert len(tried) == count
    assert recall(text, {**config, "transformers_version": "0", "_name_or_path": "elsewhere"})
    assert not recall(text, {**config, "activation_function": "relu"})
    assert not recall(text.replace("ov: GL", "ov: O"), config)
    monkeypatch.setattr(remembered, "__version__", "0.0.0")
    assert not recall(text, config)


def test_a_proof_that_cannot_be_kept_is_made_again(
    gpt2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cache that cannot be written stops nothing, and a damaged proof is none."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ISOMERGE_CACHE", str(tmp_path / "file"))
    assert remember("model gpt2", {}, KEPT) is None
    monkeypatch.setenv("ISOMERGE_CACHE", str(tmp_path / "cache"))
    file = remember("model gpt2", {}, KEPT)
    assert file is not None
    assert recall("model  gpt2\n", {})
    for damage in ("", "{", "[]", '{"proven": 1.5, "refuted": null}', '{"proven": true}'):
        file.write_text(damage)
        assert not recall("model gpt2", {})


def test_a_class_that_cannot_be_built(tmp_path: Path) -> None:
    """The sentence says how to bring a module of one's own."""
    (tmp_path / "config.json").write_text('{"model_type": "nothing_like_it"}')
    with pytest.raises(IsomergeError, match=r"transformers .* cannot make a model .*module='FILE.py:FUNCTION'"):
        isomerge.prove(tmp_path)
