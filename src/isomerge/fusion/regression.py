"""Sequential regression as a merge method: see `isomerge.fusion.forward.sequential_regression`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from isomerge.fusion.bounds import in_layers
from isomerge.fusion.forward.control import regress_with_control
from isomerge.fusion.forward.running import Forward
from isomerge.fusion.method_options import NOT_NEGATIVE, limited
from isomerge.fusion.registry import forward_method, per_model


@forward_method
@limited(ridge=NOT_NEGATIVE, bound=in_layers)
def regression(
    run: Forward, *, weight: Sequence[float] = per_model(1.0), ridge: float | None = None
) -> tuple[nn.Module, dict[str, Any]]:
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
