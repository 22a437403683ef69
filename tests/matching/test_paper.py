"""``--spaces paper`` is Algorithm 1 of the seed paper, written out plainly here from its equations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from isomerge.matching.distances import distance
from isomerge.matching.local import move_unit
from isomerge.matching.selection import select_spaces
from isomerge.symmetry.alignment import Alignment
from isomerge.symmetry.language.spec import Spec
from isomerge.symmetry.units import plan_units
from matching.drawn import Blocks, draw, moved, small_spec

Layer = dict[str, Tensor]
HEADS = 3
# q, k, v, o: attention; i, f: feed-forward
NAMES = {
    "bert": {
        "attention.self.query": "q", "attention.self.key": "k", "attention.self.value": "v",
        "attention.output.dense": "o", "intermediate.dense": "i", "output.dense": "f",
    },
    "vit": {
        "attention.attention.query": "q", "attention.attention.key": "k", "attention.attention.value": "v",
        "attention.output.dense": "o", "intermediate.dense": "i", "output.dense": "f",
    },
}  # fmt: skip


def layer_of(kind: str, blocks: Blocks) -> Layer:
    """The tensors of a layer under the paper's letters: ``q.weight``, ``q.bias``, ..."""
    found: Layer = {}
    for block, tensor in blocks.items():
        module, _, what = block.key.removeprefix("encoder.layer.0.").rpartition(".")
        found[f"{NAMES[kind][module]}.{what}"] = tensor.clone()
    return found


def rescaling(x1: list[Tensor], x2: list[Tensor], y1: list[Tensor], y2: list[Tensor]) -> float:
    """Eq. 11 and 12: the real a that minimises |a x1 - x2|^2 + |y1 / a - y2|^2."""

    def inner(u: list[Tensor], v: list[Tensor]) -> float:
        return sum(float((s * t).sum()) for s, t in zip(u, v, strict=True))

    xx, xy, yy, yz = inner(x1, x1), inner(x1, x2), inner(y1, y1), inner(y1, y2)
    roots = np.roots([xx, -xy, 0.0, yz, -yy])
    real = [r.real for r in roots if abs(r.imag) < 1e-9 * max(1.0, abs(r)) and r.real != 0]
    return min(real, key=lambda a: a * a * xx - 2 * a * xy + yy / a**2 - 2 * yz / a)


def sides(layer: Layer, names: str, rows: slice) -> list[list[Tensor]]:
    """Per side of a contraction, one head's slices, heads first; biases where there are any."""
    found = []
    for name in names:
        weight = layer[f"{name}.weight"]
        parts = [weight[:, rows].T if name == "o" else weight[rows]]
        if name != "o" and f"{name}.bias" in layer:
            parts.append(layer[f"{name}.bias"][rows])
        found.append(parts)
    return found


def match_head(a: Layer, b: Layer, names: str, rows: slice, rescale: bool) -> None:
    """Eq. 10, then Eq. 12: turn one head of ``a``, in place, then rescale it."""
    mine, theirs = sides(a, names, rows), sides(b, names, rows)
    cross = sum(
        torch.outer(s, t) if s.ndim == 1 else s @ t.T
        for left, right in zip(mine, theirs, strict=True)
        for s, t in zip(left, right, strict=True)
    )
    u, _, vt = torch.linalg.svd(torch.as_tensor(cross))
    for part in (p for side in mine for p in side):
        part.copy_((u @ vt).T @ part)
    if rescale:
        factor = rescaling(mine[0], theirs[0], mine[1], theirs[1])
        for side, by in ((mine[0], factor), (mine[1], 1 / factor)):
            for part in side:
                part.mul_(by)


