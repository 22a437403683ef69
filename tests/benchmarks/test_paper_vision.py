"""Parts of alignments that figures leave out: what stays is a symmetry, and the right part."""

from __future__ import annotations

import pytest
import torch
from transformers import ViTConfig, ViTForImageClassification

import isomerge
from benchmarks.paper.architectures import families, t5
from benchmarks.paper.vision import layers, matching


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """Two random ViTs of two layers, the alignment of the second onto the first, and a batch of images."""
    root, folders = tmp_path_factory.mktemp("vits"), []
    for seed in (0, 1):
        torch.manual_seed(seed)
        config = ViTConfig(
            hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24, image_size=8, patch_size=4,
            num_channels=1, initializer_range=0.3,
        )  # fmt: skip
        model = ViTForImageClassification(config)
        for name, parameter in model.named_parameters():  # gains and biases that matter
            if parameter.ndim == 1:
                torch.nn.init.normal_(parameter, 1.0 if "norm" in name and "weight" in name else 0.0, 0.2)
        model.save_pretrained(root / str(seed))
        folders.append(root / str(seed))
    whole, _ = isomerge.align(folders[1], onto=folders[0], spaces="all")
    return folders[0], folders[1], whole, torch.randn(4, 1, 8, 8)


def logits(folder, images):
    with torch.no_grad():
        return ViTForImageClassification.from_pretrained(folder).eval()(pixel_values=images).logits


@pytest.mark.parametrize("chosen", [set(), {0}, {1}, {0, 1}])
def test_layers_left_out_keep_the_function_and_only_them(pair, chosen, tmp_path):
    _, source, whole, images = pair
    some = layers.only(whole, chosen)
    isomerge.apply(some, source, out=tmp_path / "moved")
    # float32 weights of a few thousand operations
    assert torch.allclose(logits(tmp_path / "moved", images), logits(source, images), atol=1e-4)
    inside = {layers.layer(k) for k in some if matching.space(k) not in whole.spec.residual_names}
    assert inside - {None} == chosen  # what tokens trade with their places is of no layer
    streams = {k for k in whole if matching.space(k) in whole.spec.residual_names}
    assert streams
    assert streams <= set(some)


def test_all_layers_are_the_whole(pair):
    whole = pair[2]
    assert set(layers.only(whole, {0, 1})) == set(whole)


def test_parts_of_the_papers_matching_are_its_modules(pair, tmp_path):
    anchor, source, _, images = pair
    whole, _ = isomerge.align(source, onto=anchor, spaces="paper")
    ffn, attention = (matching.part(whole, matching.PARTS[n][1]) for n in ("paper-ffn", "paper-attention"))
    assert {matching.space(k) for k in ffn} == {"ff"}
    assert {matching.space(k) for k in attention} == {"qk", "ov"}
    assert set(ffn) | set(attention) == set(whole)
    apart = []
    for name, part in (("whole", whole), ("ffn", ffn), ("attention", attention)):
        isomerge.apply(part, source, out=tmp_path / name)
        assert torch.allclose(logits(tmp_path / name, images), logits(source, images), atol=1e-4)
        apart.append(isomerge.diff(anchor, tmp_path / name, spaces="none")["distance"]["before"])
    assert apart[0] < min(apart[1:])  # each part comes closer by itself, both together closest
    assert max(apart[1:]) < isomerge.diff(anchor, source, spaces="none")["distance"]["before"]


@pytest.mark.parametrize(
    ("key", "space", "layer"), [("res", "res", None), ("2:qk[13]", "qk", 13), ("n1[0]", "n1", 0), ("2:shift.kb[3]", "shift.kb", 3)]
)  # fmt: skip
def test_keys_of_elements(key, space, layer):
    assert (matching.space(key), layers.layer(key)) == (space, layer)


def test_settings_hold_no_folder_of_a_machine():
    assert "/" not in str(matching.portable(matching.MATCHINGS))


def test_the_decoder_writes_what_follows():
    text = torch.arange(200, dtype=torch.uint8)
    read, written = t5.pieces(text, torch.tensor([0, 7]))
    assert read.shape == (2, t5.READ)
    assert written.shape == (2, t5.WRITE)
    assert torch.equal(written[:, 0], read[:, -1] + 1)


@pytest.mark.parametrize("reaction", families.REACTIONS)
def test_tokens_of_reactions_are_the_whole_text(reaction):
    tokens = families.TOKEN.findall(reaction)
    assert "".join(tokens) == reaction
    assert "Cl" not in reaction or "Cl" in tokens  # one token, no carbon
