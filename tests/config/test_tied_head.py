"""Whether a head is tied: every way to say it, against what transformers ties, and in every place that asks."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

import isomerge
from depth import more
from isomerge.archs import spec_for
from isomerge.checkpoint.opening import open_checkpoint
from isomerge.commands.opening import pair_solver
from isomerge.config.agreement import read_by_transformers
from isomerge.config.keys import TIE
from isomerge.errors import IsomergeError
from isomerge.models.layers import stack_layers
from isomerge.models.recognised import recognise
from isomerge.models.tied_tensors import is_tied
from isomerge.observe.live.module_state import state_of
from isomerge.observe.live.modules import load_module, materialise
from isomerge.options import OpeningOptions
from isomerge.run.connectivity import untied_alike
from toys import TOYS, Toy, config_of, outputs, overwrite, relative, save_toy, tensors

EMBED, HEAD = "model.embed_tokens.weight", "lm_head.weight"
SAYINGS = ("as saved", "whole silent", "all silent", "whole True", "whole False", "parts True", "parts False")
"""Who says what; the parts of a whole are silent where the whole speaks."""


def parts(config: Mapping[str, Any]) -> Iterator[Any]:
    """The parts of a whole, however deep."""
    for part in config.values():
        if isinstance(part, dict):
            yield part
            yield from parts(part)


def saying(config: Mapping[str, Any], how: str) -> dict[str, Any]:
    """A config of a saved toy that says it otherwise."""
    found, (who, what) = copy.deepcopy(dict(config)), how.split()
    if how == "as saved":
        return found
    found.pop(TIE, None)
    for part in parts(found) if how != "whole silent" else ():
        part.pop(TIE, None)
    if who == "whole" and what != "silent":
        found[TIE] = what == "True"
    for part in parts(found) if who == "parts" else ():
        if "vocab_size" in part:
            part[TIE] = what == "True"
    return found


@pytest.mark.parametrize(
    "name", ["llama", "llama-tied", "gpt2", "llava", "gemma3", *more("bert", "qwen2", "mbart", "paligemma", "opt")]
)
def test_what_transformers_ties(name: str) -> None:
    """Of heads that are stored: the table of all sayings. A head that is not stored is tied."""
    model = TOYS[name][0]()
    kind, saved = type(model), json.loads(model.config.to_json_string(use_diff=False))
    saved["architectures"] = [kind.__name__]
    spec = spec_for(saved, None, {name: tuple(x.shape) for name, x in model.state_dict().items()})
    for how in SAYINGS:
        config = saying(saved, how)
        with torch.device("meta"):
            module: Any = kind(read_by_transformers(config))
        ties = module.get_expanded_tied_weights_keys(all_submodels=True)
        assert is_tied(config, stored=True) == any(spec.match(n).line.tied for n in ties), how
        assert is_tied(config, stored=False), how


def test_classes_that_tie_whatever_is_said() -> None:
    """T5's: of two tensors that are stored and differ they tie none, so that the config may be believed."""
    silent = {"model_type": "t5", "architectures": ["T5ForConditionalGeneration"]}
    assert is_tied(silent, stored=True)
    assert not is_tied({**silent, TIE: False}, stored=True)
    assert is_tied({**silent, TIE: False}, stored=False)
    assert not is_tied({TIE: False, "architectures": ["T5EncoderModel"]}, stored=False)
    assert is_tied({"model_type": "nobody knows it"}, stored=True)


def silent_llama(folder: Path, seed: int = 0) -> Path:
    """A Llama whose config does not say that its head is one of its own, as transformers reads it."""
    save_toy("llama", folder, seed=seed)
    config = config_of(folder)
    del config[TIE]
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_a_silent_config_of_a_model_with_a_head(toy: Callable[..., Toy], tmp_path: Path) -> None:
    """What moves, what slices take, and what stands beside a tied twin are those of one that says it."""
    a, b = (silent_llama(tmp_path / str(seed), seed) for seed in (0, 1))
    one, two = open_checkpoint(a), open_checkpoint(b)
    view = stack_layers([(one, range(2)), (two, range(2, 3))])
    for name, source in (("embed_tokens", one), ("norm", two)):
        assert torch.equal(view.read(f"model.{name}.weight"), source.read(f"model.{name}.weight"))
    assert torch.equal(view.read("lm_head.weight"), two.read("lm_head.weight"))
    model, told = recognise(a), recognise(toy("llama").folder)
    groups = [{n: s.group_name for n, s in m.spec.spaces.items()} for m in (model, told)]
    assert groups[0] == groups[1]
    tied = recognise(toy("llama-tied").folder)
    alike, untied = untied_alike([model, tied])
    assert untied == [tied.ref]
    assert alike[0] is model
    assert "lm_head.weight" in alike[1].names
    with pair_solver(a, toy("llama-tied").folder, "all", None, OpeningOptions(), guard=False) as (solver, _):
        assert solver.source.has_own_head


