"""Sequential regression as a merge method, beside its control: what the same regression makes of the models as they
are stored.

Regression repairs much of a bad average by itself: two digit classifiers that were not aligned at all come from 12
to 95 %. What alignment gave is seen only beside the figure without it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from isomerge.checkpoint.own_class import own_class_of
from isomerge.errors import IsomergeError
from isomerge.fusion.bounds import in_layers
from isomerge.fusion.forward.running import Forward
from isomerge.fusion.forward.sequential_regression import default_ridge, regress, shares_of
from isomerge.fusion.method_options import NOT_NEGATIVE, limited
from isomerge.fusion.registry import forward_method, per_model
from isomerge.observe.data.examples import Examples
from isomerge.observe.live.module_state import average
from isomerge.observe.live.own_modules import first_output
from isomerge.observe.losses import by_position, divergence, outputs_of
from isomerge.observe.predictions import prediction_of
from isomerge.observe.stats.layer_sequence import Rewritten
from isomerge.progress import Observer, quiet
from isomerge.records import Json

# The part of the examples that nothing is regressed on, and from how many on there is one.
HELD_OUT, ENOUGH = 1 / 8, 16


def regress_with_control(
    endpoints: Sequence[nn.Module],
    unaligned: Callable[[], Sequence[nn.Module]] | None,
    weights: Sequence[float],
    examples: Examples,
    *,
    ridge: float | None = None,
    observer: Observer = quiet,
) -> tuple[nn.Module, Rewritten, Json]:
    """Average and regress models, and do the same to the models as they are stored.

    Args:
        endpoints: the aligned models, live; not changed.
        unaligned: gives the stored ones when they are needed, after the regression; None when ``endpoints`` are
            those.
        weights: one per model.
        examples: unlabelled; an eighth of them, drawn by a seed, is held out to measure on (all, below 16
            examples).
        ridge: see `isomerge.fusion.forward.sequential_regression.regress`.

    Returns:
        The merged module, what was done to it, and a report: ``average`` and ``regression``, each with the figures
        of `output_error`, the same two under ``control`` for the unaligned models, ``fitted`` and ``measured``
        numbers of examples, and whether these are ``held_out``.

    Raises:
        IsomergeError: see `isomerge.fusion.forward.sequential_regression.regress`.
    """
    held_out = len(examples) >= ENOUGH
    fitted, measured = examples.split(1 - HELD_OUT) if held_out else (examples, examples)
    ridge = default_ridge(len(examples)) if ridge is None else ridge

    def both(models: Sequence[nn.Module], what: str) -> tuple[nn.Module, Rewritten, Json]:
        merged = average(models, shares_of(weights, len(models)))
        before = output_error(merged, models, weights, measured)
        rows = regress(
            merged, models, weights, fitted, ridge=ridge,
            observer=lambda step, done, total: observer(f"{what}{step}" if step else "", done, total),
        )  # fmt: skip
        after = output_error(merged, models, weights, measured)
        return merged, rows, {"average": before, "regression": after}

    merged, rows, report = both(endpoints, "")
    control = report if unaligned is None else both(unaligned(), "control: ")[2]
    sizes = {"fitted": len(fitted), "measured": len(measured), "held_out": held_out, "ridge": ridge}
    return merged, rows, {**report, "control": dict(control), **sizes}


def output_error(
    module: nn.Module, endpoints: Sequence[nn.Module], weights: Sequence[float], examples: Examples
) -> Json:
    """How far a merged module's outputs are from its parents'.

    Returns:
        ``error``: ``|f - sum_m w_m f_m| / |sum_m w_m f_m|`` over logits (or last hidden states) of all tokens;
        ``divergence``: the mean KL(equal mean of the parents' distributions || the module's) in nats, for values
        the mean squared difference; None without logits.
    """
    shares = shares_of(weights, len(endpoints))
    gap = size = total = 0.0
    count, logits = 0, True
    kind = prediction_of(module, examples.tensors.get("labels"))
    with torch.no_grad():
        for batch in examples.without_padding(32):
            kept: Any = None
            own, logits = _outputs(module, batch)
            ends = [_outputs(endpoint, batch)[0] for endpoint in endpoints]
            mask = batch.get("attention_mask")
            if mask is not None and own.ndim == 3 and mask.shape == own.shape[:-1]:
                kept = mask.to(own.device) == 1
            mean = sum(share * end for end, share in zip(ends, shares, strict=True))
            assert isinstance(mean, torch.Tensor)
            rows = (own - mean, mean) if kept is None else ((own - mean)[kept], mean[kept])
            gap, size = gap + float(rows[0].square().sum()), size + float(rows[1].square().sum())
            if logits:
                total, count = total + float(divergence(ends, own, kept, kind).sum()), count + len(own)
    return {"error": (gap / size) ** 0.5 if size else 0.0, "divergence": total / count if logits else None}


def _outputs(module: nn.Module, batch: Mapping[str, Tensor]) -> tuple[Tensor, bool]:
    """Logits or last hidden states, float64, and whether they are logits."""
    outputs = outputs_of(module, batch)
    if own_class_of(module) is not None:
        return first_output(module, outputs).double(), True
    for name in ("logits", "prediction_logits", "last_hidden_state"):
        if (x := getattr(outputs, name, None)) is not None:
            return by_position(module, x).double(), name != "last_hidden_state"
    raise IsomergeError(f"{type(module).__name__} gives neither logits nor hidden states: give another checkpoint")


@forward_method
@limited(ridge=NOT_NEGATIVE, bound=in_layers)
def regression(
    run: Forward, *, weight: Sequence[float] = per_model(1.0), ridge: float | None = None
) -> tuple[nn.Module, Json]:
    """Layer by layer, every linear map regressed onto the aligned models' outputs, on inputs from the merged layers
    before.

    No point of the line between the models: a distillation in closed form. The report has the errors of the outputs
    on held-out examples, and those of the same regression without alignment as a control.

    Args:
        run: the aligned models, live, and examples; labels are not looked at.
        weight: of every model in the targets.
        ridge: relative to the mean of a Gram matrix's diagonal; by default 1e-3, and 1e-2 for fewer than 256
            examples.
    """
    unaligned = run.unaligned if run.aligned else None
    module, rewritten, report = regress_with_control(
        run.endpoints, unaligned, weight, run.examples, ridge=ridge, observer=run.observer
    )
    return module, {**report, "kept": rewritten.kept}
