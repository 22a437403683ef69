"""Merge methods of other packages, by entry points: a scratch package whose dist-info folder stands on the path."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import isomerge
from imported import forgotten
from isomerge.errors import IsomergeError
from isomerge.fusion import registry
from isomerge.fusion.fusion import fusion_of
from isomerge.plug_ins.command import importing, used
from solve.disguises import single
from toys import tensors

CODE = '''
"""A scratch plug-in."""
from isomerge.fusion.registry import elementwise_method

@elementwise_method
def NAME(tensors, *, pull: float = 0.5):
    """The first model, pulled towards the last."""
    return tensors[0] + pull * (tensors[-1] - tensors[0])
'''


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Writes a package with one entry point onto the path, and forgets it afterwards."""
    monkeypatch.setattr(registry, "_METHODS", dict(registry.methods()))
    monkeypatch.syspath_prepend(str(tmp_path))
    written: list[str] = []

    def write(package: str, method: str, code: str = CODE) -> Path:
        file = tmp_path / f"{package}.py"
        file.write_text(code.replace("NAME", method))
        info = tmp_path / f"{package}-1.2.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.2\n")
        (info / "entry_points.txt").write_text(f"[isomerge.methods]\n{method} = {package}\n")
        written.append(package)
        return file

    yield write
    for package in written:
        sys.modules.pop(package, None)


def test_every_method_has_its_file() -> None:
    """By it a method is found without loading the others."""
    own = {name: method.function.__module__ for name, method in registry.methods().items() if method.built_in}
    assert own == {name: f"isomerge.fusion.{registry.FILES.get(name, name)}" for name in own}
    assert registry.FILES.keys() <= own.keys()


def test_a_package_s_method_is_loaded_when_it_is_named(install) -> None:
    install("scratch_pull", "pulled")
    registry.method("linear")
    assert "scratch_pull" not in sys.modules  # another name loads nothing
    first, last = torch.randn(2, 5, 3).unbind()
    method = registry.method("pulled")
    merged = method.fuse([first, last], {"pull": 0.25})
    assert torch.equal(merged, first + 0.25 * (last - first))
    assert not torch.equal(merged, (first + last) / 2)
    assert "scratch_pull 1.2" in registry.source(method)
    with pytest.raises(IsomergeError, match="did you mean `pull`"):
        method.check_value("pul", 1.0, "pul")


def test_its_code_is_part_of_the_key(install) -> None:
    file = install("scratch_key", "keyed")
    one = fusion_of(2, method="keyed").key()
    file.write_text(file.read_text() + "# another text")
    assert fusion_of(2, method="keyed").key() == one  # it is loaded
    registry._METHODS.pop("keyed"), sys.modules.pop("scratch_key")
    assert fusion_of(2, method="keyed").key() != one


GIVEN = """
from functools import partial
from isomerge.fusion.linear import linear
from isomerge.fusion.registry import merge_method, per_model

def pulling(tensors, *, pull: float = 0.5, weight=per_model(1.0)):
    \"\"\"The first model, pulled towards the last.\"\"\"
    return weight[0] * tensors[0] + pull * (tensors[-1] - tensors[0])

given = partial(partial(pulling, weight=2.0), pull=0.25)
given.__name__ = "given"
merge_method(given)
"""


def test_of_a_function_with_arguments_given(install) -> None:
    """They are its defaults, and it says what the function says; their text is part of the key, also where the
    function is isomerge's own."""
    file = install("scratch_given", "given", GIVEN)
    method, first, last = registry.method("given"), *torch.randn(2, 5, 3).unbind()
    assert not method.built_in
    assert method.summary == "The first model, pulled towards the last."
    assert {name: (option.default, option.per_model) for name, option in method.options.items()} == {
        "pull": (0.25, False),
        "weight": (2.0, True),
    }
    assert "scratch_given 1.2" in registry.source(method)
    assert torch.equal(method.fuse([first, last], {}), 2 * first + 0.25 * (last - first))
    assert torch.equal(method.fuse([first, last], {"pull": 0.5, "weight": [1, 1]}), first + 0.5 * (last - first))
    keys = []
    for text in (GIVEN, GIVEN.replace("0.25", "0.75"), GIVEN.replace("pulling, weight", "linear, weight")):
        registry._METHODS.pop("given"), sys.modules.pop("scratch_given")
        file.write_text(text.replace(", pull=0.25", "") if "linear, weight" in text else text)
        keys.append(fusion_of(2, method="given").key())
        assert registry.method("given").built_in is False
        with importing(None):
            registry.method("given")
            assert used()[0]["source"] == "scratch_given 1.2"
    assert len({*map(str, keys)}) == 3


