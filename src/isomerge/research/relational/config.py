"""The shape of a relational transformer."""

from __future__ import annotations

from dataclasses import dataclass

from isomerge.errors import IsomergeError

ANCHORINGS = ("atoms", "frame", "given")
NORMS = ("rms", "layer")


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
