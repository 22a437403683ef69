"""The paper's benchmarks of ViTs on tiny ones: parts of alignments are symmetries, and every kind of cell is measured."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch
from safetensors.torch import save_file
from transformers import ViTConfig, ViTForImageClassification

import isomerge
from benchmarks import harness
from benchmarks.paper import others, trained, vits


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two random ViTs of two layers as ``vit-fashion/seed-N``, and images with labels."""
    root = tmp_path_factory.mktemp("barrier")
    for seed in (0, 1):
        torch.manual_seed(seed)
        config = ViTConfig(
            hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24, image_size=8, patch_size=4,
            num_channels=1, initializer_range=0.3, id2label={k: str(k) for k in range(3)},
        )  # fmt: skip
        model = ViTForImageClassification(config)
        for name, parameter in model.named_parameters():  # gains and biases that matter
            if parameter.ndim == 1:
                torch.nn.init.normal_(parameter, 1.0 if "norm" in name and "weight" in name else 0.0, 0.2)
        model.save_pretrained(root / "vit-fashion" / f"seed-{seed}")
    (root / "fashion").mkdir()
    for name in ("train", "test"):
        images = {"pixel_values": torch.randn(12, 1, 8, 8), "labels": torch.arange(12) % 3}
        save_file(images, root / "fashion" / f"{name}.safetensors")
    return root


@pytest.fixture(scope="module")
def pair(folder):
    """The anchor, the source, and the alignment of the source in all spaces."""
    anchor, source = (folder / "vit-fashion" / f"seed-{seed}" for seed in (0, 1))
    return anchor, source, isomerge.align(source, onto=anchor, spaces="all")[0]


@pytest.fixture
def tiny(folder, monkeypatch):
    """The benchmarks with these models and images, and with results beside them: what one test matched is there."""
    train = str(folder / "fashion" / "train.safetensors")
    monkeypatch.setattr(harness, "RESULTS", folder / "results")
    for name, place in (("BARRIER", folder), ("MADE", folder / "made"), ("TRAIN", train), ("TEST", train)):
        monkeypatch.setattr(vits, name, place)
    for table in (vits.MATCHINGS, vits.ROWS):
        for name, way in table.items():
            small = {key: train for key in ("data", "learn", "repair") if key in way.options}
            small |= {"steps": 2} if "learn" in way.options else {}
            monkeypatch.setitem(table, name, dataclasses.replace(way, options={**way.options, **small}))
    vits.prepare()


