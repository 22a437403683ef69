"""Arguments as Python's users write them: numpy's numbers, torch's dtypes, paths, and what is none of it."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

import isomerge
from isomerge.errors import IsomergeError
from isomerge.merging.merge_request import request_of_models
from isomerge.options.option import Request, argument
from isomerge.run.arguments import checked
from solve.disguises import single
from toys import tensors


def test_numbers_of_numpy_and_torch() -> None:
    """One value, or one per model."""
    for given, own, common in (
        (numpy.array([0.5, 0.25]), ({"density": 0.5}, {"density": 0.25}), {}),
        (torch.tensor(0.5), ({}, {}), {"density": 0.5}),
        (numpy.float32(0.5), ({}, {}), {"density": 0.5}),
    ):
        job = request_of_models(["a", "b"], method="ties", base_model="c", parameters={"density": given})
        assert job.fusion.parameters.slices[0].sources == own
        assert job.fusion.parameters.common == common


def test_one_folder_under_two_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A base that is listed is the base, however its folder is written."""
    monkeypatch.chdir(tmp_path)
    for name in "ab":
        (tmp_path / name).mkdir()
    for base in ("a/", "./a", str(tmp_path / "a"), Path("a"), os.path.join("b", "..", "a")):
        job = request_of_models(["a", "b"], method="slerp", base_model=base, parameters={"t": 0.5})
        assert len(job.models) == 2
        assert job.models[1] == "b"


