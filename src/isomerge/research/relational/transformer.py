"""A transformer whose every quantity is a Gram, or a number that no rotation changes; on disk its config is in
``relational.json``, its state in ``model.safetensors``.

Atoms are the vectors that tokens are made of, as coefficients in the anchors, with the anchors' Gram matrix. An
atom is the vector of a token, a pixel, a class token or a position. A token's vector is a sum of atoms, ``x = Z^T
a`` with a the sum of their coefficients; its Grams are ``K a``. If anchors were free vectors, their choice would be
a gauge again (Z -> A Z, and all forms with it): where the first atoms themselves are the anchors, their
coefficients are unit vectors that nobody learns, and K takes their place.

Blocks are pre-norm: attention, and neurons that read and write relations, on the residual stream. A stream is known
as Grams with the anchors or as vectors, two realisations of the same relations. A block asks it for the Grams of
its tokens with the anchors R (B, T, m), the anchors' own K (m, m) and the tokens' squared norms (B, T), and writes
coefficients c (B, T, m), which stand for the vectors ``Z^T c``. `GramStream` knows nothing else. `CoordinateStream`
keeps vectors and computes the Grams from them: the way in for given coordinates, and the oracle of the invariance
tests.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from isomerge.errors import IsomergeError, first_line
from isomerge.files import write_tensors, write_whole
from isomerge.records import Json
from isomerge.research.relational.attention import RelationalAttention, RelationalNorm
from isomerge.research.relational.head_circuits import FactorCircuits, normal

ANCHORINGS = ("atoms", "frame", "given")
NORMS = ("rms", "layer")


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


class Stream(Protocol):
    """What a block may know of its tokens."""

    @property
    def grams(self) -> Tensor:
        """R = X Z^T (B, T, m)."""
        ...

    @property
    def anchors(self) -> Tensor:
        """K = Z Z^T (m, m)."""
        ...

    @property
    def norms(self) -> Tensor:
        """The tokens' squared norms (B, T)."""
        ...

    def write(self, c: Tensor) -> Stream:
        """The stream after adding ``Z^T c`` for coefficients c (B, T, m)."""
        ...


@dataclass(frozen=True)
class GramStream:
    """Tokens by their Grams alone: ``r += K c`` and ``|x|^2 += 2 c . r + c^T K c``.

    A token may have a part outside the anchors' span: no layer sees it, but it counts in the norm.
    """

    grams: Tensor
    anchors: Tensor
    norms: Tensor

    @classmethod
    def spanned(cls, a: Tensor, anchors: Tensor) -> GramStream:
        """The tokens ``Z^T a`` in the anchors' span, from coefficients a (B, T, m) and K (m, m)."""
        grams = a @ anchors
        return cls(grams, anchors, (a * grams).sum(-1))

    def write(self, c: Tensor) -> GramStream:
        """See `Stream.write`."""
        grams = self.grams + c @ self.anchors
        return GramStream(grams, self.anchors, self.norms + (c * (self.grams + grams)).sum(-1))


@dataclass(frozen=True)
class CoordinateStream(Stream):
    """Tokens X (B, T, d) and anchors Z (m, d) as vectors."""

    tokens: Tensor
    vectors: Tensor

    @property
    def grams(self) -> Tensor:
        return self.tokens @ self.vectors.mT

    @property
    def anchors(self) -> Tensor:
        return self.vectors @ self.vectors.mT

    @property
    def norms(self) -> Tensor:
        return self.tokens.square().sum(-1)

    def write(self, c: Tensor) -> CoordinateStream:
        return CoordinateStream(self.tokens + c @ self.vectors, self.vectors)


def activation_of(name: str) -> Callable[[Tensor], Tensor]:
    """The activation that Hugging Face configs call by a name.

    Raises:
        IsomergeError: transformers does not know the name.
    """
    simple = {"gelu": nn.functional.gelu, "relu": nn.functional.relu, "silu": nn.functional.silu}
    if name in simple:
        return simple[name]
    from transformers.activations import ACT2FN

    if name not in ACT2FN:
        raise IsomergeError(f"activation {name!r} is not one of transformers: take gelu, relu or silu")
    return ACT2FN[name]


