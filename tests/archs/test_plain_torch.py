"""Models of plain torch: a text of the user's own, an empty config.json, and the law through disk as for every
other."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import isomerge
from depth import more
from isomerge.archs import spec_for
from isomerge.commands.opening import destination
from isomerge.errors import IsomergeError
from isomerge.evidence.law import random_alignment
from isomerge.models.recognised import recognise
from isomerge.options import OutputOptions
from isomerge.run.alignment_runs import run_apply
from plain_models import TorchTransformer, load_plain, plain_outputs
from toys import config_of, randomise, relative, save_toy

TEXT = Path(__file__).parents[2] / "docs/examples/torch_transformer.spec"


def saved(folder: Path, seed: int = 0) -> Path:
    """A randomised `torch.nn.Transformer` between embeddings and a head, float64."""
    model = TorchTransformer().double()
    randomise(model, seed)
    model.save_pretrained(folder)
    return folder


def outputs(folder: Path) -> torch.Tensor:
    """What a folder's model says on fixed inputs."""
    model = load_plain(folder)
    assert model is not None
    return plain_outputs(model)


INPUTS = {
    "input_ids": torch.arange(1, 34).reshape(3, 11),
    "decoder_input_ids": torch.arange(21).reshape(3, 7) * 3 % 67,
}
"""What the transformer is run on where a text is proven."""


@pytest.fixture(scope="module", autouse=True)
def proven() -> None:
    """The text is proven once, by a module of one's own: transformers builds none of this class."""
    report = isomerge.prove(TorchTransformer(), spec=TEXT, inputs=INPUTS)
    assert report["proven"]
    assert report["mutants"]["rejected"] > 40


def disguised(folder: Path, out: Path, names: list[str], text: Path = TEXT, seed: int = 1) -> float:
    """Write the model moved by random elements of some spaces; by how much the weights moved."""
    model = recognise(folder, spec_file=text)
    g = random_alignment(model.spec, model.blocks, torch.Generator().manual_seed(seed), names)
    with destination(out, OutputOptions(overwrite=True), [model]) as output:
        return run_apply(g, model, output).distance.total.after


def test_every_space_alone(tmp_path: Path, subtests: pytest.Subtests) -> None:
    """Each space and each shift moves weights and leaves outputs."""
    a = saved(tmp_path / "a")
    spec = recognise(a, spec_file=TEXT).spec
    for name in [*spec.spaces, *(shift.name for shift in spec.shifts)]:
        with subtests.test(space=name):
            assert disguised(a, tmp_path / "b", [name]) > 0.1
            assert relative(outputs(tmp_path / "b"), outputs(a)) < 1e-9


MUTANTS = [
    ("[h qk | h qk' | h ov]", "(h [qk | qk' | ov])", "h"),
    ("[xh xqk | xh xqk' | xh xov]", "[xh xqk | xh xov | xh xqk']", "xqk"),
    ("PositiveScale[l, dff]", "Scale[l, dff]", "du"),
    ("norm3.bias ", "norm4.bias ", ""),
]


@pytest.mark.parametrize(("old", "new", "space"), MUTANTS)
def test_wrong_texts_are_refuted(old: str, new: str, space: str, tmp_path: Path) -> None:
    """By the law, or by a tensor that no line describes."""
    a, text = saved(tmp_path / "a"), TEXT.read_text()
    assert old in text
    wrong = tmp_path / "wrong.spec"
    wrong.write_text(text.replace(old, new))
    if not space:
        with pytest.raises(IsomergeError, match=r"decoder.layers.0.norm3.bias is not described by any line"):
            recognise(a, spec_file=wrong)
        return
    assert disguised(a, tmp_path / "b", [space], wrong) > 0.1
    assert relative(outputs(tmp_path / "b"), outputs(a)) > 1e-3


def test_a_twin_comes_back_and_merges(tmp_path: Path) -> None:
    """align undoes a disguise, verify calls the twins the same, and their merge is the model."""
    a = saved(tmp_path / "a")
    spec = recognise(a, spec_file=TEXT).spec
    local = [*(n for n in spec.spaces if n not in spec.residual_names), *(shift.name for shift in spec.shifts)]
    disguised(a, tmp_path / "twin", local)
    _, report = isomerge.align(tmp_path / "twin", onto=a, out=tmp_path / "back", spec=TEXT)
    assert report["distance"]["after"] <= 1e-4 * report["distance"]["before"]
    assert isomerge.verify(a, tmp_path / "twin", spec=TEXT)["same"]
    isomerge.merge([a, tmp_path / "twin"], out=tmp_path / "merged", spec=TEXT)
    assert relative(outputs(tmp_path / "merged"), outputs(a)) < 1e-5


def test_without_a_config(tmp_path: Path) -> None:
    """The message says what to write, and that an empty object will do."""
    a = saved(tmp_path / "a")
    (a / "config.json").unlink()
    with pytest.raises(IsomergeError, match=r"config.json.*a model of plain torch needs no more than \{\} in it"):
        recognise(a, spec_file=TEXT)


@pytest.mark.parametrize("kind", ["timm_vit-scaled", *more("timm_vit")])
def test_timm_is_told_by_its_tensors(kind: str, tmp_path: Path) -> None:
    """No model_type: recognised all the same, merged, and the config of the output is the one that timm knows."""
    a, b = (save_toy(kind, tmp_path / tag, seed=seed) for tag, seed in (("a", 0), ("b", 5)))
    spec = recognise(a).spec
    assert spec.model_type == "timm_vit"
    assert ("s1" in spec.spaces) == (kind == "timm_vit-scaled")
    assert spec.sizes["ff"] == 40  # by its shape: no config says so
    isomerge.merge([a, b], out=tmp_path / "merged")
    assert config_of(tmp_path / "merged") == config_of(a)
    assert relative(outputs(tmp_path / "merged"), outputs(a)) > 0.1


@pytest.mark.parametrize(
    ("changes", "heads"),
    [
        ({"architecture": "vit_base_patch16_224", "model_args": {}}, 12),
        ({"architecture": "vit_so400m_patch14_siglip_384", "model_args": {}}, 16),
        ({"architecture": "vit_base_patch16_224"}, 6),
    ],
)
def test_heads_of_timm(changes: dict[str, object], heads: int, tmp_path: Path) -> None:
    """By the name of the architecture, unless model_args tells them."""
    model = recognise(save_toy("timm_vit", tmp_path / "a"))
    shapes = {name: tuple(info.shape) for name, info in model.checkpoint.tensors.items()}
    assert spec_for({**model.config, **changes}, shapes=shapes).sizes["h"] == heads


def test_heads_that_no_name_tells(tmp_path: Path) -> None:
    """A config that says nothing of heads is refused in a sentence."""
    config = {
        **recognise(save_toy("timm_vit", tmp_path / "a")).config,
        "model_args": {},
        "model_type": "timm_wrapper",
    }
    with pytest.raises(IsomergeError, match=r"number of heads: add \"model_args\""):
        spec_for({**config, "architecture": "vit_medium_patch16_224"})
