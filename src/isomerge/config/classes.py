"""What a config says of a head for classes: the class that has it, and the labels."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from isomerge.config.keys import LABELS
from isomerge.records import Json

ENDINGS = {
    "SEQ_CLS": "ForSequenceClassification",
    "TOKEN_CLS": "ForTokenClassification",
    "QUESTION_ANS": "ForQuestionAnswering",
}
"""How the names of transformers' classes end, by peft's tasks."""
_HEAD = re.compile(r"(For[A-Z]\w*|(WithLMHead|LMHead)?Model)$", re.ASCII)


def with_classes(config: Mapping[str, Any], adapter: Mapping[str, Any], classes: int) -> Json:
    """A config with the class and the labels of a head that an adapter brings.

    Args:
        config: of the base.
        adapter: the parsed adapter_config.json: peft notes a task, or the class that it was trained on.
        classes: rows of the head. Where the base names another number of classes, nobody has named these.
    """
    named = (adapter.get("auto_mapping") or {}).get("base_model_class")
    own = str((config.get("architectures") or [""])[0])
    if (ending := ENDINGS.get(str(adapter.get("task_type")))) is not None and own:
        named = _HEAD.sub("", own) + ending
    changed = {**config, **({"architectures": [named]} if isinstance(named, str) else {})}
    if len(config.get("id2label") or {}) != classes:
        names = [f"LABEL_{row}" for row in range(classes)]
        by_id = {str(row): name for row, name in enumerate(names)}
        changed |= dict(zip(LABELS, (by_id, {name: row for row, name in enumerate(names)}), strict=True))
    return {**changed, **({"num_labels": classes} if "num_labels" in config else {})}
