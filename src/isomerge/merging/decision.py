"""What a merge decides where nothing says it: whether models are matched, in which spaces, and whether the match is
learned; in words, with the options that say otherwise.

- Aligned already, as fine-tunes of one base are: nothing is matched.
- In one basis, with parts out of place: inside the layers.
- In another basis, or trained apart: the residual stream as well, wherever the architecture lets it move.
- Trained apart, and data are given: learned on them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from isomerge.models.model_inputs import Inputs
from isomerge.models.recognised import Model
from isomerge.options.fusing import AUTO
from isomerge.records import Record
from isomerge.solve.match_options import GENERATE, Matching
from isomerge.solve.standing import Standing, in_another_basis


class Decision(Record):
    """What was decided, and why."""

    what: str
    why: str
    otherwise: tuple[tuple[str, str], ...] = ()
    """Options, by their names in recipes, and the values that say otherwise."""

    @property
    def sentence(self) -> str:
        """What was decided and why, without a full stop."""
        return f"{self.what}, as {self.why}"

    def lines(self, *, recipe: bool) -> list[str]:
        """The two lines that people are told.

        Args:
            recipe: whether a recipe's keys say otherwise, or switches.
        """
        ways = [f"{key}: {value}" if recipe else _switch(key, value) for key, value in self.otherwise]
        return [f"Decided: {self.sentence}.", *([f"To decide otherwise: {', or '.join(ways)}."] if ways else [])]


def _switch(key: str, value: str) -> str:
    if key == "align":
        return "--align" if value == "true" else "--no-align"
    return f"--{key.replace('_', '-')} {value}"


def learns(matching: Matching, standing: Sequence[Standing], donor: Model) -> bool:
    """Whether a match is learned on its data: models were trained apart, and nothing says how data are used.

    Noise, which is what models of images make, is for activations alone: what is learned from it was worse than the
    match by weights (docs/lab/measured-barriers.md).
    """
    noise = matching.data == GENERATE and Inputs(donor.config).images
    return matching.decides and matching.may_learn and not noise and any(s.strange for s in standing)


def learning(matching: Matching) -> Matching:
    """The same match, learned on its data; where models cannot be learned, it goes on without."""
    return replace(matching, learn=matching.data, tentative=True)


def decision(
    *,
    align: bool | str,
    asked: str | None,
    spaces: str,
    standing: Sequence[Standing],
    left: Sequence[bool],
    matching: Matching,
    fixed: str = "",
) -> Decision | None:
    """What was decided of a merge; None where it was all said.

    Args:
        align: as it was said.
        asked: the spaces that were asked for.
        spaces: those that were chosen.
        standing: how the models stand.
        left: which are left as they are.
        matching: with learning, where that was decided.
        fixed: why the residual stream cannot be matched in this run, if it cannot.
    """
    if not standing or not align or (asked is not None and not any(left)):
        return None
    if left and all(left):
        return Decision("nothing is matched", _aligned(standing), (("align", "true"),))
    what, otherwise = _matched(spaces, asked, learned=matching.tentative, matching=matching)
    if align == AUTO:
        otherwise.append(("align", "false"))
    why = _why([s for s, left_alone in zip(standing, left, strict=True) if not left_alone], spaces, fixed)
    if any(left):
        why = f"{why}; {_aligned([s for s, left_alone in zip(standing, left, strict=True) if left_alone])}"
    return Decision(what, why, tuple(otherwise))


def _matched(
    spaces: str, asked: str | None, *, learned: bool, matching: Matching
) -> tuple[str, list[tuple[str, str]]]:
    whole = spaces == "all"
    what = "the whole residual stream is matched" if whole else "models are matched inside their layers"
    otherwise: list[tuple[str, str]] = []
    if learned and matching.settings is not None:
        source = "texts that they write" if matching.data == GENERATE else "the data"
        what += f" and the match learned on {source} ({matching.settings.steps} steps)"
        otherwise.append(("learn_effort", "none"))
    elif whole and matching.data is not None and matching.may_learn:
        otherwise.append(("learn", "DATA"))
    if asked is None:
        otherwise.append(("spaces", "default" if whole else "all"))
    return what, otherwise


def _aligned(standing: Sequence[Standing]) -> str:
    names = " and ".join(s.model for s in standing)
    return f"{names} {'is' if len(standing) == 1 else 'are'} aligned with {standing[0].anchor} already"


def _why(standing: Sequence[Standing], spaces: str, fixed: str) -> str:
    strange = [s for s in standing if s.strange]
    moved = [s for s in standing if s.moved]
    elsewhere = [s for s in standing if s.elsewhere]
    if strange:
        why = f"{_names(strange)} and {strange[0].anchor} show no common base"
    elif moved:
        why = in_another_basis(moved)
    elif elsewhere:
        why = in_another_basis(elsewhere, "may be")
    elif misplaced := [s for s in standing if not s.settled]:
        return f"parts of {_names(misplaced)} are out of place, in the basis of {standing[0].anchor}"
    else:
        return f"was asked, though {_aligned(standing)}"
    if spaces != "default":
        return why
    return f"{why}, but {fixed or 'the architecture leaves its residual stream no freedom'}"


def _names(standing: Sequence[Standing]) -> str:
    return " and ".join(s.model for s in standing)
