"""What a run depends on: the meaning of specs and recipes, not their comments, blank lines or line numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

import isomerge
from isomerge.models.recognised import recognise
from isomerge.run.writing_run import run_key
from solve.disguises import single

SPEC = Path(isomerge.__file__).parent / "archs"


def text() -> str:
    """GPT-2's."""
    return next(SPEC.rglob("gpt2.spec")).read_text()


CHANGES = {
    "a comment above": (lambda t: "# mine\n\n" + t, True),
    "comments between": (lambda t: t.replace("\n", "\n# a word\n", 8), True),
    "blank lines": (lambda t: t.replace("\n", "\n\n", 3), True),
    "another size": (lambda t: t + "\nsize unused = 3\n", False),
}


@pytest.mark.parametrize("change", CHANGES)
def test_comments_do_not_count(change: str, tmp_path: Path) -> None:
    """Keys are equal exactly where the specs mean the same."""
    model = single("gpt2", tmp_path / "m")
    alter, same = CHANGES[change]
    keys = []
    for name, content in (("one", text()), ("two", alter(text()))):
        (tmp_path / f"{name}.spec").write_text(content)
        keys.append(run_key("align", [recognise(model, spec_file=tmp_path / f"{name}.spec")], 1))
    assert (keys[0] == keys[1]) == same


def test_a_recipe_is_gone_on_with(tmp_path: Path) -> None:
    """Stopped, then run with another comment: what was written stays; with another weight it begins anew."""
    a, b = single("gpt2", tmp_path / "a"), single("gpt2", tmp_path / "b", 5)
    recipe = tmp_path / "recipe.yml"
    body = f"merge_method: linear\nmodels:\n  - model: {a}\n  - model: {b}\n    parameters: {{weight: W}}\n"

    def stopped_after(count: int, content: str) -> list[str]:
        seen: list[str] = []

        def watch(unit: str, done: int, total: int) -> None:
            if seen and unit.startswith("looking whether"):
                return  # the look at the models counts once
            seen.append(unit)
            if len(seen) == count:
                raise KeyboardInterrupt

        recipe.write_text(content)
        with pytest.raises(KeyboardInterrupt):
            isomerge.merge(recipe, out=tmp_path / "out", observer=watch, jobs=1)
        return seen

    first = stopped_after(9, body.replace("W", "0.5"))
    again = stopped_after(3, "# a comment\n" + body.replace("W", "0.50").replace("}\n", "}  # half\n"))
    assert "checking what was written" in again
    anew = stopped_after(3, body.replace("W", "0.6"))
    assert "checking what was written" not in anew
    assert len(first) == 9
