"""Twins: one function in other weights, which every command is to know."""

from __future__ import annotations

from pathlib import Path

import torch

import isomerge
from toys import Toy, outputs, relative, tensors


def assert_known_everywhere(first: Toy, twin: Path, folder: Path, *, merged: float) -> None:
    """One function for the class, `verify`, the fingerprint and the canonical form; `align` brings the twin back, and a
    merge keeps the function.

    Args:
        first: the toy.
        twin: its twin.
        folder: for what is written.
        merged: how far outputs of the merge may be, relative to the toy's.
    """
    assert relative(outputs(twin), first.reference) < first.tolerance
    assert isomerge.verify(first.folder, twin)["same"] is True
    assert isomerge.fingerprint(first.folder).hash == isomerge.fingerprint(twin).hash
    _, report = isomerge.align(twin, onto=first.folder)
    assert report["distance"]["after"] < 1e-4 * report["distance"]["before"]
    isomerge.merge([first.folder, twin], out=folder / "merged")
    assert relative(outputs(folder / "merged"), first.reference) < merged
    for source, out in ((first.folder, "one"), (twin, "two")):
        isomerge.canon(source, out=folder / out)
    one, two = tensors(folder / "one"), tensors(folder / "two")
    assert all(torch.allclose(t, two[n], rtol=1e-4, atol=1e-4) for n, t in one.items())


def assert_replayed_and_undone(element: Path, twin: Path, aligned: Path, folder: Path, far: float) -> None:
    """An alignment that was saved makes of a twin once more what it was aligned to, and undoes it.

    Args:
        element: its file.
        twin: what was aligned.
        aligned: what came of it.
        folder: for what is written.
        far: how far tensors may be, relative to their norms.
    """
    isomerge.apply(element, twin, out=folder / "replayed")
    isomerge.apply(element, folder / "replayed", out=folder / "undone", inverse=True)
    for one, two in ((aligned, folder / "replayed"), (folder / "undone", twin)):
        here, there = tensors(one), tensors(two)
        assert max(float((t - there[n]).norm() / t.norm().clamp_min(1e-3)) for n, t in here.items()) < far