class RelationalMLP(nn.Module):
    """Neurons with the vectors ``Z^T w`` as readers and writers: ``c = B a(W r)``, or gated ``B (a(W_g r) * W
    r)``."""

    def __init__(
        self, anchors: int, neurons: int, *, norm: RelationalNorm, activation: str, gated: bool, biases: bool
    ) -> None:
        """Weights as in an ordinary transformer; biases zero."""
        super().__init__()
        self.norm, self.activation = norm, activation_of(activation)
        self.up = normal(neurons, anchors, scale=1 / math.sqrt(anchors))
        self.gate = normal(neurons, anchors, scale=1 / math.sqrt(anchors)) if gated else None
        self.down = normal(anchors, neurons, scale=0.5 / math.sqrt(neurons))
        self.up_bias = nn.Parameter(torch.zeros(neurons)) if biases else None
        self.gate_bias = nn.Parameter(torch.zeros(neurons)) if biases and gated else None
        self.down_bias = nn.Parameter(torch.zeros(anchors)) if biases else None

    def forward(self, grams: Tensor, anchors: Tensor, norms: Tensor) -> Tensor:
        """Coefficients (B, T, m) of Grams (B, T, m), K (m, m) and squared norms (B, T)."""
        r = self.norm(grams, anchors, norms)
        up = nn.functional.linear(r, self.up, self.up_bias)
        if self.gate is None:
            hidden = self.activation(up)
        else:
            hidden = self.activation(nn.functional.linear(r, self.gate, self.gate_bias)) * up
        return nn.functional.linear(hidden, self.down, self.down_bias)


class RelationalBlock(nn.Module):
    """Pre-norm attention and neurons, from one stream to the next."""

    def __init__(self, config: RelationalConfig) -> None:
        """A block at random; see `RelationalConfig`."""
        super().__init__()
        anchored = config.anchoring == "given"
        self.attention = RelationalAttention(
            config.anchors,
            config.heads,
            config.rank,
            norm=norm_of(config),
            kv_heads=config.kv_heads,
            value_rank=config.value_rank,
            query_bias=anchored and config.biases,
            key_bias=anchored and config.biases and config.rotary is not None,
            output_bias=config.biases,
            rotary=config.rotary,
            chunk=config.chunk,
        )
        self.mlp = RelationalMLP(
            config.anchors,
            config.mlp,
            norm=norm_of(config),
            activation=config.activation,
            gated=config.gated,
            biases=config.biases,
        )

    def forward(self, stream: Stream, mask: Tensor | None = None, causal: bool = False) -> Stream:
        """The stream after the block; arguments as in `RelationalAttention.forward`."""
        at = stream.anchors
        stream = stream.write(self.attention(stream.grams, at, stream.norms, mask, causal))
        return stream.write(self.mlp(stream.grams, at, stream.norms))


def norm_of(config: RelationalConfig) -> RelationalNorm:
    """The norm of a config; the ones are the last anchor."""
    return RelationalNorm(config.width, config.eps, config.anchors - 1 if config.norm == "layer" else None)


