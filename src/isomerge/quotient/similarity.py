"""What two fingerprints say of two models: the same function, derived from one base, independent, that witnesses
disagree, or that it cannot be told.

Same function: the hashes are equal, every relation agrees to float32's rounding, and the configs say the same of
it. Same within rounding: they agree within what rounding of the stored dtypes may do to a disguise, or the hashes
are equal and nothing tells what was done; a change as small as that looks the same. Derived: a witness
(`isomerge.quotient.witnesses`) sees a common base, and what the others do not see is explained by what was done
(`isomerge.quotient.changes`). Where nothing explains it, somebody may have changed just what a witness looks at.
Independent: no draw of anchors sees more than strangers have in common, and both do not hold the same numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from isomerge.errors import IsomergeError
from isomerge.evidence.distance import SAME
from isomerge.quotient.changes import (
    Change,
    Evidence,
    changes,
    exchanged,
    open_settings,
    other_bases,
    other_settings,
    other_sizes,
)
from isomerge.quotient.record import BASIS, Fingerprint
from isomerge.quotient.storage import shared_entries
from isomerge.quotient.stream_anchors import DRAWS, EVERY, LENGTHS, OTHERS, TOKENS
from isomerge.quotient.witnesses import KIN, by_table, layers_seen, score, spectral, spectral_distance
from isomerge.records import Json, Record

FOREIGN = 0.15
"""Scores below mean none."""
ALIKE = 0.8
"""Likeness of spectra above means a common base."""
UNLIKE, CERTAIN = 0.2, 0.95
"""Likeness of spectra that nobody expects of models whose circuits agree to this. (By itself it says nothing:
pruning, noise and a stranger change spectra alike.)"""
BY_LENGTH = 0.5
"""Scores of the draw by lengths above mean a common base: it knows shuffled rows, and little of any that
changed."""
BY_WEIGHTS = 1.5
"""Times how far weights moved: by less than that a returned stream's coordinates move with them, in one basis."""
APART = 10.0
"""Times the tolerance: relations differ by less under the rounding of an ill-conditioned disguise."""
KINDS = 3
"""Kinds of tensors that a sentence names."""
SPECTRA = "spectra"
SAME_FUNCTION, ONE_BASE, INDEPENDENT = "same function", "derived from one base", "independent"
WITHIN_ROUNDING = "same within rounding: run verify"
TAMPERED = "the witnesses disagree: tampered?"
OPEN_CONFIGS = "cannot tell: equal weights, other configs"
OPEN_SIZES = "cannot tell: equal relations, other sizes"
OPEN_SCORES = "cannot tell whether they have one base"
NOTHING = "nothing to compare"
VERDICTS = (
    SAME_FUNCTION, WITHIN_ROUNDING, ONE_BASE, INDEPENDENT, TAMPERED, OPEN_CONFIGS, OPEN_SIZES, OPEN_SCORES, NOTHING,
)  # fmt: skip


