"""Residual streams on the command line: --spaces all, --untie, and what is said about them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from toys import config_of, outputs, relative, tensors

UNTIE = "--untie gives the head weights of its own"


@pytest.fixture(autouse=True)
def few_sweeps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here needs unrelated models to settle."""
    from isomerge.solve.pairs import stream_descent as streams

    monkeypatch.setattr(streams, "SWEEPS", 2)


def test_align(stored: Callable, isomerge: Callable, tmp_path: Path) -> None:
    """The table shows the objective, first and last, and the sweeps; the report has every value."""
    a, b = stored("llama", 0), stored("llama", 5)
    said = isomerge(
        "align", b, "--onto", a, "--spaces", "all", "-o", tmp_path / "out", "--json", tmp_path / "r.json"
    )
    assert said.code == 0, said.err
    (found,) = json.loads((tmp_path / "r.json").read_text())["streams"]
    first, last = found["objective"][0], found["objective"][-1]
    assert last < first
    line = next(line for line in said.out.splitlines() if line.startswith("rotations"))
    assert f"{first:.5g} -> {last:.5g}" in line
    assert line.split()[-1] == str(found["sweeps"])
    assert json.loads((tmp_path / "out" / "isomerge.json").read_text())["streams"] == [found]
    assert relative(outputs(tmp_path / "out"), outputs(b)) <= 1e-5


def test_ties(stored: Callable, isomerge: Callable, tmp_path: Path) -> None:
    """Without --untie a note, or a refusal where the group was asked for; with it a head of its own; apply
    likewise."""
    a, b = stored("gpt2", 0), stored("gpt2", 5)
    said = isomerge("align", b, "--onto", a, "--spaces", "all", "-o", tmp_path / "tied")
    assert said.code == 0
    assert "Note: res keeps to Perm" in said.out
    assert UNTIE in said.out
    said = isomerge("align", b, "--onto", a, "--spaces", "res:OFixingOnes", "-o", tmp_path / "no")
    assert said.code == 2
    assert UNTIE in said.err
    assert said.err.count("\n") == 1
    assert not (tmp_path / "no").exists()
    patch = tmp_path / "p.safetensors"
    said = isomerge(
        "align", b, "--onto", a, "--spaces", "all", "--untie", "-o", tmp_path / "own", "--save-alignment", patch
    )
    assert said.code == 0
    assert "Note" not in said.out
    assert "lm_head.weight" in tensors(tmp_path / "own")
    said = isomerge("apply", patch, b, "-o", tmp_path / "no")
    assert said.code == 2
    assert "--untie" in said.err
    assert isomerge("apply", patch, b, "--untie", "-o", tmp_path / "again").code == 0
    one, two = ((tmp_path / n / "model.safetensors").read_bytes() for n in ("own", "again"))
    assert one == two
    assert isomerge("verify", b, tmp_path / "own").code == 0


def test_merge_and_recipe(stored: Callable, isomerge: Callable, tmp_path: Path) -> None:
    """``untie: true`` in a recipe is --untie; a recipe and the option together are refused."""
    a, b = stored("llama-tied", 0), stored("llama-tied", 5)
    assert isomerge("merge", a, b, "--spaces", "all", "--untie", "-o", tmp_path / "one").code == 0
    recipe = tmp_path / "r.yml"
    models = f"models: [{{model: {a}}}, {{model: {b}}}]"
    recipe.write_text(f"{models}\nmerge_method: linear\nalign: {{spaces: all, untie: true}}\n")
    assert isomerge("merge", recipe, "-o", tmp_path / "two").code == 0
    one, two = ((tmp_path / n / "model.safetensors").read_bytes() for n in ("one", "two"))
    assert one == two
    assert config_of(tmp_path / "two")["tie_word_embeddings"] is False
    said = isomerge("merge", recipe, "--untie", "-o", tmp_path / "no")
    assert said.code == 2
    assert "leave out --untie," in said.err


