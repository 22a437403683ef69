"""Activations of parameters in memory, for rounds that look at more than weights."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from isomerge.checkpoint.reader import Checkpoint
from isomerge.errors import IsomergeError, first_line
from isomerge.models.transformers_classes import class_of
from isomerge.observe.data.examples import Examples
from isomerge.observe.stats.taps import ROWS, Activations, capture
from isomerge.progress import silent
from isomerge.research.federated.parameters import Parameters, recognised


def activations_of(
    parameters: Parameters,
    examples: Examples,
    *,
    config: Any,
    names: Sequence[str] | None = None,
    rows: int = ROWS,
    batch_size: int = 16,
    spec: str | Path | None = None,
    ref: str = "a client",
) -> Activations:
    """What one model's layers give for some examples: up to ``rows`` rows at every place that matching looks at.

    Rows of two models belong together only where both read equal examples. So they are a small set that everybody
    may see, such as public or synthetic inputs without labels: never a client's own data. Whoever averages has all
    weights and can run them; clients can as well, and send ``values`` (float32 [rows, width] by place).

    Args:
        parameters: one model, float32 or wider; run on the CPU in float32.
        examples: equal for all models of a round.
        config, names, spec: see `isomerge.research.federated.aggregate`.
        rows: of every place, spread over examples and positions; a thousand suffice.
        batch_size: examples at a time; equal for all models of a round.
        ref: what to call the model in messages.

    Raises:
        IsomergeError: parameters or examples that do not fit.
    """
    (model,) = recognised({ref: parameters}, config, names, spec)
    head = examples.head(min(len(examples), rows))
    return capture(model, _module(model.checkpoint), head, rows=rows, batch_size=batch_size)


def _module(checkpoint: Checkpoint) -> nn.Module:
    """The transformers module of parameters in memory, float32, in eval mode."""
    import transformers

    config = {key: value for key, value in checkpoint.config.items() if key not in ("dtype", "torch_dtype")}
    kind: Any = class_of(checkpoint.config, tuple(checkpoint.tensors), checkpoint.folder)
    state = {name: checkpoint.read(name) for name in checkpoint.tensors}
    with silent():
        try:
            settings = transformers.AutoConfig.for_model(**config)
            if not issubclass(kind, transformers.PreTrainedModel):  # an auto class needs a folder
                with torch.device("meta"):  # nothing is allocated, nothing drawn
                    kind = type(kind.from_config(settings))
            loaded: Any = kind.from_pretrained(
                None,
                config=settings,
                state_dict=state,
                dtype=torch.float32,
                output_loading_info=True,
            )
        except Exception as error:  # as many types as there are ways not to fit
            raise IsomergeError(
                f"{checkpoint.ref}: transformers cannot run these parameters ({first_line(error)}); check config"
            ) from error
    module, info = loaded
    if missing := sorted(info.get("missing_keys") or ()):
        raise IsomergeError(
            f"{checkpoint.ref}: {kind.__name__} needs {missing[0]}, which was not given: check config"
        )
    return module.eval()