class Similarity(Record):
    """How two models are related, as far as fingerprints tell."""

    score: float | None
    """The highest mean cosine of their circuits from any draw of anchors that tells a common base: 1 for one
    function, near 0 for independent models; None where nothing compares."""
    difference: float | None
    """The largest relative difference of any relation that both have; None where there are none."""
    typical: float | None
    """The median of these differences."""
    tensor: str
    """Where the largest one is."""
    tolerance: float
    """What rounding of the stored dtypes explains."""
    hashes_equal: bool
    settings: tuple[str, ...] = ()
    """What the configs say otherwise of the function, in sentences."""
    sizes: tuple[str, ...] = ()
    """Sizes that differ inside of layers, in sentences."""
    unsure: tuple[str, ...] = ()
    """Keys in which the configs differ, and of which nobody knows whether the function depends on them."""
    spread: float | None = None
    """The largest relative distance of any spectrum; None where there are none."""
    witnesses: Mapping[str, float | None] = field(default_factory=dict)
    """What every witness says: scores by draw of anchors, and how alike spectra are; None of one that sees
    nothing."""
    tables: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """What every draw says from the anchors of each table alone."""
    changes: tuple[Change, ...] = ()
    """What was done, as far as the data tell."""
    shared: tuple[str, ...] = ()
    """Kinds of tensors of which both hold the same numbers at the same places, more of them than chance explains
    (`isomerge.quotient.storage.shared_entries`)."""

    @property
    def equal(self) -> bool:
        """Whether rounding explains every difference of weights that relations show."""
        return self.difference is not None and self.difference <= self.tolerance

    @property
    def same(self) -> bool:
        """Whether rounding explains every difference of weights, and the configs say the same of the function."""
        return self.equal and not self.settings and not self.sizes and not self.conflict

    @property
    def derived(self) -> bool:
        """Whether a witness sees a common base, or they are one function; others may disagree (see `conflict`)."""
        bars = {SPECTRA: ALIKE, LENGTHS: BY_LENGTH}
        said = self.witnesses.items()
        return self.equal or any(value is not None and value >= bars.get(name, KIN) for name, value in said)

    @property
    def kin(self) -> bool | None:
        """Whether they have a common base, beyond doubt; None where that cannot be told."""
        strange = self.score is not None and self.score < FOREIGN and not self.shared
        return True if self.derived else False if strange else None

    @property
    def apart(self) -> bool:
        """Whether they differ as a whole, by far more than any rounding: most relations do."""
        return self.typical is not None and self.typical > APART * self.tolerance and not self.derived

    @property
    def conflict(self) -> str:
        """A sentence where witnesses disagree and nothing that was done explains it; empty where they do not."""
        if self.equal:
            if self.spread is not None and self.spread > self.tolerance**0.5:
                return (
                    f"all relations agree, but spectra of circuits are {self.spread:.2g} apart: weights were "
                    "changed where no anchor looks"
                )
            return ""
        places = [said for draw in (TOKENS, OTHERS, EVERY) if (said := self.witnesses.get(draw)) is not None]
        spectra = self.witnesses.get(SPECTRA)
        if places and min(places) >= CERTAIN and spectra is not None and spectra < UNLIKE:
            return (
                f"anchors see one function ({min(places):.2f}), but spectra of circuits are strange to each "
                f"other ({spectra:.2f}): they were changed where no anchor looks"
            )
        return exchanged(self.tables, self.changes) if self.derived else ""

    @property
    def verdict(self) -> str:
        """One of `VERDICTS`."""
        if self.conflict:
            return TAMPERED
        if self.same and self.unsure:
            return OPEN_CONFIGS
        if self.same:
            exact = self.hashes_equal and (self.difference or 0.0) <= SAME["F32"]
            return SAME_FUNCTION if exact else WITHIN_ROUNDING
        if self.equal and not self.settings:
            return OPEN_SIZES
        if self.derived:
            # the rounding of a disguise of high condition exceeds the tolerance, and nothing tells it from a change
            unseen = self.hashes_equal and not (self.settings or self.sizes or self.unsure or self.changes)
            return WITHIN_ROUNDING if unseen else ONE_BASE
        if self.kin is False:
            return INDEPENDENT
        return NOTHING if self.score is None and not self.shared else OPEN_SCORES

    @property
    def source(self) -> int | None:
        """The model that the other was made from (0 or 1) where the data decide it."""
        made = {change.made for change in self.changes if change.made is not None}
        return 1 - made.pop() if self.derived and len(made) == 1 else None

    @property
    def said(self) -> list[str]:
        """What was done, in sentences."""
        changes = [change.words for change in self.changes]
        return [*self.settings, *self.sizes, *changes] if self.derived else []

    @property
    def doubt(self) -> str:
        """A sentence where the verdict is open, and something is known that speaks for the one or the other; empty
        elsewhere."""
        if self.verdict == OPEN_SIZES:
            return (
                "what one of them has more may do nothing, or be another part split in two, and then they are one "
                "function: compare what both give for the same inputs"
            )
        if self.derived or not self.shared:
            return ""
        more = len(self.shared) - KINDS
        names = ", ".join(self.shared[:KINDS]) + (
            f" and {more} more kind{'s' if more > 1 else ''} of tensors" if more > 0 else ""
        )
        return f"no witness sees a common base, but both hold the same numbers at the same places of {names}"

    def document(self) -> Json:
        """For a report."""
        return {
            "verdict": self.verdict,
            "score": self.score,
            "difference": self.difference,
            "tensor": self.tensor,
            "tolerance": self.tolerance,
            "hashes_equal": self.hashes_equal,
            "witnesses": dict(self.witnesses),
            "changes": self.said,
            "shared": list(self.shared),
            "unsure": list(self.unsure),
            "source": self.source,
            "conflict": self.conflict or None,
            "doubt": self.doubt or None,
        }


