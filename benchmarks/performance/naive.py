"""The seed paper's Algorithm 1 as a reader of its equations would write it: the yardstick of speed.

One loop over layers and heads, a singular value decomposition per head (Eq. 10), the roots of a quartic per head
(Eq. 11 and 12), neurons by scipy's assignment (Eq. 7), and permutations as dense matrices (Eq. 4). Nothing is made
slow on purpose, and nothing is made fast. Layers are dictionaries ``{"q.weight": Tensor, "q.bias": ..., "i.weight":
...}`` with weights [out, in]: queries, keys, values, the attention's output, the neurons' inputs and outputs.

    python -m benchmarks.performance.naive SOURCE ANCHOR OUT     # checkpoint folders of `benchmarks.performance.pairs`
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from benchmarks.performance.pairs import Layer, layers_of, names_of


def match(source: Sequence[Layer], anchor: Sequence[Layer], heads: int) -> list[Layer]:
    """Every layer of the source, matched to the anchor's; nothing that is given is changed.

    Args:
        source, anchor: layers of the same shapes, float32.
        heads: attention heads of a layer.
    """
    found = []
    for mine, theirs in zip(source, anchor, strict=True):
        layer = {name: tensor.clone() for name, tensor in mine.items()}
        size = len(layer["q.weight"]) // heads
        for head in range(heads):
            rows = slice(head * size, (head + 1) * size)
            for plain, dual in ("qk", "vo"):
                _match_head(_head(layer, plain, rows), _head(layer, dual, rows),
                            _head(theirs, plain, rows), _head(theirs, dual, rows))  # fmt: skip
        _match_neurons(layer, theirs)
        found.append(layer)
    return found


def _head(layer: Layer, name: str, rows: slice) -> list[Tensor]:
    """What one head has of a projection, as writable views with the head's coordinates first."""
    weight = layer[f"{name}.weight"]
    return [weight[:, rows].T] if name == "o" else [weight[rows], layer[f"{name}.bias"][rows].unsqueeze(1)]


def _match_head(plain: list[Tensor], dual: list[Tensor], plain_2: list[Tensor], dual_2: list[Tensor]) -> None:
    """Rotate both sides of a product (Eq. 10), then rescale them (Eq. 12), in place."""
    cross = sum(x @ y.T for x, y in zip(plain + dual, plain_2 + dual_2, strict=True))
    u, _, vh = torch.linalg.svd(torch.as_tensor(cross))
    rotation = u @ vh
    for part in plain + dual:
        part.copy_(rotation.T @ part)
    factor = _factor(_inner(plain, plain), _inner(plain, plain_2), _inner(dual, dual), _inner(dual, dual_2))
    for part in plain:
        part.mul_(factor)
    for part in dual:
        part.div_(factor)


def _inner(x: list[Tensor], y: list[Tensor]) -> float:
    return sum(float((a * b).sum()) for a, b in zip(x, y, strict=True))


def _factor(xx: float, xy: float, yy: float, yz: float) -> float:
    """Of the real roots of Eq. 12, the one with the least value of Eq. 11."""
    roots = np.roots([xx, -xy, 0.0, yz, -yy])
    real = [r.real for r in roots if abs(r.imag) < 1e-9 * max(1.0, abs(r)) and r.real != 0]
    return min(real, key=lambda a: a * a * xx - 2 * a * xy + yy / (a * a) - 2 * yz / a)


def _match_neurons(layer: Layer, anchor: Layer) -> None:
    """The permutation of Eq. 7 as a matrix, and Eq. 4 with it."""
    profit = layer["i.weight"] @ anchor["i.weight"].T + torch.outer(layer["i.bias"], anchor["i.bias"])
    profit += layer["f.weight"].T @ anchor["f.weight"]
    rows, columns = linear_sum_assignment(profit.numpy(), maximize=True)
    p = torch.zeros_like(profit)
    p[rows, columns] = 1.0
    layer["i.weight"], layer["i.bias"], layer["f.weight"] = (
        p.T @ layer["i.weight"], layer["i.bias"] @ p, layer["f.weight"] @ p
    )  # fmt: skip


def squared_distance(one: Sequence[Layer], two: Sequence[Layer]) -> float:
    """What is minimised: the sum of squared differences of all matched tensors, in float64."""
    return sum(
        float((a[n].double() - t.double()).square().sum())
        for a, b in zip(one, two, strict=True)
        for n, t in b.items()
    )


def main(source: str, anchor: str, out: str) -> None:
    """Read two checkpoints, match the first, and write it with what nothing moves."""
    from safetensors.torch import load_file, save_file

    stored = load_file(Path(source) / "model.safetensors")
    other = load_file(Path(anchor) / "model.safetensors")
    config = json.loads((Path(source) / "config.json").read_text())
    matched = match(layers_of(stored, config), layers_of(other, config), config["num_attention_heads"])
    for number, layer in enumerate(matched):
        stored |= {names_of(config["model_type"], number)[name]: tensor for name, tensor in layer.items()}
    Path(out).mkdir(parents=True)
    save_file({name: tensor.contiguous() for name, tensor in stored.items()}, Path(out) / "model.safetensors")
    (Path(out) / "config.json").write_text(json.dumps(config))


if __name__ == "__main__":
    main(*sys.argv[1:])
