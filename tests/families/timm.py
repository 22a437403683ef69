"""timm's vision transformers."""

from __future__ import annotations

from families.tables import Streams, Toy
from mutants import mutant
from plain_models import TimmViT

MORE_TOYS: dict[str, Toy] = {
    "timm_vit": (TimmViT, 1e-9),
    "timm_vit-scaled": (lambda: TimmViT(scaled=True, pooled=True), 1e-9),
    "timm_vit-normed": (lambda: TimmViT(normed=True, scaled=True), 1e-9),
}

STREAMS: dict[str, Streams] = {
    **dict.fromkeys(["timm_vit", "timm_vit-scaled"], "OFixingOnes"),
}

MUTANTS = [
    mutant("timm_vit", "fused head by head", "h", "[h qk | h qk' | h ov] => (h [qk | qk' | ov])"),
    mutant("timm_vit-scaled", "layer scale not divided", "s1", "diag(res s1') => res"),
    mutant(
        "timm_vit-scaled",
        "the head past the norm behind the mean",
        "nf",
        "head.weight labels (res nf)' => head.weight labels res'",
    ),
]