def similarity(first: Fingerprint, second: Fingerprint) -> Similarity:
    """Compare two fingerprints; the models need not have one width, depth or vocabulary.

    Raises:
        IsomergeError: they were made with different salts.
    """
    if first.salt != second.salt:
        raise IsomergeError(
            f"{first.ref} and {second.ref} were fingerprinted with different salts ({first.salt or 'none'}, "
            f"{second.salt or 'none'}), so that nothing in them "
            "compares: make both with one --salt, from the models"
        )
    tolerance = max(SAME.get(f.dtype, SAME["F32"]) for f in (first, second))
    differences = _differences(first, second)
    largest, tensor = max(((v, k) for k, v in differences.items()), default=(None, ""))
    typical = sorted(differences.values())[len(differences) // 2] if differences else None
    seen = {draw: layers_seen(first, second, draw) for draw in DRAWS}
    witnesses = {draw: score(cosines) for draw, cosines in seen.items()} | {SPECTRA: spectral(first, second)}
    known = [s for draw in (TOKENS, OTHERS, EVERY) if (s := witnesses[draw]) is not None]
    if (by_length := witnesses[LENGTHS]) is not None and by_length >= BY_LENGTH:
        known.append(by_length)
    best = max(known, default=None)
    moved = (2 * (1 - min(best, 1.0))) ** 0.5 if best is not None else 0.0
    settings = (*other_settings(first, second), *other_bases(first, second, max(tolerance, BY_WEIGHTS * moved)))
    sizes = tuple(other_sizes(first, second))
    unsure = tuple(open_settings(first, second))
    spread = spectral_distance(first, second)
    alike = witnesses[SPECTRA]
    kin = max(known, default=0.0) >= FOREIGN or (alike is not None and alike >= ALIKE)
    tables = (
        by_table(first, second) if kin and (largest is None or largest > tolerance) else {}
    )  # of strangers nothing was done
    evidence = Evidence(seen, witnesses, tables, differences, tolerance, spread, bool(sizes))
    done = tuple(changes(first, second, evidence))
    equal = first.hash == second.hash
    return Similarity(
        best, largest, typical, tensor, tolerance, equal, settings, sizes, unsure, spread, witnesses, tables, done,
        shared_entries(first.entries, second.entries),
    )  # fmt: skip


def _differences(first: Fingerprint, second: Fingerprint) -> dict[str, float]:
    """The relative difference of every relation that both have (heads may be in one only); what is tiny is measured
    against its kind. None where anchors or layers differ."""
    mine, theirs = (
        {(r.draw, r.block, r.kind): r.data.double() for r in f.relations if r.draw not in (LENGTHS, BASIS)}
        for f in (first, second)
    )
    layers = [{(r.draw, r.block, r.kind) for r in f.relations if r.layer is not None} for f in (first, second)]
    names = [
        {d: {s: v.names for s, v in streams.items()} for d, streams in f.anchors.items()} for f in (first, second)
    ]
    if names[0] != names[1] or layers[0] != layers[1]:
        return {}
    mine = {key: x for key, x in mine.items() if key in theirs and theirs[key].shape == x.shape}
    largest: dict[tuple[str, str], float] = {}
    for (draw, _, kind), x in mine.items():
        largest[draw, kind] = max(largest.get((draw, kind), 0.0), float(x.norm()))
    return {
        f"{block} ({kind})": float((x - theirs[draw, block, kind]).norm())
        / max(float(x.norm()), 1e-3 * largest[draw, kind], 1e-300)
        for (draw, block, kind), x in sorted(mine.items(), key=lambda r: r[0][0] == EVERY)
    }
