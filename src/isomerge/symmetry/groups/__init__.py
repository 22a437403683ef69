"""The groups that act on typed axes, by the names that specs use."""

from isomerge.symmetry.groups.continuous import (
    ComplexGroup,
    GeneralLinear,
    Orthogonal,
    OrthogonalFixingOnes,
    PositiveScale,
    Scale,
)
from isomerge.symmetry.groups.discrete import Fixed, Permutation, Sign, SignedPermutation
from isomerge.symmetry.groups.protocol import Group

GROUPS: dict[str, Group] = {
    "Fixed": Fixed(),
    "Perm": Permutation(),
    "Sign": Sign(),
    "SignedPerm": SignedPermutation(),
    "O": Orthogonal(),
    "OFixingOnes": OrthogonalFixingOnes(),
    "GL": GeneralLinear(),
    "Scale": Scale(),
    "PositiveScale": PositiveScale(),
    "Complex": ComplexGroup(),
}

__all__ = ["GROUPS", "Group", "OrthogonalFixingOnes"]
