"""Modules of one's own: matched, learned, merged, verified and measured by their own forward, through Python."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import isomerge
from isomerge.errors import IsomergeError
from plain_models import TorchTransformer
from run.own_modules import SPEC, SmallReader, batches, disguised, reader, spec_file
from toys import randomise

TRANSFORMER = Path(__file__).parents[2] / "docs/examples/torch_transformer.spec"


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The text, proven by the module itself."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ISOMERGE_CACHE", str(tmp_path_factory.mktemp("cache")))
        path = spec_file(tmp_path_factory.mktemp("spec"))
        with pytest.raises(IsomergeError, match=r"not proven for SmallReader: .* isomerge.prove\(module, spec="):
            isomerge.align(reader(1), onto=reader(0), spec=path)
        assert isomerge.prove(reader(0), spec=path, inputs=batches()[0][0])["proven"]
        yield path


def gap(one: nn.Module, two: nn.Module) -> float:
    """The largest difference of two modules' weights."""
    pairs = zip(one.parameters(), two.parameters(), strict=True)
    return max(float((p - q).detach().abs().max()) for p, q in pairs)


@pytest.mark.parametrize("data", [None, "batches"], ids=["weights", "activations"])
def test_a_planted_symmetry_comes_back(data: str | None, spec: Path) -> None:
    """By weights and by activations; the moved module is of its class, and what went in stays as it was."""
    a = reader(0)
    twin = disguised(a, 3)
    before = copy.deepcopy(twin)
    given = {} if data is None else {"data": batches()}
    alignment, report = isomerge.align(twin, onto=a, spec=spec, **given)
    moved = isomerge.apply(alignment, twin, spec=spec)
    assert type(moved) is SmallReader
    assert report["distance"]["before"] > 10
    assert gap(moved, a) < 1e-4 < 0.1 < gap(twin, a)
    assert gap(twin, before) == 0
    assert ("functional" in str(report["streams"])) == (data is not None) or data is None


def test_verified(spec: Path) -> None:
    """The disguise is the same function, and a near-twin is another; outputs of one's own are not drawn for."""
    a, near = reader(0), disguised(reader(0), 3)
    assert isomerge.verify(a, disguised(a, 3), spec=spec)["same"] is True
    near.blocks[1].up.weight.data[0, 0] += 0.01  # pyright: ignore
    assert isomerge.verify(a, near, spec=spec)["same"] is False
    with pytest.raises(IsomergeError, match="draws inputs for classes of transformers"):
        isomerge.verify(a, near, spec=spec, run=True)


def test_the_spec_as_a_text(spec: Path) -> None:
    """As a path; it is kept under one name."""
    found = [isomerge.inspect(reader(0), spec=given) for given in (SPEC, spec)]
    assert found[0]["spaces"] == found[1]["spaces"]
    assert isomerge.verify(reader(0), disguised(reader(0), 3), spec=spec.read_text())["same"] is True


@pytest.mark.parametrize("method", ["linear", "fisher", "regmean", "slerp", "ties", "greedy_soup"])
def test_merged_live(method: str, spec: Path) -> None:
    """By every kind of method: a module of the class comes back, of the twin and the model the model itself."""
    a, twin = reader(0), disguised(reader(0), 3)
    more: dict[str, Any] = {
        "ties": {"base_model": a},
        "slerp": {"base_model": a, "parameters": {"t": 0.5}},
    }.get(method, {})
    models = [twin] if more else [a, twin]
    merged = isomerge.merge(models, method=method, spec=spec, data=batches(), learn_effort="none", **more)
    assert type(merged) is SmallReader
    assert gap(merged, a) < 1e-3
    assert merged.isomerge_report["measured"]["merged"]["loss"] > 0
    assert not hasattr(merged, "isomerge_own")