def algorithm_1(a: Layer, b: Layer, rescale: bool) -> Layer:
    """The paper's matching of one layer ``a`` to the anchor ``b``."""
    a = {name: tensor.clone() for name, tensor in a.items()}
    size = a["q.weight"].shape[0] // HEADS
    for h in range(HEADS):
        for names in ("qk", "vo"):
            match_head(a, b, names, slice(h * size, (h + 1) * size), rescale)
    profit = a["i.weight"] @ b["i.weight"].T + torch.outer(a["i.bias"], b["i.bias"])
    profit = profit + a["f.weight"].T @ b["f.weight"]
    rows, columns = linear_sum_assignment(profit.numpy(), maximize=True)
    p = torch.zeros_like(profit)
    p[rows, columns] = 1.0
    return a | {"i.weight": p.T @ a["i.weight"], "i.bias": a["i.bias"] @ p, "f.weight": a["f.weight"] @ p}


def gap(a: Layer, b: Layer) -> float:
    """The squared distance."""
    return sum(float((a[name] - t).square().sum()) for name, t in b.items())


def ours(spec: Spec, preset: str, anchor: Blocks, source: Blocks) -> Blocks:
    """The source moved by our matching, unit by unit."""
    selection = select_spaces(spec, preset)
    elements: dict[str, Tensor] = {}
    for unit in plan_units(selection.spec, list(anchor)):
        pick = ({block: side[block] for block in unit.blocks} for side in (anchor, source))
        elements |= move_unit(selection, *pick, guard=False).alignment.elements
    return moved(Alignment(selection.spec, elements), source)


def pair(kind: str, head: int, bias: bool, seed: int) -> tuple[Spec, Blocks, Blocks]:
    """Two unrelated layers with heads of a given size."""
    config: dict[str, Any] = {"hidden_size": HEADS * head, "num_attention_heads": HEADS, "intermediate_size": 17}
    spec = small_spec(kind, **config)
    modules = ["attention", "intermediate", "{l}.output", "{l}.(output"]
    found = []
    for s in (seed, seed + 50):
        blocks = draw(spec, s, *modules, spread=0.5)
        keep = (b for b in blocks if not b.key.endswith("bias") or bias or "attention.attention" not in b.key)
        found.append({b: blocks[b] for b in keep if "orm" not in b.key})
    return spec, found[0], found[1]


CASES = [
    ("bert", 8, True),
    ("bert", 5, True),
    ("vit", 8, True),
    ("vit", 5, True),
    ("vit", 8, False),
    ("vit", 5, False),
]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("preset", ["paper", "paper-no-rescale"])
@pytest.mark.parametrize(("kind", "head", "bias"), CASES)
def test_same_distance(kind: str, head: int, bias: bool, preset: str, seed: int) -> None:
    """The distances after matching agree to rounding; each tensor does."""
    spec, anchor, source = pair(kind, head, bias, seed)
    b = layer_of(kind, anchor)
    assert ("q.bias" in b) == bias
    theirs = algorithm_1(layer_of(kind, source), b, preset == "paper")
    found = ours(spec, preset, anchor, source)
    assert gap(theirs, b) < gap(layer_of(kind, source), b) * (1 - 1e-3)
    assert distance(anchor, found) == pytest.approx(gap(theirs, b), rel=1e-9)
    assert all(torch.allclose(t, theirs[name], atol=1e-8) for name, t in layer_of(kind, found).items())


def test_rescaling_matters() -> None:
    """With sides of different size, the paper's last step brings models closer."""
    spec, anchor, source = pair("bert", 8, True, 0)
    with_, without = (distance(anchor, ours(spec, p, anchor, source)) for p in ("paper", "paper-no-rescale"))
    assert with_ < without - 1e-3


def test_same_negative_factor() -> None:
    """Eq. 12 takes the best real root; where q and k disagree about the sign it is negative."""
    spec, anchor, source = pair("vit", 5, False, 0)
    for block, t in source.items():
        if "query" in block.key or "key" in block.key:
            t.copy_(anchor[block] / (-3 if "query" in block.key else 0.25))
    b = layer_of("vit", anchor)
    theirs = algorithm_1(layer_of("vit", source), b, True)
    assert distance(anchor, ours(spec, "paper", anchor, source)) == pytest.approx(gap(theirs, b), rel=1e-9)
