"""A spec text on trial: the law for every space on tiny random models, and mutants of the text that the law must
reject.

The law alone could be empty: a space whose tensors no output depends on leaves all outputs as they are. So every
line that a space acts on is left out once (a mutant). The outputs must then change; where they do not, nothing is
proven of this line. And every group is tried once as the next larger one: where that holds as well, the declared
group is proven but is not the whole symmetry.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from isomerge.discovery.proving import PROVEN, SEEDS, BoundSpecimen, SpecOf, law, laws
from isomerge.discovery.specimen import Specimen
from isomerge.evidence.law import CANNOT_ACT, Law, largest_change
from isomerge.records import Json, Record, as_json
from isomerge.symmetry.completeness import check_complete
from isomerge.symmetry.language.spec import Space, Spec
from isomerge.symmetry.stage import find_shifts

LARGER = {
    "Perm": "SignedPerm",
    "Sign": "PositiveScale",
    "SignedPerm": "O",
    "OFixingOnes": "O",
    "O": "GL",
    "PositiveScale": "Scale",
    "Complex": "GL",
    "Turn": "Complex",
}
"""What a group is tried as to see whether the declared one is all there is."""


class Mutant(Record):
    """A text made wrong on purpose, and what it changes."""

    space: str
    line: str
    """The line that is left as it is while the others move."""
    error: float

    @property
    def rejected(self) -> bool:
        """Whether the outputs changed by more than rounding."""
        return not self.error < PROVEN

    def document(self) -> Json:
        """As reports have it."""
        return {"space": self.space, "line": self.line, "error": self.error if math.isfinite(self.error) else None}


class Trial(Record):
    """The proof of a spec text for one config, or why there is none."""

    model_type: str
    module: str
    """The class that was run."""
    laws: tuple[Law, ...]
    mutants: tuple[Mutant, ...]
    larger: tuple[Law, ...]
    """Spaces whose next larger group leaves the outputs unchanged as well."""
    unread: tuple[str, ...]
    """Lines that no output depends on: nothing is proven of them."""
    kept: tuple[str, ...] = ()
    """Streams, and gains over them, that the class returns: they keep their bases, and are not tried."""

    @property
    def proven(self) -> bool:
        """Whether every law holds, and none of them is empty."""
        return all(law.holds for law in self.laws) and not self.empty

    @property
    def wrong(self) -> tuple[Law, ...]:
        """The laws that do not hold, the worst one first."""
        return tuple(sorted((law for law in self.laws if not law.holds), key=lambda law: -law.error))

    @property
    def empty(self) -> tuple[str, ...]:
        """Spaces none of whose mutants was rejected: their law says nothing."""
        judged = {mutant.space for mutant in self.mutants}
        return tuple(sorted(judged - {mutant.space for mutant in self.mutants if mutant.rejected}))

    @property
    def survivors(self) -> tuple[Mutant, ...]:
        """The mutants that changed no output."""
        return tuple(mutant for mutant in self.mutants if not mutant.rejected)

    @property
    def refuted(self) -> str | None:
        """Why the text is not proven, in a clause; None where it is."""
        if self.wrong:
            law, of = self.wrong[0], f"the outputs of a tiny random {self.module}"
            what = f"space {law.name} ({law.group})" if law.group else f"what it says of {law.name}"
            if math.isinf(law.error):
                return f"{what} cannot act on a tiny random {self.module}"
            return f"{what} changes {of} by {law.error:.1g}, of which rounding explains {law.bound:.0e}"
        if self.empty:
            return (
                f"nothing is proven of space {', '.join(self.empty)}: no output of a {self.module} depends on "
                "what it moves"
            )
        return None

    def document(self) -> Json:
        """As reports have it."""
        return {
            "model_type": self.model_type,
            "class": self.module,
            "proven": self.proven,
            "refuted": self.refuted,
            "laws": [{**law.document(), "holds": law.holds} for law in self.laws],
            "mutants": {
                "count": len(self.mutants),
                "rejected": sum(mutant.rejected for mutant in self.mutants),
                "survivors": as_json(self.survivors),
            },
            "larger": [{"space": law.name, "group": law.group, "error": law.error} for law in self.larger],
            "unread": list(self.unread),
            "kept": list(self.kept),
        }


def try_spec(spec_of: SpecOf, specimens: Sequence[Specimen]) -> Trial:
    """Try a spec on tiny random models.

    Args:
        spec_of: binds the text to a config.
        specimens: the models; what is said of a space is the worst over all of them. Mutants are tried on the
            first.

    Raises:
        IsomergeError: the spec does not describe a specimen's tensors, or one that it demands is not there.
    """
    for specimen in specimens:
        specimen.compare_whole()
    bound = [BoundSpecimen(spec_of, specimen) for specimen in specimens]
    for seen in bound:
        check_complete(seen.spec, seen.matches)
    unread = set(_unread(bound[0]))
    return Trial(
        bound[0].spec.model_type,
        type(specimens[0].module).__name__,
        tuple(laws([(seen, _movers(seen)) for seen in bound])),
        tuple(_mutants(bound[0], unread)),
        tuple(_larger(bound[0])),
        tuple(sorted(unread)),
        tuple(sorted(set().union(*(seen.kept for seen in bound)))),
    )


def _movers(seen: BoundSpecimen) -> dict[str, Space | None]:
    """The spaces that lines have, and the shifts (None), that can move here."""
    used = {a.name for block in seen.blocks for a in block.atoms}
    movers: dict[str, Space | None] = {n: space for n, space in seen.spec.spaces.items() if n in used - seen.kept}
    movers |= dict.fromkeys(shift.name for shift, _, _ in find_shifts(seen.spec, seen.blocks))
    return {name: space for name, space in movers.items() if _can_move(seen, name)}


def _can_move(seen: BoundSpecimen, name: str) -> bool:
    """Whether a random element moves anything: a space of one element, as the permutations of one head, does
    not."""
    try:
        return bool(seen.moved([name], SEEDS[0]))
    except CANNOT_ACT:
        return True  # it cannot act, which the law will say


def _unread(seen: BoundSpecimen) -> Iterator[str]:
    """The lines that no output depends on: other tensors in their places change nothing (softmax forgets a key's
    bias)."""
    stored = seen.specimen.stored
    for line in dict.fromkeys(block.line for block in seen.blocks):
        names = [seen.names[n] for block in seen.blocks if block.line is line for n in block.canonical]
        others = {name: 0.5 * stored[name].flip(0) for name in names if stored[name].is_floating_point()}
        if others and seen.specimen.change(others) < PROVEN:
            yield line.name


def _mutants(seen: BoundSpecimen, unread: set[str]) -> Iterator[Mutant]:
    """For every space, each line that it moves left as it is; where it moves one line alone, another factor on
    that."""
    for name in seen.spec.spaces.keys() - seen.kept:
        try:
            moved = seen.moved([name], SEEDS[0])
        except CANNOT_ACT:
            continue
        lines = dict.fromkeys(seen.matches[n].line.name for n in moved)
        for line in lines.keys() - unread:
            rest = {n: t for n, t in moved.items() if seen.matches[n].line.name != line}
            if not rest:
                rest = {n: 0.5 * t for n, t in moved.items()}
            yield Mutant(name, line, seen.specimen.change(rest))


def _larger(seen: BoundSpecimen) -> Iterator[Law]:
    """Spaces inside of layers whose next larger group leaves the outputs as they are too.

    Bases of other spaces are left out: a sign of a whole head is an element of what the head contains.
    """
    bases = {index for space in seen.spec.spaces.values() for index in space.index}
    for name, space in _movers(seen).items():
        if space is None or space.group_name not in LARGER or space.residual or name in bases:
            continue
        group = LARGER[space.group_name]
        spec = seen.spec.with_group(name, group)

        def change(seen: BoundSpecimen, seed: int, name: str = name, spec: Spec = spec) -> float:
            moved = seen.moved([name], seed, spec)
            return seen.specimen.change(moved) if moved else math.inf

        error = largest_change(change, [seen], SEEDS)
        if error < PROVEN:
            yield law(name, space, error, group)
