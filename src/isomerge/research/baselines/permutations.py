"""The permutations among a spec's symmetries: what matching by assignment alone may move.

Every head dimension may be renumbered where it may be turned (permutation matrices are in GL and in O), so the spec
of permutations has the declared spaces with ``Perm`` as their group. Scales, complex numbers of rotary pairs and
signs have no permutation in them: they are left out, and rotary pairs of queries and keys stay where they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from isomerge.symmetry.alignment import Alignment
from isomerge.symmetry.element_key import ElementKey
from isomerge.symmetry.language.spec import Spec

RENUMBERED = {"Perm", "SignedPerm", "GL", "O", "OFixingOnes"}
"""The groups that hold all permutations of their axis."""
MATRICES = {"GL", "O", "OFixingOnes"}


def permutation_spec(spec: Spec, names: Iterable[str] | None = None) -> Spec:
    """The spec with only permutations: of the named spaces (default: all), without shifts.

    Its elements are int64 indices [*batch, n] with ``(g x)[i] = x[g[i]]``.
    """
    kept = set(spec.spaces) if names is None else set(names)
    spaces = {
        n: replace(s, group_name="Perm", folded=None)
        for n, s in spec.spaces.items()
        if n in kept and s.group_name in RENUMBERED
    }
    return replace(spec, spaces=spaces, shifts=())


def in_declared_groups(spec: Spec, permutations: Mapping[str, Tensor]) -> Alignment:
    """Permutations (elements of `permutation_spec`) as an alignment of the spec itself, which patch files can hold.

    Residual streams and latents act by ``Perm``, which all of their groups allow; head dimensions by permutation
    matrices.

    Args:
        spec: the model's own spec.
        permutations: int64 [*batch, n] by element key.
    """
    for name in (*spec.streams, *spec.latents):
        if any(ElementKey.of(key).name == name for key in permutations):
            spec = spec.with_group(name, "Perm")
    elements = {}
    for key, p in permutations.items():
        group = spec.space_of(key).group_name
        elements[key] = permutation_matrix(p) if group in MATRICES else p
    return Alignment(spec, elements)


def permutation_matrix(p: Tensor) -> Tensor:
    """The matrices G, float64 [*batch, n, n], with ``(G x)[i] = x[p[i]]``."""
    return torch.nn.functional.one_hot(p, p.shape[-1]).double()