def test_one_text_is_a_list_of_one() -> None:
    """Letters are no models."""
    assert request_of_models(["a", "b"], method="ties", base_model="c", source_bases="old").source_bases == (
        "old",
        "old",
    )
    with pytest.raises(IsomergeError, match="got 1"):
        request_of_models(["a", "b"], method="regmean", stats="file")


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "spaces": ({"spaces": ["qk", "ov"]}, r"^spaces=\['qk', 'ov'\]: give a text or None, such as 'qk,ov'$"),
    "layers": ({"layers": 3}, "^layers=3: give a text or None$"),
    "method": ({"method": None}, "^method=None: give a text$"),
    "out": ({"out": 3}, "^out=3: give a text, a path or None$"),
    "models": ({"models": {"a", "b"}}, "^models={.*}: give a list, a text or a path$"),
    "seed": ({"seed": "3"}, "^seed='3': give a whole number, such as 3$"),
    "no seed": ({"seed": None}, "^seed=None: give a whole number$"),
    "half a seed": ({"seed": 1.5}, r"^seed=1\.5: give a whole number$"),
    "truth": ({"align": "no"}, "^align='no': give True, False or 'auto'"),
    "one": ({"untie": 1}, "^untie=1: give True or False$"),
    "a number of jobs": ({"jobs": True}, "^jobs=True: give a whole number or None$"),
    "weights": ({"weights": 1}, r"^weights=1: give a list of numbers or None, such as \[1\]$"),
    "texts of weights": ({"weights": "1,2"}, "^weights='1,2': give a list of numbers or None$"),
    "named weights": ({"weights": {"a": 1}}, "^weights={'a': 1}: give a list of numbers or None$"),
    "parameters": ({"parameters": [1]}, r"^parameters=\[1\]: give a dict whose keys are texts or None$"),
    "data": (
        {"data": 3},
        r"^merge\(\.\.\., data=\.\.\.\) is a int: give a path, examples, batches, a DataLoader, or a function that gives them",
    ),
    "observer": ({"observer": 3}, "^observer=3: give a function$"),
    "rows of weights": (
        {"weights": numpy.eye(2)},
        r"^weights=array\(\[\[1\., 0\.\], \[0\., 1\.\]\]\): give a list of numbers",
    ),
    "no shards": ({"out_shard_size": 0}, "^0 is not a size"),
    "long": ({"heads": ["é" * 90]}, "^heads=.{80}…: give a text, such as"),
    "misspelt": ({"wieghts": [1]}, "^wieghts: merge has no such argument; did you mean weights$"),
    "its beginning": ({"base": "a"}, "^base: merge has no such argument; did you mean base_model$"),
    "a method's parameter": (
        {"density": 0.5},
        "^density: merge has no such argument; it is a parameter of merge methods: write parameters=",
    ),
    "misspelt in matching": ({"stepps": 1}, "^stepps: merge has no such argument; did you mean steps$"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_kinds(case: str, tmp_path: Path) -> None:
    """One sentence."""
    models = [single("gpt2", tmp_path / name, seed) for seed, name in enumerate("ab")]
    options, words = WRONG[case]
    with pytest.raises(IsomergeError, match=words):
        isomerge.merge(**{"models": models, "out": tmp_path / "out", **options})
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", sorted({*isomerge.__all__} - {"Alignment", "IsomergeError"}))
def test_every_function_looks_at_its_arguments(name: str) -> None:
    """An object of no kind at all is refused by name, for everything that is annotated as more than anything."""
    function = getattr(isomerge, name)
    parameters = inspect.signature(function).parameters
    needed = {n: "x" for n, p in parameters.items() if p.default is p.empty and p.kind is not p.VAR_KEYWORD}
    kinds = {n: p.annotation for n, p in parameters.items() if p.annotation != "Any"}
    assert kinds
    for wrong in kinds:
        with pytest.raises(IsomergeError, match=f"^{wrong}=<object object at .*: give "):
            function(**{**needed, wrong: object()})


def test_kinds_are_made_pythons_own() -> None:
    """Numbers and truths of numpy and torch, and whatever can be gone through; one text is a list of one."""

    class Kinds(Request):
        a: int = argument("")
        b: float = argument("")
        c: bool = argument("")
        d: Sequence[float] = argument("")
        e: Sequence[str | Path] = argument("", default=())
        f: str | Sequence[str] = argument("", default="x")

    @checked(Kinds)
    def function(asked: Kinds) -> list[Any]:
        return list(asked.given().values())

    loose: Any = function
    made = loose(numpy.int64(3), torch.tensor(0.5), numpy.True_, numpy.array([1, 2]), "one", ("p", "q"))
    assert made == [3, 0.5, True, [1, 2], ["one"], ("p", "q")]
    assert [type(x) for x in made] == [int, float, bool, list, list, tuple]
    assert loose(1, 2, c=False, d=(x for x in (1.5,))) == [1, 2, False, [1.5], (), "x"]
    assert loose(1, 2, torch.tensor(True), [], f=(x for x in "pq"))[2:] == [True, [], (), ["p", "q"]]
    for wrong in (
        {"b": numpy.array([1.0, 2.0])}, {"d": numpy.array(1.0)}, {"e": b"one"}, {"a": 1.0}, {"a": torch.tensor(True)},
        {"b": numpy.True_}, {"c": torch.tensor([True])}, {"d": (x for x in ("a", 1.5))}, {"d": {1.0}},
    ):  # fmt: skip
        with pytest.raises(IsomergeError, match=f"^{next(iter(wrong))}="):
            loose(**{"a": 1, "b": 1, "c": True, "d": [1], **wrong})


@pytest.mark.parametrize("dtype", [torch.float16, numpy.float16, numpy.dtype("float16")])
def test_dtypes_of_torch_and_numpy(dtype: Any, tmp_path: Path) -> None:
    """As their names."""
    models = [single("gpt2", tmp_path / name, seed) for seed, name in enumerate("ab")]
    isomerge.merge(models, out=tmp_path / "out", align=False, dtype=dtype)
    assert {t.dtype for t in tensors(tmp_path / "out").values()} == {torch.float16}


@pytest.mark.parametrize("place", [lambda folder: folder, lambda folder: folder / "no" / "file.safetensors"])
def test_alignments_that_cannot_be_saved(place: Callable[[Path], Path], tmp_path: Path) -> None:
    """A folder, or none."""
    models = [single("gpt2", tmp_path / name, seed) for seed, name in enumerate("ab")]
    alignment, _ = isomerge.align(models[0], onto=models[1], spaces="ff")
    with pytest.raises(IsomergeError, match=r"is a folder: name a file|no such folder"):
        alignment.save(place(tmp_path))


CALLS: dict[str, tuple[Callable[[], Any], str]] = {
    "no folder": (lambda: isomerge.extract_lora("a", "b"), r"^extract_lora needs out: call it as isomerge\.extract_lora\(finetuned, base, out=\.\.\.\)$"),
    "models one by one": (lambda: isomerge.merge("a", "b", out="c"), r"^merge takes 1 argument .*put the models into one list$"),
    "two for a fingerprint": (lambda: isomerge.fingerprint("a", "b"), r"^fingerprint takes 1 .*isomerge\.similarity\(ONE, TWO\)"),
    "nothing": (lambda: isomerge.align(), r"^align needs source and onto: call it as isomerge\.align\(source, onto=\.\.\.\)$"),
    "without a name": (lambda: isomerge.align("a", "b"), r"^align takes 1 argument without a name \(source\), and 2 are given"),
    "twice": (lambda: isomerge.inspect("a", model="b"), r"^inspect has model twice: call it as isomerge\.inspect\(model\)$"),
    "a list of two": (lambda: isomerge.verify(["a", "b"]), r"^verify needs two: call it as isomerge\.verify\(one, two\)$"),
    "no such argument": (lambda: isomerge.diff("a", "b", alinged=1), r"^alinged: diff has no such argument; "),
    "data as a dict": (
        lambda: isomerge.report("a", data={"input_ids": torch.ones(2, 3)}),
        r"^data=\{.*: give a text, a path, Examples or None; isomerge\.observe\.data\.examples\.Examples",
    ),
    "a loader": (
        lambda: isomerge.report("a", data=torch.utils.data.DataLoader([1, 2])),
        r"^data=<torch.*: give a text, a path, Examples or None; isomerge\.observe\.data\.examples\.Examples",
    ),
    "a number for a model": (lambda: isomerge.inspect(3), "^int is no model: give a folder, a hub id, or a live module$"),
}  # fmt: skip


@pytest.mark.parametrize("case", CALLS)
def test_calls_that_python_would_refuse(case: str) -> None:
    """One sentence that names the function and says how it is called, in place of a TypeError."""
    call, words = CALLS[case]
    with pytest.raises(IsomergeError, match=words) as told:
        call()
    assert len(str(told.value).splitlines()) == 1


@pytest.mark.parametrize(
    "name", sorted({*isomerge.__all__} - {"Alignment", "IsomergeError", "methods", "architectures"})
)
def test_no_call_ends_in_a_type_error(name: str) -> None:
    """Too few, too many, and unknown ones, of every function."""
    function: Any = getattr(isomerge, name)
    for args, named in (((), {}), (("x",) * 9, {}), (("x",), {"zzz": 1})):
        with pytest.raises(IsomergeError, match=name):
            function(*args, **named)
