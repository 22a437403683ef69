"""The groups that act on typed axes, by the names that specs use."""

from isomerge.symmetry.groups.commutant import ComplexGroup, Turn
from isomerge.symmetry.groups.discrete import Fixed, Permutation, Sign, SignedPermutation
from isomerge.symmetry.groups.general_linear import GeneralLinear
from isomerge.symmetry.groups.orthogonal import Orthogonal, OrthogonalFixingOnes
from isomerge.symmetry.groups.protocol import Group
from isomerge.symmetry.groups.scale import PositiveScale, Scale, SquaredScale

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
    "SquaredScale": SquaredScale(),
    "Complex": ComplexGroup(),
    "Turn": Turn(),
}

SCALES = ("Scale", "PositiveScale", "SquaredScale")
"""The groups of factors."""


def power_of(group: Group) -> int:
    """The power of an element that the dual side is divided by: more than one behind a squared ReLU."""
    return group.power if isinstance(group, Scale) else 1


__all__ = ["GROUPS", "SCALES", "Group", "OrthogonalFixingOnes", "power_of"]
