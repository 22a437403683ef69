"""The court: what is wrong is refused, what moves nothing is not proven, and rounding is told from error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import pytest

from discovery.specs import GROUPED, found
from isomerge.discovery.building import real_config, specimens
from isomerge.discovery.discover import proven_again
from isomerge.discovery.draft import Draft, SpaceDraft
from isomerge.discovery.proving import PROVEN, Court
from isomerge.discovery.specimen import Specimen
from isomerge.errors import IsomergeError

CONFIG = {"model_type": "llama", **GROUPED}


@cache
def llama() -> tuple[Draft, Sequence[Specimen]]:
    """The proven draft, and specimens that it was not proven on."""
    return replace(found("llama").draft, requires=()), specimens(real_config(CONFIG), 300)


def edited(**spaces: str) -> Draft:
    """The draft with other groups."""
    draft, _ = llama()
    return draft.with_space(*(replace(draft.spaces[name], group=group) for name, group in spaces.items()))


def retyped(old: str, new: str, only: str = "") -> Draft:
    """The draft with other axes in some lines."""
    draft, _ = llama()
    axes = {key: text.replace(old, new) if only in key[0] else text for key, text in draft.axes.items()}
    assert axes != draft.axes
    return replace(draft, axes=axes)


def test_the_draft_itself_is_proven() -> None:
    """On specimens and elements that it has not seen."""
    draft, pair = llama()
    errors = proven_again(draft, pair)
    assert set(errors) == {"all", "all, through disk", "res folded", *draft.spaces}
    assert max(errors.values()) < PROVEN


MUTANTS = {
    "key not dual": ("c", retyped, ("c' pair", "c pair")),
    "interleaved for half-split": ("c", retyped, ("c pair", "pair c", "q_proj")),
    "output not dual": ("ov", retyped, ("ov'", "ov")),
    "heads fast": ("kv", retyped, ("(kv ov)", "(ov kv)", "v_proj")),
    "factor on one side only": ("u", retyped, ("(ff u)", "ff")),
    "a reader forgotten": ("n1", retyped, ("(res n1)'", "res'", "k_proj")),
    "a writer forgotten": ("res", retyped, ("res", "other", "down_proj")),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_wrong_axes_are_refused(name: str) -> None:
    """By an error far above rounding."""
    space, make, arguments = MUTANTS[name]
    draft = make(*arguments)
    if "other" in arguments:
        draft = draft.sized(other="hidden_size")
    court = Court(llama()[1])
    assert not court.accepts(draft, space)
    assert court.record[-1].error > 1e-3


def test_groups_too_large_are_refused() -> None:
    """Rotations under gains cannot act: that is no proof."""
    court = Court(llama()[1])
    assert court.error(edited(res="O"), ["res"]) == float("inf")
    assert court.error(edited(kv="GL"), ["kv"]) > 1e-3
    assert court.error(edited(ff="O"), ["ff"]) > 1e-3


def test_what_moves_nothing_is_not_proven() -> None:
    """A permutation of one thing leaves all outputs, and shows nothing."""
    draft, pair = llama()
    alone = draft.sized(one="1").with_space(SpaceDraft("one", "Perm", ("l",)))
    line = next(line for line in draft.lines if line.name.endswith("gate_proj.weight"))
    alone = alone.typed({(line.name, 0): "(one ff)"})
    assert Court(pair).error(alone, ["one"]) == float("inf")


def test_a_draft_that_does_not_hold_is_not_returned() -> None:
    """The second proof names the space."""
    with pytest.raises(IsomergeError, match=r"does not hold for other specimens: (ov|all) changes outputs"):
        proven_again(retyped("ov'", "ov"), llama()[1])