SHARED = """
from functools import partial

def pulling(tensors, *, pull: float):
    return tensors[0] + pull * (tensors[-1] - tensors[0])

def made(pull):
    def shared(tensors, *, pull: float = pull):
        return pulling(tensors, pull=pull)
    return shared

class Pulling:
    def __init__(self, pull):
        self.pull, self.__name__ = pull, "shared"
    def __call__(self, tensors):
        return pulling(tensors, pull=self.pull)

def given(pull):
    function = partial(pulling, pull=pull)
    function.__name__ = "shared"
    return function

def registered(pull):
    from isomerge.fusion.registry import merge_method
    merge_method(given(pull))
"""
"""A module of which others register functions."""
WAYS = {way: f"merge_method(scratch_shared.{way}(PULL))" for way in ("made", "Pulling", "given")} | {
    "by a function of the module": "scratch_shared.registered(PULL)"
}


@pytest.mark.parametrize("way", WAYS)
def test_one_function_that_two_files_register(way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With other arguments, under one name: refused, naming both files, as the later one took the earlier one's place
    silently. A file whose text has changed takes its own place."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "scratch_shared.py").write_text(SHARED)
    text = f"import scratch_shared\nfrom isomerge.fusion.registry import merge_method\n{WAYS[way]}\n"
    one, two = tmp_path / "scratch_one.py", tmp_path / "scratch_two.py"
    with forgotten():
        for pull in ("0.25", "0.75"):
            one.write_text(text.replace("PULL", pull))
            with importing(one):
                merged = registry.method("shared").fuse([torch.zeros(2), torch.ones(2)], {})
            assert merged.tolist() == [float(pull)] * 2
        two.write_text(text.replace("PULL", "0.5"))
        with pytest.raises(IsomergeError, match=rf"{two} and {one} both register that name"), importing(two):
            pass


def test_of_a_function_without_a_name(install) -> None:
    install("scratch_unnamed", "given", GIVEN.replace('given.__name__ = "given"', ""))
    with pytest.raises(IsomergeError, match=r"partial of module scratch_unnamed is registered and has no name"):
        registry.method("given")


@pytest.mark.parametrize(
    ("method", "code", "words"),
    [
        (
            "broken",
            "raise RuntimeError('no such thing')",
            ["scratch_bad 1.2", "broken", "RuntimeError: no such thing"],
        ),
        ("leaving", "import sys; sys.exit(0)", ["scratch_bad 1.2", "leaving", "SystemExit: 0, line 1"]),
        ("absent", "", ["scratch_bad 1.2", "registers no method of that name"]),
        ("linear", CODE, ["isomerge itself and scratch_bad 1.2"]),
    ],
)
def test_refusals_name_the_package(install, method: str, code: str, words: list[str]) -> None:
    install("scratch_bad", method, code)
    with pytest.raises(IsomergeError) as caught:
        registry.method(method)
    for word in words:
        assert word in caught.value.sentence


def test_two_packages_with_one_name(install) -> None:
    install("scratch_one", "twice")
    install("scratch_two", "twice")
    with pytest.raises(IsomergeError, match=r"scratch_one 1\.2 .* and scratch_two 1\.2"):
        registry.method("twice")


def test_methods_lists_it_and_help_does_not_load_it(install, tmp_path: Path) -> None:
    file = install("scratch_listed", "listed")
    with file.open("a") as code:
        code.write(f"\nopen({str(tmp_path / 'loaded')!r}, 'w').close()\n")
    paths = os.pathsep.join([str(tmp_path), str(Path(registry.__file__).parents[2])])
    environment = {**os.environ, "PYTHONPATH": paths}

    def run(*words: str) -> str:
        command = [sys.executable, "-m", "isomerge", *words]
        return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout

    run("--help")
    assert not (tmp_path / "loaded").exists()
    run("methods", "--json", str(tmp_path / "methods.json"))
    assert (tmp_path / "loaded").exists()
    rows = {row["method"]: row for row in json.loads((tmp_path / "methods.json").read_text())["methods"]}
    assert "scratch_listed 1.2" in rows["listed"]["source"]
    assert rows["listed"]["parameters"]["pull"]["default"] == 0.5
    assert rows["linear"]["source"] == "isomerge"


def test_merges_by_recipe_and_command_line_are_those_by_hand(install, tmp_path: Path) -> None:
    install("scratch_merged", "merged_by")
    models = [str(single("llama", tmp_path / str(seed), seed)) for seed in (1, 2)]
    recipe = tmp_path / "recipe.yml"
    entries = "".join(f"  - model: {name}\n" for name in models)
    recipe.write_text(f"merge_method: merged_by\nparameters: {{pull: 0.25}}\nalign: false\nmodels:\n{entries}")
    words = ["--method", "merged_by", "-p", "pull=0.25", "--no-align"]
    paths = os.pathsep.join([str(tmp_path), str(Path(registry.__file__).parents[2])])
    for asked, out in (([str(recipe)], "r"), ([*models, *words], "c")):
        command = [sys.executable, "-m", "isomerge", "merge", *asked, "-o", str(tmp_path / out)]
        done = subprocess.run(command, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        first, last, merged = (tensors(Path(p)) for p in (*models, str(tmp_path / out)))
        for key, value in merged.items():
            assert torch.allclose(value, first[key] + 0.25 * (last[key] - first[key]), atol=1e-6), key
        assert any(not torch.equal(merged[key], first[key]) for key in merged)


def test_merges_from_python(install, tmp_path: Path) -> None:
    install("scratch_python", "by_python")
    models = [str(single("llama", tmp_path / str(seed), seed)) for seed in (1, 2)]
    out = tmp_path / "out"
    report = isomerge.merge(models, out=out, method="by_python", parameters={"pull": 0.25}, align=False)
    assert report["method"] == "by_python"
    first, last, merged = (tensors(Path(p)) for p in (*models, out))
    for key, value in merged.items():
        assert torch.allclose(value, first[key] + 0.25 * (last[key] - first[key]), atol=1e-6), key
    assert "by_python" in (out / "README.md").read_text()


def test_the_command_line_refuses_with_code_2(install, tmp_path: Path) -> None:
    install("scratch_code", "code_two", "raise RuntimeError('no such thing')")
    models = [str(single("llama", tmp_path / str(seed), seed)) for seed in (1, 2)]
    paths = os.pathsep.join([str(tmp_path), str(Path(registry.__file__).parents[2])])
    words = [*models, "--method", "code_two", "--no-align", "-o", str(tmp_path / "out")]
    command = [sys.executable, "-m", "isomerge", "merge", *words]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True)
    assert done.returncode == 2, done.stderr
    assert "scratch_code 1.2" in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()


LIMITED = CODE.replace(
    "@elementwise_method",
    """from isomerge.fusion.method_options import SHARE, limited

@elementwise_method
@limited(pull=SHARE)""",
)


@pytest.mark.parametrize("code", [CODE, LIMITED], ids=["plain", "limited"])
def test_two_modules_that_register_one_name(install, tmp_path: Path, code: str) -> None:
    """Also where a function stands in another, of a file that both have in common."""
    for name in ("module_one", "module_two"):
        (tmp_path / f"{name}.py").write_text(code.replace("NAME", "shared_name"))
    try:
        importlib.import_module("module_one")
        with pytest.raises(IsomergeError, match="module_two and module_one both register that name"):
            importlib.import_module("module_two")
    finally:
        for name in ("module_one", "module_two"):
            sys.modules.pop(name, None)
