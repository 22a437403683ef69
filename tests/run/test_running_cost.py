"""What running models takes is counted: by shapes that are those of the module, and refused before anything is
computed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import transformers

import isomerge
from isomerge.errors import IsomergeError
from isomerge.models.recognised import recognise
from isomerge.observe.live.modules import load_module
from isomerge.observe.stats.taps import plan_taps
from isomerge.options import MatchingOptions
from isomerge.run.running_cost import Running, matching_memory
from isomerge.solve.match_checks import matching_of
from solve.disguises import single

pytestmark = pytest.mark.matched(
    "of layers: else strangers' streams are matched as well, and small changes not at all"
)


@pytest.mark.parametrize("name", ["llama", "gpt2", "bert", "vit", "t5-gated"])
def test_widths_are_those_of_the_module(name: str, tmp_path: Path) -> None:
    """What is read at every place, and the bytes of the weights, told without the module."""
    model = recognise(single(name, tmp_path / "a"))
    module = load_module(model)
    run = Running([model, model], matching_of(MatchingOptions()))
    read = {tap.block for tap, _ in plan_taps(model, module)}
    assert {block.key for block in run.widths} >= read
    for tap, path in plan_taps(model, module):
        place: Any = module.get_submodule(path)
        sizes = {n for x in place.parameters(recurse=False) for n in x.shape}
        widths = next(found for block, found in run.widths.items() if block.key == tap.block)
        assert set(widths) <= sizes
    places = sum(map(len, run.widths.values()))
    assert len(plan_taps(model, module)) <= places <= 1.1 * len(plan_taps(model, module)) + 2
    assert run.weights >= sum(x.nbytes for x in module.parameters())


def asked(tmp_path: Path) -> dict[str, float]:
    """The peaks of some matches of one pair."""
    models = [recognise(single("llama", tmp_path / "a"))] * 2
    data = str(tmp_path / "x.jsonl")
    ways: dict[str, dict[str, Any]] = {
        "weights": {},
        "activations": {"data": data, "functional": False},
        "few rows": {"data": data, "functional": False, "rows": 8},
        "functional": {"data": data},
        "metric": {"data": data, "functional": False, "input_metric": True},
        "search": {"data": data, "search": 3.0},
        "learned": {"learn": data, "batch_size": 512},
        "recomputed": {"learn": data, "batch_size": 512, "gradient_checkpointing": True},
    }
    return {
        name: matching_memory(models, matching_of(MatchingOptions(length=4, **{"rows": 64, **how})))[0]
        for name, how in ways.items()
    }


def test_what_takes_more_is_told_to(tmp_path: Path) -> None:
    """By weights alone nothing is run; every stage that comes on top takes more."""
    found = asked(tmp_path)
    assert found["weights"] == 0
    assert found["few rows"] < found["activations"] < found["functional"] < found["search"]
    assert found["activations"] < found["metric"]
    assert found["functional"] < found["recomputed"] < found["learned"]


@pytest.mark.parametrize(
    ("command", "how"),
    [
        ("align", {"data": "DATA"}),
        ("align", {"learn": "DATA"}),
        ("merge", {"anchor": "none", "learn": "DATA"}),
        ("merge", {"align": False, "repair": "DATA"}),
        ("merge", {"align": False, "method": "fisher", "data": "DATA"}),
    ],
)
def test_a_bound_without_room_to_run_is_refused(
    command: str, how: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before a module is loaded: a bound that the weights alone keep does not do for models that are run."""
    model = single("llama", tmp_path / "a")
    (tmp_path / "x.jsonl").write_text('{"input_ids": [1, 2, 3, 4]}\n' * 4)

    def load(*_: object, **__: object) -> None:
        raise AssertionError("this was to be refused before")

    monkeypatch.setattr(transformers.PreTrainedModel, "from_pretrained", load)
    given = {name: tmp_path / "x.jsonl" if value == "DATA" else value for name, value in how.items()}

    def run(**more: Any) -> None:
        if command == "align":
            isomerge.align(model, onto=model, out=tmp_path / "out", max_memory="0.4GB", **more)
        else:
            isomerge.merge([model, model], out=tmp_path / "out", max_memory="0.4GB", overwrite=True, **more)

    with pytest.raises(
        IsomergeError, match=r"max_memory=0.4GB\) is too little: running the models needs about"
    ) as told:
        run(**given)
    assert re.search("batch_size", str(told.value))
    assert not (tmp_path / "out").exists()
    run(**{name: value for name, value in given.items() if name == "align"})
    assert (tmp_path / "out").exists()
