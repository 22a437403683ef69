"""What is refused before data are opened: no name of data, and checkpoints for which there are none."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from isomerge.errors import IsomergeError
from isomerge.models.model_inputs import Inputs

FORMS = (
    "give images, text, JSON lines, a table, parquet, safetensors, a data set of the package datasets, or a "
    "Python function module:function"
)


def check_given(ref: Any, option: str) -> None:
    """Refuse a name of data that is empty, which would be the current folder, or nothing.

    Raises:
        IsomergeError: naming the option.
    """
    if isinstance(ref, str) and not ref.strip():
        raise IsomergeError(f"{option} is empty: {FORMS}, or leave it out")


def check_reads(inputs: Inputs, folder: Path) -> None:
    """Refuse a checkpoint that no data can be made for.

    Args:
        inputs: of the checkpoint.
        folder: its folder, which errors name.

    Raises:
        IsomergeError: its class reads neither text nor images, or hides parts of images at random.
    """
    if inputs.images and inputs.architecture.endswith("ForPreTraining"):
        raise IsomergeError(
            f"{folder}: {inputs.architecture} hides parts of every image at random, so no two models see the same: "
            "match it by its weights alone, without data"
        )
    if not inputs.architecture:
        return
    import transformers

    with contextlib.suppress(ImportError, RuntimeError):  # told by whoever loads the module
        needed = getattr(getattr(transformers, inputs.architecture, None), "main_input_name", "input_ids")
        if needed not in ("input_ids", "pixel_values"):
            raise IsomergeError(
                f"{folder}: {inputs.architecture} reads {needed}, and data are text or images: match it by its "
                "weights alone, without data"
            )
