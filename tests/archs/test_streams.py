"""The law of residual streams: gains folded, the stream turned, new gains taken on, and the outputs stay."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from archs.test_mutants import model_type_of
from families import STREAM_MUTANTS, STREAMS, WITHOUT_GAINS
from isomerge.archs import expanded_texts
from isomerge.errors import IsomergeError
from isomerge.evidence.law import random_alignment, random_turn, with_streams
from isomerge.symmetry.alignment import Alignment
from isomerge.symmetry.language.spec import Spec
from isomerge.symmetry.language.spec_text import parse_spec
from mutants import StreamMutant
from toys import SAMPLE, TRIED, Toy, config_of, load_toy, outputs, relative, write_toy

UNREAD_BY_NORMS = {
    "down1",
    "down2",
    "mid",
    "wide",
    "merged",
    "seen",
    "told",
    "drawn",
    "vision_down",
    "up1",
    "up2",
    "lat",
}
"""Streams between linear maps, which no norm reads: there is nothing to fold before they are turned."""


def largest_groups(name: str) -> dict[str, str]:
    """The largest group of every stream of a toy, by the stream's name."""
    declared = STREAMS.get(name, "Perm")
    return {"res": declared} if isinstance(declared, str) else declared


def turn(toy: Toy, spec: Spec, seed: int = 1, *, gains: bool = False) -> Alignment:
    """A random element of a toy's streams and local spaces by the groups of a spec."""
    blocks = toy.fresh()
    return random_turn(spec, toy.blocks, blocks.__getitem__, torch.Generator().manual_seed(seed), gains=gains)


def turned(toy: Toy, element: Alignment) -> dict[str, torch.Tensor]:
    """The toy's weights after an element."""
    blocks = toy.fresh()
    element.act(blocks)
    return toy.named(blocks)


@pytest.mark.parametrize(
    ("name", "groups", "gains"),
    [
        *((n, "largest", True) for n in TRIED),
        *((n, *how) for n in SAMPLE for how in (("largest", False), ("declared", True))),
    ],
)
def test_turned_stream(name: str, groups: str, gains: bool, toy: Callable[..., Toy], tmp_path: Path) -> None:
    """Through the real reader and writer, by the largest group and by the declared one."""
    model = toy(name)
    spec = with_streams(model.spec, groups)
    own = model.spec.stream_groups
    still = {stream: group for stream, group in own.items() if group == "Fixed"}
    wanted = still | largest_groups(name) if groups == "largest" else own
    assert spec.stream_groups == wanted
    element = turn(model, spec, gains=gains)
    assert len(element.stages) == (
        2
        if gains
        and (spec.turned_latents or {wanted[n] for n in wanted.keys() - UNREAD_BY_NORMS} & {"O", "OFixingOnes"})
        and name not in WITHOUT_GAINS
        else 1
    )
    new = turned(model, element)
    assert model.change(new) > 0.1
    assert relative(outputs(write_toy(model, new, tmp_path / "out")), model.reference) < model.tolerance


def as_seen_by(model: Toy, mutant: StreamMutant) -> Toy:
    """The toy as the wrong spec sees it: ties are not looked at, the group is the mutant's."""
    origin, text = expanded_texts()[model_type_of(mutant.toy)]
    text = re.sub(" +", " ", text)
    for edit in mutant.edits:
        old, _, new = edit.partition(" => ")
        assert old in text, f"{origin} has no {old!r}"
        text = text.replace(old, new)
    for scale in re.findall(r"residual (\w+): Scale.*\n", text):  # a scale that no line uses is no symmetry
        if not re.search(rf"[ (]{scale}['\)]", text):
            text = re.sub(rf"residual {scale}: Scale.*\n", "", text)
    spec = parse_spec(text, config_of(model.folder), origin, expanded_texts())
    return load_toy(model.name, model.folder, spec.with_group(mutant.stream, mutant.group))


@pytest.mark.parametrize("mutant", STREAM_MUTANTS, ids=lambda m: f"{m.toy}: {m.wrong}")
def test_rejected(mutant: StreamMutant, toy: Callable[..., Toy], tmp_path: Path) -> None:
    """Turned by what the wrong spec calls a symmetry, the model is another function."""
    model = as_seen_by(toy(mutant.toy), mutant)
    new = turned(model, turn(model, model.spec))
    found = relative(outputs(write_toy(model, new, tmp_path / "out")), toy(mutant.toy).reference)
    assert found > 1e-3


@pytest.mark.parametrize("name", [n for n, group in STREAMS.items() if group in ("O", "OFixingOnes", "Perm")])
def test_rotation_needs_folding(name: str, toy: Callable[..., Toy]) -> None:
    """A stream that is rotated under gains is refused by the action itself, before anything is written."""
    model = toy(name)
    g = random_alignment(with_streams(model.spec), model.blocks, torch.Generator().manual_seed(1), ["res"])
    with pytest.raises(IsomergeError, match=r"gain that is not constant.*fold"):
        g.act(model.fresh())


@pytest.mark.parametrize(("name", "edit"), [("llama", "norm.weight diag(res nf)"), ("dinov2", "diag(res s1')")])
def test_a_gain_without_a_scale_is_seen(name: str, edit: str, toy: Callable[..., Toy]) -> None:
    """``can_fold`` is False where one gain has no scale, and the largest group is then the declared one."""
    origin, text = expanded_texts()[model_type_of(name)]
    text = re.sub(" +", " ", text)
    spec = parse_spec(
        text.replace(edit, re.sub(r"diag\(res \w+'?\)", "diag(res)", edit)), config_of(toy(name).folder), origin
    )
    assert toy(name).spec.can_fold("res")
    assert not spec.can_fold("res")
    assert with_streams(spec).spaces["res"].group_name == toy(name).spec.spaces["res"].group_name