def test_dry_run(stored: Callable, isomerge: Callable, tmp_path: Path) -> None:
    """The plan names the group that will act, with the note or without."""
    a, b = stored("gpt2", 0), stored("gpt2", 5)
    for extra, group in (((), "Perm"), (("--untie",), "OFixingOnes")):
        said = isomerge(
            "merge", a, b, "--spaces", "all", "--dry-run", *extra, "-o", tmp_path / "no", "--json", tmp_path / "r"
        )
        assert said.code == 0
        assert f"Residual stream res: {group}," in said.out
        assert (UNTIE in said.out) == (not extra)
        assert json.loads((tmp_path / "r").read_text())["streams"] == {"res": group}
    assert not (tmp_path / "no").exists()


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("llama", "residual stream res: O once norms' gains are folded into what reads them"),
        ("vit", "residual stream res: OFixingOnes once norms' gains are folded into what reads them"),
        ("bert", "residual stream res: Perm as it is, with --spaces all\n"),
        ("gpt2", f"residual stream res: Perm as it is, with --spaces all (res keeps to Perm: the final norm's gain cannot be "
                 f"folded into a head that is tied to the embeddings, and OFixingOnes needs that; {UNTIE})"),
    ],
)  # fmt: skip
def test_inspect(name: str, says: str, stored: Callable, isomerge: Callable) -> None:
    """The group that applies, folded or not, and why it is no larger."""
    assert says in isomerge("inspect", stored(name, 0)).out


def test_diff(stored: Callable, isomerge: Callable, tmp_path: Path) -> None:
    """Of unrelated models it is said in any spaces; what was compared is told of all of them."""
    a, b = stored("vit", 0), stored("vit", 5)
    for more in (("--spaces", "default"), ()):
        assert "are unrelated" in isomerge("diff", a, b, *more).err
    said = isomerge("diff", a, b, "--spaces", "all", "--json", tmp_path / "r")
    assert "modulo symmetry and basis of the stream" in said.out
    assert "rotations that keep the mean" in said.out
    assert json.loads((tmp_path / "r").read_text())["streams"][0]["sweeps"] >= 1


def test_progress_tells_the_objective(stored: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal the bar's own words are the phase and the objective as it falls, beside the unit."""
    import rich.progress

    import isomerge
    from isomerge.cli.console import Voice

    shown: list[tuple[str, str]] = []
    update = rich.progress.Progress.update

    def listen(self: rich.progress.Progress, task: rich.progress.TaskID, **fields: object) -> None:
        shown.append((str(fields["description"]), str(fields["unit"])))
        update(self, task, **fields)  # type: ignore[arg-type]

    monkeypatch.setattr(rich.progress.Progress, "update", listen)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    with Voice().progress("aligning") as observer:
        isomerge.align(stored("llama", 5), onto=stored("llama", 0), spaces="all", observer=observer)
    phases = list(dict.fromkeys(phase for phase, _ in shown))
    assert phases.pop(0).startswith("looking whether ")
    assert phases[:2] == ["residual stream, start shared", "residual stream, start identity"]
    assert phases[2].startswith("residual stream, sweep 1, objective ")
    assert phases[-1] == "aligning"
    assert not any(":" in unit for _, unit in shown)


def test_progress_off_a_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A line after so many seconds, not for every unit; none when quiet."""
    from isomerge.cli import console

    clock = iter([0.0, 1.0, 5.5, 5.5, 6.0, 10.6, 10.6, 11.0])
    monkeypatch.setattr(console, "monotonic", lambda: next(clock))
    with console.Voice().progress("merging") as observer:
        for done in range(1, 6):
            observer(f"step: layer {done}" if done == 4 else f"layer {done}", done, 10)
    with console.Voice(quiet=True).progress("merging") as observer:
        observer("layer 1", 9, 10)
    captured = capsys.readouterr()
    assert captured.err.splitlines() == ["merging: 20%, layer 2", "step: 40%, layer 4"]
    assert captured.out == ""
