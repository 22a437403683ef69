"""The Brown corpus' tags reduced to the twelve universal parts of speech of Petrov, Das and McDonald (2012).

A Brown tag is a base (`nn`), perhaps marked as of a title, a headline or cited (`nn-tl`), perhaps of a foreign word
(`fw-nn`), perhaps negated (`md*`) or of two words in one (`pps+bez` for *he's*, which counts as its first). Where
Petrov et al. and the Universal Dependencies differ, the latter are followed, as far as a tag decides it:
possessives (*my*) are pronouns, the existential *there* is a pronoun, ordinals are adjectives, subordinating
conjunctions are conjunctions.
"""

from __future__ import annotations

import re

TAGS = ("NOUN", "VERB", "ADJ", "ADV", "PRON", "DET", "ADP", "NUM", "CONJ", "PRT", ".", "X")
BASES = {
    "NOUN": "nn nn$ nns nns$ np np$ nps nps$ nr nr$ nrs",
    "VERB": "be bed bedz beg bem ben ber bez do dod doz hv hvd hvg hvn hvz md vb vbd vbg vbn vbz",
    "ADJ": "jj jj$ jjr jjs jjt od",
    "ADV": "rb rb$ rbr rbt rn ql qlp wrb wql *",
    "PRON": "pn pn$ pp$ pp$$ ppl ppls ppo pps ppss wp$ wpo wps ex",
    "DET": "abl abn abx ap ap$ at dt dt$ dti dts dtx wdt",
    "ADP": "in",
    "NUM": "cd cd$",
    "CONJ": "cc cs",
    "PRT": "rp to",
    ".": ". , : ( ) -- `` '' '",
    "X": "uh nil fw",
}
OF_BASE = {base: tag for tag, bases in BASES.items() for base in bases.split()}
MARKS = re.compile(r"(-(tl|hl|nc))+$")


def base_of(tag: str) -> str:
    """The base of a Brown tag: without marks, and of the first word where there are two."""
    if tag.startswith("fw-"):
        return "fw"
    first = MARKS.sub("", tag).split("+")[0]
    return first if first in OF_BASE else MARKS.sub("", first).rstrip("*")


def universal(tag: str) -> str:
    """The universal part of speech of a Brown tag.

    Raises:
        KeyError: the corpus has no such tag.
    """
    return OF_BASE[base_of(tag)]