class AnchorGram(nn.Module):
    """``K = L L^T`` (m, m) with L lower triangular and positive on its diagonal: one L for each positive K.

    Where only normalised tokens are read, K is free by one factor (Z -> t Z, undone by the forms): without
    ``scaled`` it is fixed by ``K[0, 0] = 1``.
    """

    def __init__(self, anchors: int, *, scaled: bool) -> None:
        """Orthonormal anchors, K = 1."""
        super().__init__()
        self.below = nn.Parameter(torch.zeros(anchors * (anchors - 1) // 2))
        self.log_diagonal = nn.Parameter(torch.zeros(anchors if scaled else anchors - 1))

    def forward(self) -> Tensor:
        """K (m, m)."""
        logs = self.log_diagonal
        m = (1 + math.isqrt(1 + 8 * len(self.below))) // 2
        rows, columns = torch.tril_indices(m, m, -1, device=logs.device)
        diagonal = torch.cat([logs.new_ones(m - len(logs)), logs.exp()])
        factor = diagonal.diag().index_put((rows, columns), self.below)
        return factor @ factor.mT


class FixedGram(nn.Module):
    """A given K (m, m)."""

    def __init__(self, gram: Tensor) -> None:
        super().__init__()
        self.register_buffer("gram", gram)
        self.gram: Tensor

    def forward(self) -> Tensor:
        """K (m, m)."""
        return self.gram


class Atoms(nn.Module):
    """The coefficients of all atoms: tokens or pixels first, then class tokens, then positions."""

    def __init__(self, config: RelationalConfig) -> None:
        """Atoms at random, anchors orthonormal; see `RelationalConfig.anchoring`."""
        super().__init__()
        self.config = config
        m, inputs = config.anchors, config.vocab or config.pixels
        total = inputs + config.starts + config.places
        self.inputs = inputs
        self.marked = min(m, total) if config.anchoring == "atoms" else 0
        free = normal(total, m, scale=m**-0.5).data
        free[inputs:] *= 0.5  # what a token is counts more than where it is
        self.free = nn.Parameter(free[self.marked :].clone())
        # a tied head reads the size of the token vectors
        scaled = config.tied and config.classes is None
        self.anchors = AnchorGram(m, scaled=scaled) if config.anchoring == "atoms" else FixedGram(torch.eye(m))

    @property
    def table(self) -> Tensor:
        """All coefficients (atoms, m)."""
        if not self.marked:
            return self.free
        unit = torch.eye(self.free.shape[1], dtype=self.free.dtype, device=self.free.device)
        return torch.cat([unit[: self.marked], self.free])

    @property
    def tokens(self) -> Tensor:
        """The coefficients of the vocabulary (vocab, m)."""
        return self.table[: self.inputs]

    def forward(self, x: Tensor) -> Tensor:
        """The coefficients (B, T, m) of an input: see `RelationalTransformer.forward`.

        Raises:
            IsomergeError: an input of another kind, or longer than ``length``.
        """
        table = self.table
        coefficients = table[self._indices(x)] if self.config.vocab else self._patches(x) @ table[: self.inputs]
        self._check_length(coefficients.shape[1])
        starts = self.config.starts
        if starts:
            first = table[self.inputs : self.inputs + starts].expand(len(coefficients), -1, -1)
            coefficients = torch.cat([first, coefficients], 1)
        if not self.config.places:
            return coefficients
        places = table[self.inputs + starts :]
        return coefficients + places[: coefficients.shape[1]]

    def _check_length(self, length: int) -> None:
        if length > self.config.length:
            raise IsomergeError(
                f"RelationalTransformer: an input of {length} tokens is longer than length={self.config.length}: "
                "shorten it, or make the model longer"
            )

    def _indices(self, x: Tensor) -> Tensor:
        if x.ndim != 2 or x.is_floating_point():
            raise IsomergeError(f"RelationalTransformer: expected tokens (B, T) of integers, got {_kind(x)}")
        return x

    def _patches(self, x: Tensor) -> Tensor:
        if x.ndim != 3 or not x.is_floating_point() or x.shape[-1] != self.inputs:
            raise IsomergeError(
                f"RelationalTransformer: expected patches (B, T, {self.inputs}) of floats, got {_kind(x)}; "
                "isomerge.research.relational.patches_of cuts images"
            )
        return x


def _kind(x: Tensor) -> str:
    return f"{str(x.dtype).removeprefix('torch.')} of shape {list(x.shape)}"


def patches_of(images: Tensor, size: int | tuple[int, int]) -> Tensor:
    """Images (B, channels, H, W), cut into patches (B, T, channels * rows * columns), row by row.

    Raises:
        IsomergeError: the size does not divide the images.
    """
    rows, columns = (size, size) if isinstance(size, int) else size
    if images.ndim != 4 or images.shape[2] % rows or images.shape[3] % columns:
        raise IsomergeError(
            f"images of shape {list(images.shape)} cannot be cut into patches of {rows} x {columns}: give "
            "(B, channels, H, W) with multiples of these"
        )
    return nn.functional.unfold(images, (rows, columns), stride=(rows, columns)).mT


@dataclass(frozen=True)
class RelationalConfig:
    """Everything that decides the shapes and the function of a `RelationalTransformer`, weights apart.

    Tokens are LongTensors (B, T) with ``vocab``, or patches (B, T, patch * channels) with ``patch``. Logits are
    (B, classes) with ``classes``, else (B, T, vocab).
    """

    width: int
    """The dimension d in which the tokens live; RMSNorm divides squared norms by it."""
    layers: int
    heads: int
    anchors: int
    """The number m of anchors: all that a layer sees of a token is its m Grams with them, and its norm."""
    mlp: int
    """Neurons per layer."""
    rank: int | None = None
    """Of the forms S_h and T_h; None: full m x m forms, free of gauge."""
    vocab: int | None = None
    patch: int | None = None
    """Pixels per patch."""
    channels: int = 1
    length: int = 49
    """The largest number of tokens or patches."""
    classes: int | None = None
    causal: bool = False
    chunk: int | None = None
    """Tokens per chunk of the attention whose memory is linear in T; None: the plain one."""
    anchoring: str = "atoms"
    """``atoms``: the first atoms are the anchors, whose Gram K is learned; ``frame``: K = 1, all atoms are learned;
    ``given``: K and all atoms are stored (converted models)."""
    norm: str = "rms"
    """``rms``, or ``layer``: LayerNorm, the last anchor being the vector of ones (``given`` only)."""
    eps: float = 1e-6
    activation: str = "gelu"
    gated: bool = False
    biases: bool = True
    kv_heads: int | None = None
    """Key-value heads, each shared by heads // kv_heads heads; None: one per head."""
    value_rank: int | None = None
    """The rank of T_h; None: that of S_h."""
    rotary: float | None = None
    """The base of rotary positions (10000 in most models), which then replace learned position vectors."""
    starts: int = 0
    """Class tokens before the patches."""
    pool: str = "mean"
    """What a classifier reads: the ``mean`` token or the ``first``."""
    tied: bool = True
    """Whether a language model's logits are Grams with its own token vectors."""

    def __post_init__(self) -> None:
        if (self.vocab is None) == (self.patch is None):
            raise IsomergeError("RelationalConfig: set exactly one of vocab (tokens) and patch (pixels per patch)")
        if self.classes is None and self.vocab is None:
            raise IsomergeError("RelationalConfig: patches need classes, the number of classes to tell apart")
        for name in ("width", "layers", "heads", "anchors", "mlp", "length", "rank", "vocab", "patch", "chunk"):
            value = getattr(self, name)
            if value is not None and value < (0 if name == "layers" else 1):
                raise IsomergeError(f"RelationalConfig: {name} is {value}, but must be positive")
        for name, known in (("anchoring", ANCHORINGS), ("norm", NORMS), ("pool", ("mean", "first"))):
            if getattr(self, name) not in known:
                raise IsomergeError(
                    f"RelationalConfig: {name} is {getattr(self, name)!r}: take {' or '.join(known)}"
                )
        if self.norm == "layer" and self.anchoring != "given":
            raise IsomergeError("RelationalConfig: LayerNorm needs the ones among the anchors: take norm='rms'")
        if self.anchoring != "given" and self.anchors > self.width:
            raise IsomergeError(
                f"RelationalConfig: {self.anchors} anchors cannot be independent in {self.width} dimensions: "
                "take at most width anchors"
            )

    @property
    def pixels(self) -> int:
        """The numbers in one patch."""
        return (self.patch or 0) * self.channels

    @property
    def places(self) -> int:
        """Position vectors: none with rotary positions."""
        return 0 if self.rotary is not None else self.starts + self.length
