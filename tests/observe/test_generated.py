"""Examples where there are no data: texts of the models' own, noise for models of images."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import isomerge
from isomerge.errors import IsomergeError
from isomerge.evidence.digits import example_models
from isomerge.observe.live.modules import load_module
from solve.disguises import single


def surprise(folder: Path, tokens: torch.Tensor) -> float:
    """The mean loss of the next token."""
    with torch.no_grad():
        logits = load_module(folder)(input_ids=tokens).logits[:, :-1]  # pyright: ignore[reportCallIssue]
    return float(torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()))


def test_models_write_in_turn(tmp_path: Path) -> None:
    """Every other text is one model's: it expects its own more than the other one does. Seeds decide, batches are
    told."""
    models = [single("llama", tmp_path / str(seed), seed) for seed in range(2)]
    told: list[tuple[int, int]] = []
    report = isomerge.generate(
        models, out=tmp_path / "x.safetensors", limit=63, length=20, batch_size=16,
        observer=lambda what, done, total: told.append((done, total)),
    )  # fmt: skip
    tokens = load_file(tmp_path / "x.safetensors")["input_ids"]
    assert report["shapes"] == {"input_ids": [63, 20]}
    assert tokens.shape == (63, 20)
    assert tokens.dtype == torch.int64
    assert told == [(0, 64), (16, 64), (32, 64), (48, 64)]
    for own, other, part in ((0, 1, tokens[::2]), (1, 0, tokens[1::2])):
        assert surprise(models[own], part) < surprise(models[other], part) - 0.1
    again = {"limit": 63, "length": 20, "batch_size": 16}
    state = torch.random.get_rng_state()
    isomerge.generate(models, out=tmp_path / "y.safetensors", **again)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert (tmp_path / "y.safetensors").read_bytes() == (tmp_path / "x.safetensors").read_bytes()
    isomerge.generate(models, out=tmp_path / "y.safetensors", seed=1, overwrite=True, **again)
    assert not torch.equal(load_file(tmp_path / "y.safetensors")["input_ids"], tokens)


def test_texts_begin_as_texts_do(tmp_path: Path) -> None:
    """With the token of the config; no longer than the model reads; whatever its generation_config.json says."""
    folder = single("gpt2", tmp_path / "a")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "bos_token_id": 7}))
    (folder / "generation_config.json").write_text(
        json.dumps({"do_sample": False, "eos_token_id": list(range(60))})
    )
    isomerge.generate([folder], out=tmp_path / "x.safetensors", limit=8, length=10_000)
    tokens = load_file(tmp_path / "x.safetensors")["input_ids"]
    assert tokens.shape == (8, config["n_positions"])
    assert (tokens[:, 0] == 7).all()
    assert len(tokens[:, 1].unique()) > 1


def test_a_beginning_beyond_the_vocabulary_is_none(tmp_path: Path) -> None:
    """As GPT-2's default is of a smaller model: its texts begin with any token."""
    folder = single("gpt2", tmp_path / "a")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "bos_token_id": config["vocab_size"]}))
    isomerge.generate([folder], out=tmp_path / "x.safetensors", limit=32, length=6)
    tokens = load_file(tmp_path / "x.safetensors")["input_ids"]
    assert int(tokens.max()) < config["vocab_size"]
    assert len(tokens[:, 0].unique()) > 4


def test_no_places_of_images_are_written(tmp_path: Path) -> None:
    """Where a model reads images in the places of a token, its texts have none: every toy writes it else."""
    folder = single("gemma3", tmp_path / "a")
    file = folder / "config.json"
    config = json.loads(file.read_text())

    def written(name: str) -> torch.Tensor:
        isomerge.generate([folder], out=tmp_path / name, limit=32, length=24)
        return load_file(tmp_path / name)["input_ids"][:, 1:]

    assert (written("x.safetensors") != config["image_token_index"]).all()
    file.write_text(json.dumps({**config, "image_token_index": 10_000}))
    assert (written("y.safetensors") == config["image_token_index"]).any()


def test_images_are_noise_of_all_scales(toy: Callable, tmp_path: Path) -> None:
    """In the range of pictures, smoother than independent pixels, in every image; read by the commands that read
    data."""
    folder = single("vit", tmp_path / "a")
    report = isomerge.generate([folder, folder], out=tmp_path / "x.safetensors", limit=64)
    pixels = load_file(tmp_path / "x.safetensors")["pixel_values"]
    assert report["kind"] == "images"
    assert pixels.shape == (64, 3, 8, 8)
    assert -1 <= float(pixels.min()) < -0.5 < 0.5 < float(pixels.max()) <= 1
    steps, spread = pixels.diff(dim=-1).square().mean((1, 2, 3)), pixels.var((1, 2, 3))
    assert (steps < 2 * spread).float().mean() > 0.9  # as much as 2 where neighbours are independent
    assert (steps > 0.1 * spread).all()
    isomerge.stats(folder, data=tmp_path / "x.safetensors", out=tmp_path / "stats.safetensors")


def test_white_is_what_the_processor_takes_for_it(tmp_path: Path) -> None:
    """The example's digits are grey in 16 steps: their noise has the range of digits."""
    folder, _ = example_models()
    isomerge.generate([folder], out=tmp_path / "x.safetensors", limit=8)
    pixels = load_file(tmp_path / "x.safetensors")["pixel_values"]
    assert float(pixels.min()) == -1
    assert float(pixels.max()) == 1
    assert len(pixels.unique()) == 17


@pytest.mark.parametrize(
    ("names", "options", "says"),
    [
        (["bert"], {}, "neither writes texts nor sees only images"),
        (["t5-relu"], {}, "neither writes texts nor sees only images"),
        (["vit", "gpt2"], {}, r"sees images of \[3, 8, 8\] and another model does not"),
        (["gpt2", "vit"], {}, "neither writes texts nor sees only images"),
        (["gpt2"], {"limit": 0}, "limit=0.*: at least 1"),
        (["gpt2"], {"length": 1}, "length=1.*: at least 2"),
        (["gpt2"], {"batch_size": 0}, "batch_size=0.*: at least 1"),
        (["gpt2"], {"device": "tpu9"}, "device='tpu9'"),
        (["gpt2"], {"out": "x.txt"}, r"x\.txt.*: the examples are written as safetensors"),
        ([], {}, "no model"),
    ],
)  # fmt: skip
def test_refused(names: list[str], options: dict, says: str, toy: Callable, tmp_path: Path) -> None:
    """In one sentence, and nothing is written."""
    out = tmp_path / options.pop("out", "x.safetensors")
    with pytest.raises(IsomergeError, match=says):
        isomerge.generate([toy(name).folder for name in names], out=out, **options)
    assert list(tmp_path.iterdir()) == []


def test_weights_are_not_replaced_by_what_is_made_of_them(toy: Callable, tmp_path: Path) -> None:
    """By whatever name, and with --overwrite."""
    (link := tmp_path / "x.safetensors").symlink_to(toy("gpt2").folder / "model.safetensors")
    with pytest.raises(IsomergeError, match="is read, and would be replaced"):
        isomerge.generate([toy("gpt2").folder], out=link, limit=1, length=4, overwrite=True)
