"""Classes of transformers: the one that reads a checkpoint, and quiet while it does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from isomerge.errors import IsomergeError
from isomerge.models.model_inputs import Inputs

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

    name = class_name(config, names)
    kind = getattr(transformers, name, None)
    if kind is None or not hasattr(kind, "from_pretrained"):
        raise IsomergeError(
            f"{folder}/config.json: transformers {transformers.__version__} has no class {name} "
            "(architectures): correct it, or update transformers"
        )
    return kind


def class_name(config: Mapping[str, Any], names: Sequence[str]) -> str:
    """The name of the class that reads a checkpoint; see `class_of`."""
    named = config.get("architectures")
    if isinstance(named, list) and named:
        return str(named[0])
    if any(name.startswith("classifier.") for name in names):
        return f"AutoModelFor{'Image' if 'image_size' in config else 'Sequence'}Classification"
    auto = next(
        (auto for start, auto in AUTO_BY_HEAD.items() if any(n.startswith(start) for n in names)), "AutoModel"
    )
    return "AutoModelForSeq2SeqLM" if auto == "AutoModelForCausalLM" and config.get("is_encoder_decoder") else auto


def loss_examples(config: Mapping[str, Any], names: Sequence[str]) -> str:
    """What the loss of a checkpoint is measured on, and a match is learned from; nothing is loaded for it.

    Returns:
        ``texts`` where the next token is predicted, ``labelled examples`` of other heads; empty where transformers
        has no class for it (parts of diffusion pipelines, types that only a spec knows), or one whose outputs are
        not compared with labels here (bare bodies, spans of answers, boxes).
    """
    name = class_name(config, names)
    known = config.get("model_type") if name.startswith("Auto") else name
    if f'"{known}"' not in _listed() or name.endswith("QuestionAnswering"):
        return ""
    task = Inputs({**config, "architectures": [name]}).task
    bare = name.endswith("Model") and not name.endswith(("LMHeadModel", "MTModel"))
    if bare or (task == "classes" and "Classification" not in name):
        return ""
    return "texts" if task == "causal" else "labelled examples"


@cache
def _listed() -> str:
    """The text in which transformers lists its types and classes; importing it takes seconds. Empty where there is
    none."""
    package = find_spec("transformers")
    folders = (package.submodule_search_locations if package else None) or ()
    files = [Path(folder) / "models" / "auto" / "modeling_auto.py" for folder in folders]
    return "".join(file.read_text(encoding="utf-8") for file in files if file.is_file())