def test_learned(spec: Path) -> None:
    """The match of models trained apart is learned through the module's forward; by labels with a loss of one's own."""
    a, b = reader(0), reader(1)
    called: list[Any] = []

    def loss(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        called.append((outputs.shape, labels.dtype))
        return nn.functional.cross_entropy(outputs, labels, label_smoothing=0.1)

    merged = isomerge.merge([a, b], spec=spec, data=batches(), steps=2)
    assert merged.isomerge_report["streams"][0]["learned"]["steps"] == 2
    merged = isomerge.merge([a, b], spec=spec, learn=batches(), steps=2, learn_target="labels", loss=loss)
    assert merged.isomerge_report["streams"][0]["learned"]["steps"] == 2
    assert merged.isomerge_report["measured"]["unit"] == "units of loss="
    assert called
    assert {dtype for _, dtype in called} == {torch.int64}


FORMS: dict[str, Callable[[], Any]] = {
    "pairs": batches,
    "loader": lambda: DataLoader(TensorDataset(*map(torch.cat, zip(*batches(), strict=True))), batch_size=5),
    "dicts": lambda: [{"tokens": x, "labels": y} for x, y in batches()],
    "other names": lambda: [{"whatever": x, "labels": y} for x, y in batches()],
    "function": lambda: batches,
}


@pytest.mark.parametrize("gives", ["tensor", "tuple", "dict"])
@pytest.mark.parametrize("form", FORMS)
def test_losses_are_the_modules_own(form: str, gives: str, spec: Path) -> None:
    """Whatever its forward gives, and in whatever form data come; the barrier's ends are the models."""
    a, b = reader(0, gives), reader(1, gives)
    tokens, labels = map(torch.cat, zip(*batches(), strict=True))
    with torch.no_grad():
        wanted = [float(nn.functional.cross_entropy(reader(k)(tokens), labels)) for k in (0, 1)]
    found = isomerge.evaluate([a, b], data=FORMS[form](), spec=spec)["models"]
    assert [row["loss"] for row in found] == pytest.approx(wanted, rel=1e-5)
    if form == "pairs":
        line = isomerge.barrier(a, disguised(a, 3), data=batches(), spec=spec, points=3)["lines"][-1]
        assert line["losses"] == pytest.approx([wanted[0]] * 3, rel=1e-3)


def test_values(spec: Path) -> None:
    """Labels of floating point are values, unless a loss says otherwise."""
    tokens = batches()[0][0]
    data = [(tokens, torch.randn(8, 5, generator=torch.Generator().manual_seed(1)))]
    squared = isomerge.evaluate([reader(0)], data=data, spec=spec)
    own = isomerge.evaluate([reader(0)], data=data, spec=spec, loss=nn.functional.l1_loss)
    with torch.no_grad():
        outputs = reader(0)(tokens)
    assert squared["unit"].startswith("squared units")
    assert squared["models"][0]["loss"] == pytest.approx(float((outputs - data[0][1]).square().mean()), rel=1e-5)
    assert own["models"][0]["loss"] == pytest.approx(float((outputs - data[0][1]).abs().mean()), rel=1e-5)


def test_torchs_own_transformer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two inputs, fused projections; ``save_pretrained`` is hidden, as a module of plain torch has none."""
    monkeypatch.setenv("ISOMERGE_CACHE", str(tmp_path))
    monkeypatch.delattr("plain_models.PlainModel.save_pretrained")
    a = TorchTransformer().double()
    randomise(a, 0)
    b = copy.deepcopy(a)
    order = torch.randperm(40, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        layer = b.transformer.encoder.layers[0]
        for part in (layer.linear1.weight, layer.linear1.bias):  # pyright: ignore
            part.copy_(part[order])
        layer.linear2.weight.copy_(layer.linear2.weight[:, order])  # pyright: ignore
    data = [(torch.arange(1, 34).reshape(3, 11), torch.arange(21).reshape(3, 7) * 3 % 67)]
    assert isomerge.prove(a, spec=TRANSFORMER, inputs=data[0])["proven"]
    merged = isomerge.merge([a, b], spec=TRANSFORMER, data=data, align=True)
    assert type(merged) is TorchTransformer
    assert next(merged.parameters()).dtype == torch.float64
    assert gap(merged, a) < 1e-6 < gap(b, a)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda s: isomerge.evaluate([reader(0)], data=[(1, 2)], spec=s), "batch 0 is a tuple: give tensors"),
        (lambda s: isomerge.evaluate([reader(0)], data=batches()[0][:1] * 3, spec=s), "no labels"),
        (
            lambda s: isomerge.evaluate([reader(0)], data=[batches()[0] * 2], spec=s),
            "batch 0 has 4 tensors, and forward of SmallReader takes tokens",
        ),
        (
            lambda s: isomerge.evaluate([reader(0)], data=batches(), spec=s, loss=lambda x, y: x),
            "loss= gives no single number",
        ),
        (
            lambda s: isomerge.evaluate([reader(0)], data=batches(), spec=s, loss=lambda x: x),
            r"loss= does not run on outputs \[32, 5\]",
        ),
        (lambda s: isomerge.evaluate([reader(0, "far")], data=batches(), spec=s), "gives a loss of .* give loss="),
        (
            lambda s: isomerge.align(
                reader(1, "far"), onto=reader(0, "far"), learn=batches(), learn_target="labels", spec=s
            ),
            "gives a loss of .* give loss=",
        ),
        (lambda s: isomerge.merge(["a", "b"], loss=len), "is for modules of one's own"),
        (lambda s: isomerge.inspect(reader(0)), "SmallReader: .*no spec"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_refused(call: Callable[[Path], Any], words: str, spec: Path) -> None:
    """In one sentence that names the argument."""
    with pytest.raises(IsomergeError, match=words):
        call(spec)


def test_written_and_frozen(spec: Path, tmp_path: Path) -> None:
    """A folder is written as of any model; what was frozen, and training, stay as the first module has them."""
    a, b = reader(0), disguised(reader(0), 3)
    a.table.weight.requires_grad_(False)
    a.train()
    isomerge.merge([a, b], out=tmp_path / "out", spec=spec)
    merged = isomerge.merge([a, b], spec=spec)
    assert merged.training
    assert not merged.table.weight.requires_grad
    assert merged.answer.weight.requires_grad
    assert isomerge.verify(tmp_path / "out", merged, spec=spec)["same"] is True
    rows = isomerge.evaluate([merged, tmp_path / "out"], data=batches(), spec=spec)["models"]
    assert rows[0]["loss"] == pytest.approx(rows[1]["loss"], rel=1e-6)


def test_activations_in_the_canonical_frame(spec: Path, tmp_path: Path) -> None:
    """A module's own forward gives them; disguises have equal ones."""
    found = []
    for number, module in enumerate((reader(0), disguised(reader(0), 3))):
        file = tmp_path / f"{number}.safetensors"
        isomerge.canon(module, spec=spec, activations=file, data=[x for x, _ in batches()])
        found.append(load_file(file))
    assert found[0].keys() == found[1].keys()
    assert all(torch.allclose(x, found[1][name], atol=1e-3) for name, x in found[0].items())
    assert found[0]
