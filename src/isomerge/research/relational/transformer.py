"""A transformer whose every quantity is a Gram, or a number that no rotation changes; on disk its config is in
``relational.json``, its state in ``model.safetensors``.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from isomerge.errors import IsomergeError, first_line
from isomerge.files import write_tensors, write_whole
from isomerge.records import Json
from isomerge.research.relational.block import CoordinateStream, GramStream, RelationalBlock, Stream, norm_of
from isomerge.research.relational.config import RelationalConfig
from isomerge.research.relational.embedding import Atoms
from isomerge.research.relational.head_circuits import FactorCircuits, normal


class RelationalTransformer(nn.Module):
    """Pre-norm blocks over a relational stream, with a classifier or a language model's head.

    All parameters are invariants: coefficients of vectors in the anchors, forms on Grams, and the anchors' Gram
    matrix. Its config and its state dict say all of it.
    """

    def __init__(self, config: RelationalConfig) -> None:
        """A model at random, drawn from torch's generator; float32."""
        super().__init__()
        self.config = config
        self.atoms = Atoms(config)
        self.blocks = nn.ModuleList(RelationalBlock(config) for _ in range(config.layers))
        self.norm = norm_of(config)
        self._shrink_writers()
        labels = config.classes or config.vocab
        self.tied = config.classes is None and config.tied
        self.head = None if self.tied else normal(labels or 0, config.anchors, scale=0.02)
        self.head_bias = None if self.tied else nn.Parameter(torch.zeros(labels or 0))

    @torch.no_grad()
    def _shrink_writers(self) -> None:
        """Deep models write less per layer (Radford et al. 2019, section 2.3)."""
        share = max(1, self.config.layers) ** -0.5
        for block in self.blocks:
            assert isinstance(block, RelationalBlock)
            circuits = block.attention.circuits
            (circuits.output if isinstance(circuits, FactorCircuits) else circuits.outputs).mul_(share)
            block.mlp.down.mul_(share)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Logits of tokens or patches.

        Args:
            x: tokens, int64 (B, T), or patches, float (B, T, patch * channels).
            mask: bool (B, T), False for padding (B, starts + T with class tokens).

        Returns:
            (B, classes) with ``classes``, else (B, T, vocab), float.

        Raises:
            IsomergeError: an input of another kind, or longer than the model.
        """
        return self.read(GramStream.spanned(self.atoms(x), self.atoms.anchors()), mask)

    def read(self, stream: Stream, mask: Tensor | None = None) -> Tensor:
        """Logits of any stream with this model's K, by Grams or by coordinates; see `forward`."""
        for block in self.blocks:
            stream = block(stream, mask, self.config.causal)
        r = self.norm(stream.grams, stream.anchors, stream.norms)
        if self.config.classes is not None:
            r = self._pooled(r, mask)
        # a Gram with the vectors of tokens or classes
        head = self.atoms.tokens if self.head is None else self.head
        return nn.functional.linear(r, head, self.head_bias)

    def _pooled(self, r: Tensor, mask: Tensor | None) -> Tensor:
        if self.config.pool == "first":
            return r[:, 0]
        if mask is None:
            return r.mean(1)
        shares = mask.to(r.dtype)[..., None]
        return (r * shares).sum(1) / shares.sum(1).clamp_min(1.0)

    def realise(self, x: Tensor, rotation: Tensor | None = None) -> CoordinateStream:
        """Actual vectors with this model's Grams, for `read`: one of many choices, all equal up to rotations.

        Args:
            x: as in `forward`.
            rotation: an orthogonal matrix (m, m), which turns tokens and anchors; None for none.

        Returns:
            Tokens X (B, T, m) and anchors Z (m, m) with ``Z Z^T = K``.
        """
        gram = self.atoms.anchors()
        values, vectors = torch.linalg.eigh(gram)
        z = vectors * values.clamp_min(0.0).sqrt()
        z = z if rotation is None else z @ rotation
        return CoordinateStream(self.atoms(x) @ z, z)

    def balance(self) -> None:
        """Balance the factors of every head (see `FactorCircuits.balance`); full forms have nothing to balance."""
        for block in self.blocks:
            assert isinstance(block, RelationalBlock)
            if isinstance(block.attention.circuits, FactorCircuits):
                block.attention.circuits.balance()


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
    about: Json = {"format": "isomerge relational 1", "dtype": dtype, "config": asdict(model.config)}
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
        raise IsomergeError(
            f"{folder}: the relational model cannot be read ({first_line(error)}); write it anew with isomerge "
            "relational"
        ) from error
    return model.eval()
