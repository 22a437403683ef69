"""Relational models on disk: the config in ``relational.json``, the state in ``model.safetensors``."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from isomerge.errors import IsomergeError
from isomerge.files import write_tensors, write_whole
from isomerge.research.relational.config import RelationalConfig
from isomerge.research.relational.transformer import RelationalTransformer

CONFIG, WEIGHTS, CARD = "relational.json", "model.safetensors", "README.md"
SAID = """# Relational form

A transformer that sees Gram numbers only (Francois and Ravera, arXiv:2602.18948){origin}.
It is no model of transformers; it is loaded so:

```python
from isomerge.research.relational import load

model = load("{folder}")  # a torch module: tokens (B, T) or patches (B, T, pixels) in, logits out
```
"""


def save(
    model: RelationalTransformer, folder: str | Path, origin: str | None = None, *, name: str | None = None
) -> None:
    """Write a relational model into a folder, which is made where it is not there.

    Args:
        model: of any float dtype, on any device.
        folder: where; files of these names are replaced.
        origin: what it was made from, for the card.
        name: what the card calls the folder, where it is moved afterwards.

    Raises:
        IsomergeError: it cannot be written.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    dtype = str(next(model.parameters()).dtype).removeprefix("torch.")
    about: dict[str, Any] = {"format": "isomerge relational 1", "dtype": dtype, "config": asdict(model.config)}
    write_tensors(folder / WEIGHTS, {name: x.cpu() for name, x in model.state_dict().items()})
    card = SAID.format(origin=f", made of {origin}" if origin else "", folder=name or folder.name)
    write_whole(folder / CARD, card.encode())
    write_whole(folder / CONFIG, (json.dumps(about, indent=1, sort_keys=True) + "\n").encode())


def load(folder: str | Path) -> RelationalTransformer:
    """A relational model that `save` or ``isomerge relational`` wrote; in eval mode, on the CPU.

    Raises:
        IsomergeError: no such folder, or files that do not fit together.
    """
    folder = Path(folder)
    if not (folder / CONFIG).is_file():
        raise IsomergeError(f"{folder} has no {CONFIG}: expected a folder that isomerge relational wrote")
    try:
        about = json.loads((folder / CONFIG).read_text())
        model = RelationalTransformer(RelationalConfig(**about["config"])).to(getattr(torch, about["dtype"]))
        model.load_state_dict(load_file(folder / WEIGHTS))
    except (ValueError, TypeError, KeyError, AttributeError, OSError, RuntimeError, SafetensorError) as error:
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise IsomergeError(
            f"{folder}: the relational model cannot be read ({first}); write it anew with isomerge relational"
        ) from error
    return model.eval()
