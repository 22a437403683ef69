"""Classes of transformers: the one that reads a checkpoint, and quiet while it does."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from isomerge.errors import IsomergeError

AUTO_BY_HEAD = {
    "cls.predictions.": "AutoModelForMaskedLM",
    "lm_head.dense.": "AutoModelForMaskedLM",
    "lm_predictions.": "AutoModelForMaskedLM",
    "vocab_projector.": "AutoModelForMaskedLM",
    "qa_outputs.": "AutoModelForQuestionAnswering",
    "score.": "AutoModelForSequenceClassification",
    "lm_head.": "AutoModelForCausalLM",
}
"""Which class reads a checkpoint without ``architectures``, by the tensors of its head; the first that fits."""


def class_of(config: Mapping[str, Any], names: Sequence[str], folder: str | Path) -> Any:
    """The class that ``architectures`` in config.json names; where there is none, the auto class for the head that
    is stored.

    Args:
        config: the parsed ``config.json``.
        names: of the stored tensors.
        folder: of the checkpoint, for messages.

    Raises:
        IsomergeError: transformers has no such class.
    """
    import transformers

    named = config.get("architectures")
    if isinstance(named, list) and named:
        kind = getattr(transformers, str(named[0]), None)
        if kind is None or not hasattr(kind, "from_pretrained"):
            raise IsomergeError(
                f"{folder}/config.json: transformers {transformers.__version__} has no class {named[0]} "
                "(architectures): correct it, or update transformers"
            )
        return kind
    if any(name.startswith("classifier.") for name in names):
        return getattr(
            transformers, f"AutoModelFor{'Image' if 'image_size' in config else 'Sequence'}Classification"
        )
    auto = next(
        (auto for start, auto in AUTO_BY_HEAD.items() if any(n.startswith(start) for n in names)), "AutoModel"
    )
    if auto == "AutoModelForCausalLM" and config.get("is_encoder_decoder"):
        auto = "AutoModelForSeq2SeqLM"
    return getattr(transformers, auto)


@contextlib.contextmanager
def silent() -> Iterator[None]:
    """Without the bars and reports of transformers: what they say becomes one sentence here."""
    from transformers.utils import logging

    bars, level = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity(50)  # critical
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
