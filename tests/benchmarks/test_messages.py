"""Every mistake of docs/lab/messages.md gets the sentence that stands there, which names a way out."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.messages import MISTAKES, PAGE, Mistake, lay, page, row, sentence, stand_ins
from docs.stand_ins import StandIns

EVERY = [mistake for mistakes in MISTAKES.values() for mistake in mistakes]
WELL = "isomerge: no such thing: did you mean another?\n"
WRONG = {
    "a success": (0, WELL),
    "a crash": (1, WELL),
    "two sentences": (2, WELL + WELL),
    "a line before": (2, f"Decided.\n{WELL}"),
    "a traceback": (2, f"Traceback (most recent call last):\n{WELL}"),
    "usage": (2, "Usage: isomerge merge\n"),
    "no way out": (2, "isomerge: no such thing\n"),
    "nothing": (2, ""),
}
"""What must not pass: wrong programs, by what they say of a mistake."""


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> StandIns:
    """Made once."""
    return stand_ins(tmp_path_factory.mktemp("mistakes"))


@pytest.fixture
def laid(
    request: pytest.FixtureRequest, models: StandIns, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Mistake:
    """A mistake, in its folder."""
    lay(request.param, models, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    return request.param


@pytest.mark.parametrize("laid", EVERY, indirect=True, ids=lambda mistake: mistake.what)
def test_it_is_told_as_the_page_says(laid: Mistake, tmp_path: Path) -> None:
    """In one sentence, with exit code 2, and nothing is left behind."""
    before = sorted(tmp_path.rglob("*"))
    assert row(laid, sentence(laid, tmp_path)) in PAGE.read_text()
    assert sorted(tmp_path.rglob("*")) == before


def test_the_page_has_these_mistakes_and_no_others() -> None:
    """Written by `python -m benchmarks.messages`."""
    text = PAGE.read_text()
    assert len(EVERY) == len({mistake.what for mistake in EVERY}) >= 70
    rows = [line for line in text.splitlines() if line.startswith("| ") and not line.startswith("| mistake")]
    made = page(
        lambda mistake: rows[EVERY.index(mistake)].rpartition(" | ")[2].removesuffix(" |").replace("\\<", "<")
    )
    assert text == made, "run python -m benchmarks.messages"


@pytest.mark.parametrize("wrong", WRONG)
def test_what_is_no_sentence_with_a_way_out_fails(wrong: str) -> None:
    """The mutants of what is said; the same check takes what is well said."""
    mistake = Mistake("", "thing", "did you mean another?")
    assert mistake.check(2, WELL) == "no such thing: did you mean another?"
    with pytest.raises(ValueError, match="thing"):
        mistake.check(*WRONG[wrong])
