"""Checkpoints as modules, and the parameters' canonical names."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from diffusion_models import DIFFUSION
from families import CONVERTED, timm
from isomerge.checkpoint.in_memory import in_memory
from isomerge.checkpoint.opening import open_checkpoint
from isomerge.checkpoint.reader import Checkpoint
from isomerge.errors import IsomergeError
from isomerge.models.layers import stack_layers
from isomerge.models.recognised import recognise
from isomerge.observe.live.modules import load_module, on_disk, parameter_names
from toys import TRIED, inputs
from unet_models import UNETS

ODD = {
    "esm-rotary",
    "qwen3_5_text-ahead",
    "exaone4_5-ahead",
    "qwen3_vl_moe-published",
    "granite_speech",
    "luke-inside",
    "qwen2_5_omni",
}
"""Of these it stores a buffer under the name of a pattern, leaves out tensors of the file, has rows where the file
has columns, or a bias under the other of two names, or loads none without a file of voices."""


@pytest.mark.parametrize(
    "name", [n for n in TRIED if n not in {*CONVERTED, *ODD, *DIFFUSION, *UNETS, *timm.MORE_TOYS}]
)
def test_every_weight_has_its_parameter(name: str, toy: Callable) -> None:
    """Canonical names of the checkpoint are those of the module, and the weights are equal under them."""
    made = toy(name)
    module = load_module(recognise(made.folder))
    names = parameter_names(module, made.spec)
    buffers = {made.spec.match(n).canonical for n in dict(module.named_buffers()) if made.stored.keys() & {n}}
    own = dict(module.named_parameters())
    assert set(names.values()) == own.keys()
    computed = {c for c in names if c not in made.names and "embed_positions" in c}  # sinusoids that are not stored
    names = {c: n for c, n in names.items() if c not in computed}
    assert names.keys() == made.names.keys() - buffers
    for canonical, parameter in names.items():
        assert torch.equal(own[parameter], made.stored[made.names[canonical]].float()), canonical
    assert not module.training
    assert {p.dtype for p in own.values()} == {torch.float32}


def test_weights_can_be_put_in(toy: Callable) -> None:
    """Another model's weights by canonical names make the module the other model."""
    one, two = toy("t5-gated"), toy("t5-gated", 5)
    module, other = (load_module(made.folder, torch.float64) for made in (one, two))
    names, own = parameter_names(module, one.spec), dict(module.named_parameters())
    with torch.no_grad():
        for canonical, parameter in names.items():
            own[parameter].copy_(two.stored[two.names[canonical]])
        given = inputs(module.config)
        assert torch.equal(module(**given).logits, other(**given).logits)


@pytest.mark.parametrize("name", [n for n in TRIED if n in CONVERTED])
def test_converted(name: str, toy: Callable) -> None:
    """Experts, or halves of a gate, that are one tensor here and many there: not by name alone (see
    `live_places`)."""
    made = toy(name)
    with pytest.raises(IsomergeError, match="does not describe"):
        parameter_names(load_module(made.folder), made.spec)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("bert", "BertForMaskedLM"), ("bert-relu", "BertForSequenceClassification"), ("vit", "ViTForImageClassification"),
        ("llama", "LlamaForCausalLM"), ("roberta", "RobertaForMaskedLM"),
    ],
)  # fmt: skip
def test_without_architectures(name: str, kind: str, toy: Callable, tmp_path: Path) -> None:
    """The class is told by the head that is stored."""
    folder = Path(shutil.copytree(toy(name).folder, tmp_path / "m"))
    config = json.loads((folder / "config.json").read_text())
    del config["architectures"]
    (folder / "config.json").write_text(json.dumps(config))
    assert type(load_module(recognise(folder))).__name__ == kind
    assert type(load_module(folder)).__name__ == kind


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"architectures": ["BertForQuestionAnswering"]}, ["qa_outputs", "does not have"]),
        ({"architectures": ["NoSuchModel"]}, ["NoSuchModel", "config.json"]),
        ({"architectures": ["torch"]}, ["torch", "config.json"]),
        ({"hidden_act": "nothing"}, ["cannot load"]),
    ],
)
def test_refusals(change: dict, words: list[str], toy: Callable, tmp_path: Path) -> None:
    """One sentence with the folder; nothing is drawn at random."""
    folder = Path(shutil.copytree(toy("bert").folder, tmp_path / "m"))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | change))
    with pytest.raises(IsomergeError) as caught:
        load_module(folder)
    assert [word for word in [str(folder), *words] if word not in str(caught.value)] == []


def test_lost_weights(toy: Callable, tmp_path: Path) -> None:
    """Missing tensors are named, not filled."""
    folder = Path(shutil.copytree(toy("vit").folder, tmp_path / "m"))
    found = load_file(folder / "model.safetensors")
    found.pop("classifier.bias")
    save_file(found, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(IsomergeError, match=r"classifier\.bias"):
        load_module(folder)
    with pytest.raises(IsomergeError, match="--device nowhere"):
        load_module(folder, device="nowhere")


def test_transformers_talks_as_before(toy: Callable) -> None:
    """The verbosity of transformers is what it was."""
    from transformers.utils import logging

    before = logging.get_verbosity()
    load_module(toy("vit").folder)
    assert logging.get_verbosity() == before


def views_of(folder: Path, tmp_path: Path) -> dict[str, tuple[Checkpoint, int]]:
    """Views of a toy of three layers, and how many layers each has; also of one whose weights are a pickle."""
    whole = open_checkpoint(folder)
    pickled = Path(shutil.copytree(folder, tmp_path / "pickled", ignore=shutil.ignore_patterns("*.safetensors")))
    torch.save(load_file(folder / "model.safetensors"), pickled / "pytorch_model.bin")
    old = open_checkpoint(pickled, allow_pickle=True)
    return {
        "first layers": (stack_layers([(whole, range(2))]), 2),
        "last layers": (stack_layers([(whole, range(1, 3))]), 2),
        "all layers": (stack_layers([(whole, range(3))]), 3),
        "a pickle": (old, 3),
        "layers of a pickle": (stack_layers([(old, range(1, 3))]), 2),
        "in memory": (in_memory(load_file(folder / "model.safetensors"), whole.config), 3),
    }


def test_views_are_run_as_they_are(toy: Callable, tmp_path: Path) -> None:
    """Also where a view has no tensor that is not in its folder: then the folder has more, or another config."""
    folder = toy("llama").folder
    for what, (view, depth) in views_of(folder, tmp_path).items():
        module = load_module(recognise(view))
        assert len(module.model.layers) == depth, what
        for name, parameter in module.named_parameters():
            assert torch.equal(parameter, view.read(name).float()), (what, name)
    whole = open_checkpoint(folder)
    for same in (whole, whole.derive({}, origin="a chat template", companions={"chat_template.jinja": b""})):
        with on_disk(same) as here:
            assert here == whole.folder
