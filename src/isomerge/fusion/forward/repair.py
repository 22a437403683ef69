"""REPAIR: the activations of a merged model get the statistics of its parents back (Jordan et al. 2023).

Averaged weights of unlike units cancel in part, so the outputs of a merged layer vary less than its parents' do,
and each layer passes that on ("variance collapse"). Here every output unit of a linear layer is rescaled and
shifted,

    W_i <- s_i W_i,  b_i <- s_i (b_i - m_i) + m*_i,  s_i = d*_i / d_i,

with m, d its mean and standard deviation over tokens in the merged model, and m*, d* the weighted means of the
parents'. The change is folded into the layer, so the architecture stays. Layers are treated in the order of
execution, each on what the repaired ones before it give (appendix of the paper). No symmetry has to hold: a merged
model is rescaled, not moved along its orbit, so units behind rotary positions or in grouped heads are rescaled one
by one like all others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from isomerge.errors import IsomergeError
from isomerge.fusion.forward.sequential_regression import shares_of
from isomerge.observe.data.examples import Examples
from isomerge.observe.stats.layer_sequence import Layer, Order, Rewritten, find_order, matrix
from isomerge.observe.stats.taps import run_until
from isomerge.progress import Observer, quiet
from isomerge.records import Json

# A unit whose deviation is below this fraction of its parents' is dead: rescaling would blow up rounding, and
# weights.
DEAD = 1e-2


@dataclass
class Moments:
    """Mean and sum of squared deviations per unit, float64 [width], joined batch by batch (Chan et al. 1979)."""

    n: int = 0
    mean: Any = 0.0
    spread: Any = 0.0

    def add(self, x: Tensor) -> None:
        """Count rows [n, width] as well."""
        if len(x) == 0:
            return
        n, mean = len(x), x.mean(0)
        step, total = mean - self.mean, self.n + n
        self.spread = self.spread + (x - mean).square().sum(0) + step.square() * (self.n * n / total)
        self.mean = self.mean + step * (n / total)
        self.n = total

    @property
    def deviation(self) -> Tensor:
        """The standard deviation of what was counted, not of a population behind it."""
        return (self.spread / max(self.n, 1)) ** 0.5


def repair(
    merged: nn.Module,
    endpoints: Sequence[nn.Module],
    weights: Sequence[float],
    examples: Examples,
    *,
    batch_size: int = 32,
    observer: Observer = quiet,
) -> Rewritten:
    """Give every linear layer's output units the mean and deviation of the endpoints', in place.

    Left as they are: layers whose outputs nothing reads but a loss (a classifier's or a language model's logits, as
    in the paper), layers with tied weights, and units that are dead in the merged model. A layer without a bias is
    only rescaled: its mean cannot be folded, and its row of the report says so (``shifted`` is false).

    Args:
        merged: the average of the endpoints, or any other merge of them, in eval mode; changed in place.
        endpoints: the aligned models, in eval mode and in one basis, on the same device.
        weights: one per endpoint, not negative; divided by their sum.
        examples: unlabelled ones will do.
        batch_size: examples that are run at a time.

    Returns:
        Per layer the median of merged deviation / wanted deviation, ``before``.

    Raises:
        IsomergeError: weights that cannot be used, or examples that do not fit.
    """
    shares = shares_of(weights, len(endpoints))
    if min(shares) < 0:
        raise IsomergeError(f"--weights: REPAIR mixes deviations, so none may be negative, got {list(weights)}")
    order = find_order(merged, examples)
    kept = dict(order.kept)
    chosen = list(_chosen(order, kept))
    rows = []
    with torch.no_grad():
        for number, group in enumerate(chosen):
            observer(f"repairing {group[0].path}", number, len(chosen))
            mine = _moments(merged, examples, group, batch_size)
            theirs = [_moments(endpoint, examples, group, batch_size) for endpoint in endpoints]
            for layer in group:
                own, parents = mine[layer.path], [t[layer.path] for t in theirs]
                if min(m.n for m in (own, *parents)) < 2:
                    kept[layer.path] = "it reads too few tokens"
                else:
                    rows.append(_fold(merged, layer, own, parents, shares))
    observer("", len(chosen), len(chosen))
    return Rewritten(rows, kept)


def _chosen(order: Order, kept: dict[str, str]) -> Iterator[list[Layer]]:
    """The groups' layers that are to be repaired; why others are not goes into ``kept``."""
    for group in order.groups:
        repaired = []
        for layer in group:
            if layer.head:
                kept[layer.path] = "no layer reads its outputs"
            else:
                repaired.append(layer)
        if repaired:
            yield repaired


def _moments(module: nn.Module, examples: Examples, group: Sequence[Layer], size: int) -> dict[str, Moments]:
    """The statistics of the outputs of some layers, over all tokens."""
    by_path = {layer.path: Moments() for layer in group}
    calls = {(layer.path, "out"): layer.calls for layer in group}
    for batch in examples.without_padding(size):
        for (path, _), parts in run_until(module, batch, calls).items():
            for x in parts:
                by_path[path].add(x)
    for path, moments in by_path.items():
        if moments.n and not bool((moments.mean + moments.spread).isfinite().all()):
            raise IsomergeError(f"activations at {path} are not finite: load the models in float32")
    return by_path


def _fold(
    module: nn.Module, layer: Layer, own: Moments, parents: Sequence[Moments], shares: Sequence[float]
) -> Json:
    """Rescale and shift the units of one layer; returns its row of the report."""
    part: Any = module.get_submodule(layer.path)
    wanted = sum(share * m.deviation for m, share in zip(parents, shares, strict=True))
    mean = sum(share * m.mean for m, share in zip(parents, shares, strict=True))
    assert isinstance(wanted, torch.Tensor)
    assert isinstance(mean, torch.Tensor)
    alive = own.deviation > DEAD * wanted.clamp_min(torch.finfo(torch.float64).tiny)
    scale = torch.where(alive, wanted / own.deviation.clamp_min(torch.finfo(torch.float64).tiny), 1.0)
    weight = matrix(part)
    weight.copy_(weight.double() * scale[:, None])
    if part.bias is not None:
        part.bias.copy_(scale * (part.bias.double() - own.mean) + mean)
    ratio = (own.deviation / wanted)[alive & (wanted > 0)]
    return {
        "layer": layer.path,
        "tokens": own.n,
        "before": float(ratio.median()) if len(ratio) else 1.0,
        "dead": int((~alive).sum()),
        "shifted": part.bias is not None,
    }
