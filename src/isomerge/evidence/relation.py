"""What two models are to each other, as far as weights tell, in one place: bounds, words, and how good the news is.

The evidence is what the look at both has seen (`isomerge.solve.look`, `isomerge.solve.standing`), distances after a
match, whether it was proven that they are one function, and whether fingerprints have a common base. Every door
says what follows in the same words: the terminal, the report's ``verdict``, the model card and the page
(docs/guide/same-model.md has the table).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

from isomerge.evidence.distance import SAME
from isomerge.matching.settled import FAR
from isomerge.records import Record
from isomerge.solve.look import Look
from isomerge.solve.standing import MOST

NEAR = 0.5
"""Of the norm: fine-tunes of one base are nearer than this."""


class Relation(IntEnum):
    """What two models are to each other, as far as their weights tell; later ones are further apart."""

    SAME = 0
    NEAR = 1
    RELATED = 2
    DERIVED = 3
    """A common base, or embeddings near each other, but far apart after all that was matched."""
    UNRELATED = 4


CODES = {
    Relation.SAME: "same",
    Relation.NEAR: "aligned",
    Relation.RELATED: "related",
    Relation.DERIVED: "far",
    Relation.UNRELATED: "unrelated",
}
"""What reports call them."""
RELATIONS = {code: relation for relation, code in CODES.items()}


class Proof(IntEnum):
    """What comparing all tensors modulo symmetry has shown of the functions."""

    SAME = 0
    OPEN = 1
    """Rounding, or the configs, leave it open."""
    OTHER = 2


class Level(IntEnum):
    """How good the news is."""

    GOOD = 0
    OPEN = 1
    FAIR = 2
    POOR = 3


LEVELS = {level.name.lower(): level for level in Level}
"""By what reports call them."""


def title_of(relation: Relation | None, *, aligned: bool = True, left: bool = False, base: bool = False) -> str:
    """A few words for the head of a page.

    Args:
        relation: of the models furthest apart; None: it cannot be told.
        aligned: whether anything was matched.
        left: whether all were left as they are.
        base: whether the others were compared with the base of their task vectors, and not with one another.
    """
    if base and relation in (Relation.DERIVED, Relation.UNRELATED):
        return (
            "The base is far from a model" if relation is Relation.DERIVED
            else "The base is not the base of every model"
        )  # fmt: skip
    if relation is Relation.NEAR:
        return (
            "Aligned already: the models were left as they are" if left
            else "Near as they were: alignment was not needed" if aligned
            else "Near as they are: no alignment is needed"
        )  # fmt: skip
    if relation is Relation.RELATED:
        together = "Alignment brought the models together"
        return together if aligned else "Parts of the models have no counterpart where they stand"
    return {
        None: "How the models stand cannot be told",
        Relation.SAME: "The models are the same function",
        Relation.DERIVED: "The models have parts in common, but are far apart",
        Relation.UNRELATED: "The models are unrelated",
    }[relation]


def relation_of(
    before: float,
    after: float,
    tolerance: float = SAME["F32"],
    *,
    kin: bool | None = None,
    same_basis: bool = False,
    in_place: bool = True,
) -> Relation | None:
    """What distances in parts of the norm say of two models; None where they leave open what fingerprints do.

    Args:
        before, after: alignment, over the tensors that it can move, or the matrices of them.
        tolerance: what rounding explains.
        kin: whether fingerprints, which no basis hides from, have a common base. Where they have none, only a
            distance that relatives have, and that a match has halved, says otherwise: a match in many dimensions
            brings strangers nearer, too.
        same_basis: whether embeddings lie near each other, which is more than strangers have; it counts where
            fingerprints tell nothing.
        in_place: whether most rows of their matrices have counterparts where they stand, as those of fine-tunes
            have and those of strangers have not, however near their norms bring them.
    """
    if after <= tolerance:
        return Relation.SAME
    if in_place and before < FAR and after >= 0.5 * before:
        return Relation.NEAR
    if kin is False and not in_place and after >= 0.5 * before:
        return Relation.UNRELATED
    if after < (NEAR if kin is False or not (in_place or kin) else FAR):
        return Relation.RELATED
    if kin is None and not in_place and after < min(FAR, 0.5 * before):
        return None
    return Relation.DERIVED if kin or (kin is None and same_basis) else Relation.UNRELATED


class PairVerdict(Record):
    """What a report says of a model and the one that it is brought to; see `Pair`."""

    model: str
    anchor: str
    code: str
    before: float | None
    after: float | None
    common_base: bool | None
    left_as_it_is: bool
    level: str
    look: Look
    sentence: str


@dataclass(frozen=True)
class Pair:
    """A model and the one that it was, or will be, brought to."""

    anchor: str
    model: str
    before: float | None
    """Their distance as stored, in parts of the root of the mean of both squared norms; None where there is nothing
    to compare."""
    after: float | None = None
    """After alignment; None: nothing was matched, or not yet."""
    settled: bool = False
    """Whether all parts are where the anchor has them."""
    same_basis: bool | None = None
    kin: bool | None = None
    left: bool = False
    """Whether it is left as it is, being aligned already."""
    align: bool = True
    """Whether models are aligned in this run at all."""
    helps: bool = False
    """Of a run that aligns nothing: whether it is known that alignment would bring them together."""
    base: bool = False
    """Whether the anchor is what task vectors are taken from."""
    tolerance: float = SAME["F32"]
    matrices: tuple[float, float] | None = None
    """``before`` and ``after`` of matrices alone: gains of about one make strangers alike. None: not known."""
    fixed: float = 0.0
    """How far apart the tensors are that nothing moves, after alignment."""
    look: Look = field(default_factory=lambda: Look(()))
    """What was seen of both."""
    proof: Proof | None = None
    """Whether they are one function; None where nothing has asked."""
    doubt: str = ""
    """Why the proof is open, or what else than weights makes them two functions."""
    first: Relation | None = None
    """What they seemed to be before they were matched; None where that was not known."""
    way: str = ""
    """Of several ways to match that were tried, as options: the one whose distances these are."""

    @property
    def relation(self) -> Relation | None:
        """By distances where something was matched, else by how the models stand; None where that does not tell."""
        if self.before is None or self.proof is Proof.OPEN:
            return None
        if self.proof is Proof.SAME or (self.look.same and self.proof is None):
            return Relation.SAME
        if self.after is not None:
            least = self.tolerance if self.fixed <= self.tolerance and self.proof is None else -1.0
            in_place = self.settled or self.look.lost < MOST
            if self.after <= least:
                return Relation.SAME
            before, after = self.matrices or (self.before, self.after)
            basis = bool(self.same_basis)
            return relation_of(before, after, -1.0, kin=self.kin, same_basis=basis, in_place=in_place)
        if self.settled:
            return Relation.NEAR
        if self.same_basis or self.kin:
            return Relation.RELATED
        return Relation.UNRELATED if self.kin is False else None

    @property
    def level(self) -> Level:
        """How good the news is for a merge."""
        if self.relation is None:
            return Level.OPEN
        if not self.align and self.relation is Relation.RELATED:
            return Level.POOR
        return Level.POOR if self.relation >= Relation.DERIVED else Level.GOOD

    def sentence(self, names: dict[str, str]) -> str:
        """In words; ``names`` are what to call the models."""
        a, b = names.get(self.anchor, self.anchor), names.get(self.model, self.model)
        relation = self.relation
        if self.is_mutual:  # what does not depend on the order is said in one order
            a, b = sorted((a, b))
        said = _unknown(self, a, b) if relation is None else _WORDS[relation](self, a, b)
        said += f"; {self.doubt}" if self.doubt and relation is not None else ""
        strange = [each is not None and each >= Relation.DERIVED for each in (self.first, relation)]
        if self.first is None or relation is None or strange[0] == strange[1]:
            return said
        return f"{said}; before they were matched they seemed {'unrelated' if strange[0] else 'related'}"

    @property
    def is_mutual(self) -> bool:
        """Whether what is said of the two does not tell one from the other."""
        if self.relation is Relation.RELATED:
            return bool(self.look.but) or self.after is not None
        return self.relation in (Relation.SAME, Relation.NEAR) or (
            self.relation is Relation.UNRELATED and not self.base
        )

    def verdict(self, names: dict[str, str]) -> PairVerdict:
        """What a report says; ``names`` are what to call the models."""
        return PairVerdict(
            model=self.model,
            anchor=self.anchor,
            code=code_of(self.relation),
            before=self.before,
            after=self.after,
            common_base=True if self.settled or self.same_basis else self.kin,
            left_as_it_is=self.left,
            level=self.level.name.lower(),
            look=self.look,
            sentence=self.sentence(names),
        )


def code_of(relation: Relation | None) -> str:
    """What a report calls a relation, or that it is not known."""
    return "unknown" if relation is None else CODES[relation]


NOTHING_IN_COMMON = "1.41 is what models have that have nothing in common"
"""Matrices as they are stored, and vectors less their mean: a match brings strangers nearer, and gains of about one
make them alike."""


def _share(x: float | None) -> str:
    return "" if x is None else f"{x:.2g}" if x < 0.1 else f"{x:.2f}"


def _stored(pair: Pair) -> float | None:
    """How far apart they are stored, over all tensors where these were looked at: one number at every door."""
    return pair.look.distance() if pair.look.tensors else pair.before


def _equal(pair: Pair, a: str, b: str) -> str:
    said = f"{b} has the weights of {a}: all {len(pair.look.tensors)} tensors are equal"
    tables = pair.look.by_token
    return f"{said}, {tables} of them in the rows of the tokens that both have" if tables else said


def _apart(pair: Pair) -> str:
    """How far apart they are after what was matched: their matrices, where it is known."""
    if pair.after is None:
        return f"they are {_share(pair.before)} of the norm apart as stored ({NOTHING_IN_COMMON})"
    when = _matched(pair)
    if pair.matrices is None:
        return f"they are {_share(pair.after)} of the norm apart {when} ({_share(pair.before)} as stored)"
    before, after = map(_share, pair.matrices)
    return f"their matrices are {after} of their norm apart {when} ({before} as stored, where {NOTHING_IN_COMMON})"


def _matched(pair: Pair) -> str:
    return f"after alignment with {pair.way}" if pair.way else "after alignment"


def _same(pair: Pair, a: str, b: str) -> str:
    if pair.look.same:
        return _equal(pair, a, b)
    stored = f"({_share(pair.before)} of the norm apart as stored)"
    if pair.proof is None and pair.after is not None and pair.after > SAME["F32"]:
        return f"{b} is {a} within what rounding to half precision explains {stored}"
    return f"{b} is the same function as {a} in other weights {stored}"


def _near(pair: Pair, a: str, b: str) -> str:
    said = (
        _equal(pair, a, b)
        if pair.look.same
        else f"{b} and {a} have the same weights but for {but} ({_share(_stored(pair))} of the norm apart)"
        if (but := pair.look.but)
        else f"{b} and {a} are aligned already, as fine-tunes of one base are: most rows lie near their "
        f"counterparts ({_share(_stored(pair))} of the norm apart)"
    )
    if not pair.align:
        return said
    if pair.left:
        return f"{said}; left as they are (--align matches them all the same)"
    return said if pair.settled else f"{said}, but for some parts, which were out of place"


def _where(pair: Pair) -> str:
    """Why parts of a relative in the same basis are not where the anchor has them: where a match was not tried,
    weights that were changed as much look alike."""
    return "lies in other coordinates" + ("" if pair.helps else ", or its weights were changed by much")


def _related(pair: Pair, a: str, b: str) -> str:
    if pair.look.but:
        said = (
            f"{b} and {a} have the same weights but for {pair.look.but}, which are in another order or basis, or "
            f"other weights ({_share(pair.before or _stored(pair))} of the norm apart as stored"
        )
        return (
            f"{said}, {_share(pair.after)} {_matched(pair)})"
            if pair.before and pair.after is not None
            else f"{said})"
        )
    if not pair.align:
        where = _where(pair) if pair.same_basis else "its residual stream is in another basis"
        known = ": leave --no-align out" if pair.helps else ""
        likely = "may" if pair.same_basis and not pair.helps else "will most likely"
        return (
            f"{b} has a common base with {a}, but {where} ({_share(pair.before)} of the norm apart where they "
            f"were compared), so that averaging them as they are stored {likely} destroy both{known}"
        )
    if pair.after is None:
        return (
            f"{b} has a common base with {a}, but {_where(pair)} ({_share(pair.before)} of the norm apart): "
            "aligned before it is merged"
        )
    return (
        f"{b} and {a} are related: {_share(pair.before)} of the norm apart as stored, {_share(pair.after)} "
        f"{_matched(pair)}"
    )


def _derived(pair: Pair, a: str, b: str) -> str:
    common = f"{b} has a common base with {a}" if pair.kin else f"{b} and {a} have embeddings near each other"
    return f"{common}, but {_apart(pair)}: merging them will most likely not work"


def _unrelated(pair: Pair, a: str, b: str) -> str:
    apart, far = _apart(pair), pair.before if pair.after is None else pair.after
    if pair.base:
        return (
            f"{a} is no base of {b}: {apart}, so that the task vector is as large as the model, and merging it "
            "will most likely not work"
        )
    apart = apart.removeprefix("they are ")
    if pair.kin is False and pair.before and far is not None and far < NEAR:
        apart = f"fingerprints tell no common base, and {_apart(pair)}"
    return f"{b} and {a} are unrelated: {apart}, so that their average will most likely not work"


def _unknown(pair: Pair, a: str, b: str) -> str:
    if pair.proof is Proof.OPEN:
        return f"cannot tell whether {b} and {a} are one function: {pair.doubt}"
    if pair.after is not None:
        return f"cannot tell whether {b} and {a} have a common base: fingerprints leave it open, and {_apart(pair)}"
    return (
        f"{b} lies in other coordinates than {a} ({_share(pair.before)} of the norm apart where they were "
        "compared), and whether they are related is not known before they are matched"
    )


_WORDS = {
    Relation.SAME: _same,
    Relation.NEAR: _near,
    Relation.RELATED: _related,
    Relation.DERIVED: _derived,
    Relation.UNRELATED: _unrelated,
}