def logits(folder):
    images = torch.randn(4, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        return ViTForImageClassification.from_pretrained(folder).eval()(pixel_values=images).logits


@pytest.mark.parametrize("chosen", [(), (0,), (1,), (0, 1)])
def test_layers_left_out_keep_the_function_and_only_them(pair, chosen, tmp_path):
    _, source, whole = pair
    some = vits.in_layers(whole, chosen)
    isomerge.apply(some, source, out=tmp_path / "moved")
    # float32 weights of a few thousand operations
    assert torch.allclose(logits(tmp_path / "moved"), logits(source), atol=1e-4)
    streams = {key for key in whole if vits.place(key)[0] in whole.spec.residual_names}
    inside = {vits.place(key)[1] for key in some if key not in streams}
    assert inside - {None} == set(chosen)  # what tokens trade with their places is of no layer
    assert streams
    assert streams <= set(some)
    assert set(vits.in_layers(whole, (0, 1))) == set(whole)


def test_parts_of_the_papers_matching_are_its_modules(pair, tmp_path):
    anchor, source, _ = pair
    whole, _ = isomerge.align(source, onto=anchor, spaces="paper")
    ffn, attention = (
        vits.part(whole, lambda space, layer, stays=vits.MATCHINGS[name].stays: space in stays)
        for name in ("paper-ffn", "paper-attention")
    )
    assert {vits.place(key)[0] for key in ffn} == {"ff"}
    assert {vits.place(key)[0] for key in attention} == {"qk", "ov"}
    assert set(ffn) | set(attention) == set(whole)
    apart = []
    for name, part in (("whole", whole), ("ffn", ffn), ("attention", attention)):
        isomerge.apply(part, source, out=tmp_path / name)
        assert torch.allclose(logits(tmp_path / name), logits(source), atol=1e-4)
        apart.append(isomerge.diff(anchor, tmp_path / name, spaces="none")["distance"]["before"])
    assert apart[0] < min(apart[1:])  # each part comes closer by itself, both together closest
    assert max(apart[1:]) < isomerge.diff(anchor, source, spaces="none")["distance"]["before"]


@pytest.mark.parametrize(
    ("key", "space", "layer"), [("res", "res", None), ("2:qk[13]", "qk", 13), ("n1[0]", "n1", 0), ("2:shift.kb[3]", "shift.kb", 3)]
)  # fmt: skip
def test_keys_of_elements(key, space, layer):
    assert vits.place(key) == (space, layer)


def test_a_matching_is_made_once_and_again_when_it_is_another(tiny, monkeypatch):
    moved = []
    monkeypatch.setattr(vits, "move", lambda *names, move=vits.move: moved.append(names) or move(*names))
    folder = vits.aligned("rotations", "0-1")
    assert vits.aligned("rotations", "0-1") == folder
    assert moved == [("rotations", "0-1")]
    cell = vits.MATCHING.results().cells["rotations/0-1"]
    assert 0 < cell["distance"] < cell["distance_stored"]
    assert cell["options"] == ["paper-no-rescale", ["ov", "qk"]]
    queries = dataclasses.replace(vits.MATCHINGS["rotations"], stays=("qk",))
    monkeypatch.setitem(vits.MATCHINGS, "rotations", queries)
    vits.aligned("rotations", "0-1")
    assert len(moved) == 2


def test_a_merge_of_parts_stands_between_those_of_nothing_and_of_everything(tiny):
    nothing = vits.merged("0-1", "paper", "simple", layers=())
    everything = vits.merged("0-1", "paper", "simple", layers=(0, 1))
    assert nothing["loss"] == pytest.approx(vits.merged("0-1", "none", "simple")["loss"], rel=1e-5)
    assert everything["loss"] == pytest.approx(vits.merged("0-1", "paper", "simple")["loss"], rel=1e-5)
    assert nothing["loss"] != pytest.approx(everything["loss"], rel=1e-3)


@pytest.mark.parametrize("row", ["fisher", "ot-acts"])
def test_a_row_of_table_2(tiny, row):
    cell = vits.merged("0-1", "learned", row)
    assert cell["loss"] > 0
    assert 0 <= cell["accuracy"] <= 1


def test_the_line_begins_and_ends_at_the_models(tiny):
    line, (anchor, source) = vits.line("0-1", "none"), vits.unmerged("0-1", "endpoints")
    assert (line["losses"][0], line["losses"][-1]) == pytest.approx((anchor["loss"], source["loss"]))
    assert len(line["losses"]) == vits.POINTS
    assert vits.unmerged("0-1", "ensemble")["loss"] < (anchor["loss"] + source["loss"]) / 2


def test_an_untrained_model_is_named_with_its_command(tiny):
    with pytest.raises(
        SystemExit, match=r"seed-2 is not trained yet: python benchmarks/barrier/train.py vit-fashion --seed 2"
    ):
        vits.ends("0-2")


def test_settings_hold_no_folder_of_a_machine():
    assert "/" not in str([matching.stored() for matching in vits.MATCHINGS.values()])


@pytest.mark.parametrize(
    ("cell", "words"),
    [
        ({"accuracy": 0.5, "loss": 1.25}, "50.00 % 1.250 nats"),
        (
            [{"accuracy": 0.5, "loss": 1.25}, {"accuracy": 1.0, "loss": 0.0}],
            "50.00 % 1.250 nats, 100.00 % 0.000 nats",
        ),
        ({"distance_stored": 3.0, "distance": 2.0}, "3.00 -> 2.00"),
        ({"distance_stored": 3.0, "distance": 2.0, "barrier": {"entezari": 0.25}}, "barrier 0.250"),
        ({"seconds": 3.0}, ""),  # of training
    ],
)
def test_what_is_printed_of_a_cell(cell, words):
    assert vits.said(cell) == words


def test_choices_of_layers():
    assert vits.layer_choices(4, 2) == {
        "single": [(0,), (1,), (2,), (3,)], "tail": [(), (2, 3), (0, 1, 2, 3)], "head": [(), (0, 1), (0, 1, 2, 3)],
    }  # fmt: skip
    assert [vits.layers_key(layers) for layers in ((), (1, 0), (3,))] == ["none", "0+1", "3"]


def test_the_decoder_writes_what_follows():
    read, written = trained.pieces(torch.arange(200, dtype=torch.uint8), torch.tensor([0, 7]))
    assert read.shape == (2, trained.READ)
    assert written.shape == (2, trained.WRITE)
    assert torch.equal(written[:, 0], read[:, -1] + 1)


def test_what_is_trained_is_kept_until_its_settings_are_others(tmp_path):
    class Model(torch.nn.Linear):
        def save_pretrained(self, folder):
            folder.mkdir(parents=True)
            save_file({"weight": self.weight}, folder / "model.safetensors")

    def train():
        model = Model(1, 1, bias=False)
        torch.nn.init.constant_(model.weight, 5.0)
        return model, trained.descend(
            model, lambda: model.weight.square().sum(), [0.1] * 20, clip=1.0, weight_decay=0.0
        )

    folder = trained.kept(tmp_path / "model", train, {"steps": (20,)})
    report = json.loads((folder / "training.json").read_text())
    assert report["parameters"] == 1
    assert report["losses"][0] == pytest.approx(3.1**2, rel=0.01)  # Adam's steps are as long as its rate
    trained.kept(folder, lambda: pytest.fail("it is there"), {"steps": (20,)})
    with pytest.raises(ZeroDivisionError):
        trained.kept(folder, lambda: 1 / 0, {"steps": (30,)})
    assert (folder / "model.safetensors").is_file()


@pytest.mark.parametrize("reaction", others.REACTIONS)
def test_tokens_of_reactions_are_the_whole_text(reaction):
    tokens = others.TOKEN.findall(reaction)
    assert "".join(tokens) == reaction
    assert "Cl" not in reaction or "Cl" in tokens  # one token, no carbon