def test_biases_go_with_the_biases_that_they_are_tied_to(tmp_path: Path) -> None:
    """Torch's pickles store both: slices took one from the first model and the other from the last."""
    folders = [save_toy("bert", tmp_path / str(seed), seed=seed) for seed in (0, 1)]
    for folder in folders:
        stored = tensors(folder)
        overwrite(folder, {**stored, "cls.predictions.decoder.bias": stored["cls.predictions.bias"].clone()})
    one, two = map(open_checkpoint, folders)
    view = stack_layers([(one, range(2)), (two, range(2, 3))])
    for name in ("cls.predictions.bias", "cls.predictions.decoder.bias"):
        assert torch.equal(view.read(name), two.read(name))


def test_a_head_that_the_module_ties_all_the_same(tmp_path: Path) -> None:
    """T5's class ties equal tensors whatever the config says: both are in the state."""
    folder = save_toy("t5-gated", tmp_path / "m")
    stored = tensors(folder)
    overwrite(folder, {**stored, "lm_head.weight": stored["shared.weight"].clone()})
    (folder / "config.json").write_text(
        json.dumps({**config_of(folder), TIE: False, "scale_decoder_outputs": True})
    )
    model = recognise(folder)
    found = state_of(load_module(model, dtype=torch.float64), model)
    assert set(found) == set(tensors(folder))
    assert torch.equal(found["lm_head.weight"], stored["shared.weight"])


def test_a_tied_head_that_is_stored_with_other_values(tmp_path: Path) -> None:
    """transformers reads it from version 5 on; it counted as the embeddings, and two functions as one."""
    folder, other = save_toy("llama-tied", tmp_path / "m"), save_toy("llama-tied", tmp_path / "other")
    stored = tensors(folder)
    overwrite(other, {**stored, HEAD: stored[EMBED].clone()})
    assert isomerge.verify(folder, other)["same"]
    overwrite(other, {**stored, HEAD: stored[EMBED] * 2})
    for asked in (
        lambda: isomerge.verify(folder, other),
        lambda: isomerge.merge([folder, other], out=tmp_path / "out", align=False),
    ):
        with pytest.raises(
            IsomergeError, match=rf"other: config.json ties {HEAD} to {EMBED}, .* set tie_word_embed"
        ):
            asked()
    config = {**config_of(other), TIE: False}
    (other / "config.json").write_text(json.dumps(config))
    assert not isomerge.verify(folder, other)["same"]
    # beside a model with a head of its own it was taken for one as well
    flagged = save_toy("llama-tied", tmp_path / "flagged")
    overwrite(flagged, tensors(other))
    for pair in ((other, flagged), (flagged, other)):
        with pytest.raises(IsomergeError, match=rf"flagged: config.json ties {HEAD} to {EMBED}"):
            isomerge.verify(*pair)


LATER = ("blenderbot", "bigbird_pegasus", "gemma3n-tied", "gemma4-clipped", "t5gemma2-tied", "lfm2_vl", "blip-2-t5")


@torch.no_grad()
@pytest.mark.parametrize("name", ["mbart", "cohere2_vision", *more("gpt2", "t5-gated", "gemma3", *LATER)])
def test_untied_in_transformers(name: str, tmp_path: Path) -> None:
    """The function stays, with the head read from where it is written, also where it is moved on its own."""
    folder = save_toy(name, tmp_path / "m")
    tied, model = recognise(folder), recognise(folder, untie=True)
    out = materialise(model.checkpoint, tmp_path / "out")
    assert relative(outputs(out), outputs(folder)) == 0
    assert recognise(out).has_own_head > recognise(folder).has_own_head
    heads = [model.names[n] for n in model.names.keys() - tied.names.keys() if "head" in n]
    overwrite(out, {n: x * 2 if n in heads else x for n, x in tensors(out).items()})
    assert relative(outputs(out), outputs(folder)) > 0.1


@pytest.mark.parametrize("name", ["switch_transformers", *more("zamba2")])
def test_heads_that_stay_tied(name: str, tmp_path: Path) -> None:
    """Their classes read more from the tie than whether the head is tied."""
    with pytest.raises(IsomergeError, match=f"would change the function of {name}.*leave the head tied"):
        recognise(save_toy(name, tmp_path / "m"), untie=True)
