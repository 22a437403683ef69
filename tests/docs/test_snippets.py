"""Every fenced block of the README and of the site does what the page says: commands, Python, recipes, and their
output."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from docs.markdown import ROOT, Fence, fences, pages
from docs.session import Session, alike, commands, exchanges, parse_only
from docs.stand_ins import StandIns

PAGES = [ROOT / "README.md", *pages()]
RUN = {"bash", "console", "python", "yaml"}
SHOWN = {"text", "{toctree}", "{eval-rst}"}
MOST_NOT_RUN = 11


def of(page: Path) -> list[Fence]:
    """The fences of a page."""
    return list(fences(page))


def lines_of(fence: Fence) -> list[str]:
    """The commands in a block."""
    if fence.language == "console":
        return [command for command, _ in exchanges(fence.text)]
    return commands(fence.text) if fence.language == "bash" else []


WITH_CODE = [page for page in PAGES if any(fence.language in RUN for fence in of(page))]


@pytest.fixture(scope="session")
def stand_ins(tmp_path_factory: pytest.TempPathFactory) -> StandIns:
    """Made once for all pages."""
    return StandIns(tmp_path_factory.mktemp("stand-ins"))


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Session:
    """An empty folder to be in; learning is cut to a few steps, and methods and readers that a page registers are forgotten."""
    from isomerge.fusion import registry
    from isomerge.observe.data import plug_in_readers
    from isomerge.solve.learn import settings as learning

    registry.methods()
    monkeypatch.setattr(registry, "_METHODS", dict(registry._METHODS))
    monkeypatch.setattr(plug_in_readers, "_READERS", {})
    monkeypatch.setattr(learning, "EFFORTS", {"quick": 2, "thorough": 3})
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return Session(tmp_path)


def test_every_block_has_a_language() -> None:
    """What has none, or is hidden in one that is only shown, would not be run."""
    for page in PAGES:
        for fence in of(page):
            assert fence.language in RUN | SHOWN, (
                f"{fence}: say one of {sorted(RUN | SHOWN)}, not {fence.language!r}"
            )
            first = fence.text.split(maxsplit=1)[:1]
            assert fence.language in RUN or first not in (["isomerge"], ["$"], ["import"]), f"{fence}: this is code"


def test_few_blocks_are_not_run() -> None:
    """What is not run says why, and their options at least are those of the program."""
    left = [fence for page in PAGES for fence in of(page) if "not run" in fence.marks]
    assert all(len(fence.marks["not run"]) > 10 for fence in left)
    assert len(left) <= MOST_NOT_RUN, [str(fence) for fence in left]
    for fence in left:
        for line in lines_of(fence):
            parse_only(line)
        if fence.language == "python":
            compile(fence.text, str(fence), "exec")


@pytest.mark.parametrize("page", WITH_CODE, ids=lambda page: page.stem)
def test_page_runs(page: Path, session: Session, stand_ins: StandIns, monkeypatch: pytest.MonkeyPatch) -> None:
    """From its first block to its last, in one folder, as a reader would; streams settle where a page shows what
    comes of it."""
    found = [fence for fence in of(page) if "not run" not in fence.marks]
    if not any(fence.language == "console" or "output" in fence.marks for fence in found):
        monkeypatch.setattr("isomerge.solve.pairs.stream_descent.SWEEPS", 4)
    stand_ins.lay("\n".join(fence.text for fence in found if fence.language in RUN), session.folder)
    for fence in found:
        if fence.language == "yaml":
            check_recipe(fence, session.folder)
        session.run(fence)


def check_recipe(fence: Fence, folder: Path) -> None:
    """The reader of recipes takes it, and its method has the parameters; what it needs is imported. Of pipelines,
    what it says of every component."""
    from isomerge.fusion.adapter_merges import KINDS
    from isomerge.fusion.registry import methods
    from isomerge.merging.adapter.merge_lora import asked_of_recipe
    from isomerge.merging.experts.expert_checks import check_experts_recipe
    from isomerge.merging.recipe.recipe_components import component_step
    from isomerge.merging.recipe.recipe_modules import module_steps
    from isomerge.merging.recipe.recipe_request import request_of_recipe
    from isomerge.merging.recipe.schema import makes_experts, read_experts_recipe
    from isomerge.merging.recipe.searched import searched_recipe
    from isomerge.plug_ins.command import importing

    content = yaml.safe_load(fence.text)
    assert {"merge_method", "experts", "genome"} & content.keys(), f"{fence}: show whole recipes"
    file = folder / "checked.yml"
    file.write_text(fence.text)
    if makes_experts(file):
        check_experts_recipe(read_experts_recipe(file), file)
        return
    if "genome" in content:
        searched_recipe(file)
        return
    of_adapters = content["merge_method"] in KINDS.keys() - methods().keys()  # of isomerge merge-lora
    own = {name: content[name] for name in ("unet", "text_encoder", "vae") if name in content}
    read = asked_of_recipe if of_adapters else searched_recipe if "{search: " in fence.text else request_of_recipe
    with importing(content.get("import")):
        if steps := [] if own or of_adapters else module_steps(file, content):
            for step in steps:
                request_of_recipe(step)
        elif not own:
            read(file)
        for name in (name for name, words in own.items() if isinstance(words, dict)):
            request_of_recipe(component_step(str(file), content, name, own, {}))


def test_other_output_is_noticed() -> None:
    """The comparison refuses other words, other numbers, lines too few and too many; rounding it forgives."""
    page = [["loss", "0.1000", "-13.2%"], ["..."], ["Wrote", "out."]]
    good = [["loss", "0.1001", "-13.2%"], ["a"], ["b"], ["Wrote", "out."]]
    assert alike(good, page, 0.01)
    assert alike([good[0], good[3]], page, 0.01)
    assert not alike([["loss", "0.2", "-13.2%"], *good[1:]], page, 0.01)
    assert not alike([["gain", "0.1", "-13.2%"], *good[1:]], page, 0.01)
    assert not alike([["loss", "0.1", "+13.2%"], *good[1:]], page, 0.01)
    assert not alike(good[:3], page, 0.01)
    assert not alike([*good, ["warning:"]], page, 0.01)
    assert not alike([["loss", "0.1", "-13.2%", "more"], *good[1:]], page, 0.01)
    assert alike([["1.3e-15"]], [["4e-16"]], 0.01)
    assert not alike([["1.3e-3"]], [["4e-16"]], 0.01)


@pytest.mark.parametrize(
    "line", ["isomerge merge A B --outt out", "isomerge align A", "isomerge marge A B", "make coffee"]
)
def test_wrong_options_are_noticed(line: str) -> None:
    """What is not run is still parsed."""
    with pytest.raises(Exception, match=r"No such option|Missing|marge|no such target"):
        parse_only(line)


def test_a_wrong_page_fails(session: Session) -> None:
    """A command that fails, and output that is another, stop a page."""
    here = ROOT / "docs" / "index.md"
    with pytest.raises(AssertionError, match="no such folder"):
        session.run(Fence(here, 1, "bash", "isomerge inspect nowhere\n"))
    session.run(Fence(here, 1, "python", "print(2)\n"))
    with pytest.raises(AssertionError, match="shown"):
        session.run(Fence(here, 1, "text", "3\n", {"output": ""}))
    with pytest.raises(AssertionError, match="cannot run"):
        session.run(Fence(here, 1, "bash", "rm -r out\n"))
