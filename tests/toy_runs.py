"""How toys are run whose outputs are not just those of a forward pass in their own dtype."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import reduce
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
import transformers as tf
from torch.nn import functional

from families import OUTPUTS
from toy_settings import Inputs


def barks(model: Any, given: Inputs) -> torch.Tensor:
    """What the three transformers of Bark write."""
    fine = given["input_ids"][..., None].repeat(1, 1, 4)
    found = [model.semantic(**given).logits, model.coarse_acoustics(**given).logits]
    found += [model.fine_acoustics(codebook_idx, fine).logits for codebook_idx in (1, 2, 3)]
    return torch.cat([x.double().flatten() for x in found])


def draws(model: Any, given: Inputs) -> torch.Tensor:
    """What Janus writes of what it sees, and what it draws."""
    seen = model(**given, output_hidden_states=True)
    drawn = model.model.language_model(
        inputs_embeds=model.prepare_embeddings_for_image_generation(given["input_ids"] % 11)
    ).last_hidden_state
    found = [seen.logits, model.model.generation_head(drawn), model.model.generation_head(seen.hidden_states[-1])]
    return torch.cat([x.double().flatten() for x in found])


def says(folder: Path, config: Any, dtype: torch.dtype, given: Inputs) -> torch.Tensor | None:
    """What Qwen3-Omni writes, says and predicts of further codes: the whole has no forward pass of its own; what
    Janus writes and draws; what Bark says. None of others."""
    if config.model_type == "janus" and "For" in config.architectures[0]:
        with torch.no_grad():
            return draws(tf.JanusForConditionalGeneration.from_pretrained(folder, dtype=dtype).eval(), given)
    if config.model_type == "bark":
        with torch.no_grad():
            return barks(tf.BarkModel.from_pretrained(folder, dtype=dtype).eval(), given)
    if config.model_type != "qwen3_omni_moe":
        return None
    model = tf.Qwen3OmniMoeForConditionalGeneration.from_pretrained(
        folder, dtype=dtype, experts_implementation="eager"
    ).eval()
    with torch.no_grad():
        thought = model.thinker(**given, output_hidden_states=True)
        embedded, layer = thought.hidden_states[0], thought.hidden_states[config.talker_config.accept_hidden_layer]
        talker, codes = model.talker, given["input_ids"] % 29
        heard = (
            talker.text_projection(embedded)
            + talker.hidden_projection(layer)
            + talker.get_input_embeddings()(codes)
        )
        said = talker(inputs_embeds=heard, output_hidden_states=True)
        last = said.hidden_states[0][-1][:, -1:]
        more = talker.code_predictor(
            inputs_embeds=torch.cat([last, talker.get_input_embeddings()(codes[:, -1:])], 1)
        )
        next_code = talker.code_predictor.get_input_embeddings()[0](codes[:, :1])
        again = talker.code_predictor(inputs_embeds=torch.cat([last, last, next_code], 1))
        after = talker(inputs_embeds=heard + next_code)
    return torch.cat([found.logits.double().flatten() for found in (thought, said, more, again, after)])


def written(kind: str, found: Any) -> torch.Tensor | None:
    """What Chameleon writes: codes of images, which it never does, are infinitely improbable; what SpeechT5 says.
    None of others."""
    if kind == "speecht5" and "spectrogram" in found:
        return found.spectrogram
    return found.logits[..., :40] if kind == "chameleon" else None


def without_chance(config: Any) -> AbstractContextManager[Any]:
    """SpeechT5 hides neurons in front of its decoder by chance, even when it is not trained: here it hides none."""
    if config.model_type != "speecht5":
        return nullcontext()
    from transformers.models.speecht5.modeling_speecht5 import SpeechT5SpeechDecoderPrenet

    return patch.object(SpeechT5SpeechDecoderPrenet, "_consistent_dropout", lambda _, x, p: x)


GEMMA_TYPES = {
    "embedding_gemma2",
    "embedding_gemma2_text",
    "t5gemma",
    "t5gemma2",
    "t5gemma2_encoder",
    "gemma3n",
    "gemma4",
    "gemma4_unified",
}
"""The types of models whose toys compute in float64 (see `in_double`)."""


@contextmanager
def in_double(config: Any) -> Iterator[None]:
    """Where a Gemma with towers computes in float32 whatever its weights are, let it compute in float64.

    Its norms do so, one behind the other in two towers and the language model, and its attention to sounds runs in
    no other way.
    """
    if config.model_type not in GEMMA_TYPES:
        yield
        return
    single, rounded = torch.Tensor.float, functional.softmax

    def softmax(x: torch.Tensor, dim: int | None = None, **_: Any) -> torch.Tensor:
        return rounded(x, dim)

    torch.Tensor.float, functional.softmax = torch.Tensor.double, softmax  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        torch.Tensor.float, functional.softmax = single, rounded  # type: ignore[method-assign]


def translates(folder: Path, config: Any, dtype: torch.dtype, given: Inputs) -> torch.Tensor | None:
    """What SeamlessM4T writes of texts and of sounds, and which units of speech: the whole runs one way at a time.
    None of others."""
    if config.model_type not in ("seamless_m4t", "seamless_m4t_v2") or not config.architectures[0].endswith(
        "Model"
    ):
        return None
    model = getattr(tf, config.architectures[0]).from_pretrained(folder, dtype=dtype).eval()
    words, sounds = given["input_ids"], given["input_features"]
    later = {"decoder_input_ids": given["decoder_input_ids"], "use_cache": False}
    units: dict[str, torch.Tensor] = {"decoder_input_ids": given["decoder_input_ids"] % 31}
    if config.model_type == "seamless_m4t_v2":
        units = {"char_input_ids": words[:, :10] % 23, "char_count_per_id": torch.full((3, 5), 2)}
    with torch.no_grad():
        read, heard = model(input_ids=words, **later), model(input_features=sounds, **later)
        said = model.t2u_model(inputs_embeds=model.shared(words[:, :5]), **units)
        if config.model_type == "seamless_m4t":
            spoken = [said.logits]
        else:  # how long units last is rounded, and shown as it is
            spoken = [said.last_hidden_state, model.t2u_model.model.decoder.duration_predictor(model.shared(words))]
    return torch.cat([x.double().flatten() for x in (read.logits, heard.logits, *spoken)])


def speaks(folder: Path, config: Any, dtype: torch.dtype, given: dict[str, torch.Tensor]) -> torch.Tensor | None:
    """What a model that thinks and talks writes and says: the whole has no forward pass of its own, and asks for a
    file of voices. None of others."""
    if config.model_type != "qwen2_5_omni":
        return None
    torch.save({}, folder / "spk_dict.pt")
    model = tf.Qwen2_5OmniForConditionalGeneration.from_pretrained(folder, dtype=dtype).eval()
    (folder / "spk_dict.pt").unlink()
    with torch.no_grad():
        thought = model.thinker(**given, output_hidden_states=True)
        codes = model.talker.get_input_embeddings()(given["input_ids"] % 31)
        said = model.talker(inputs_embeds=thought.hidden_states[0] + thought.hidden_states[-1] + codes)
    return torch.cat([thought.logits.double().flatten(), said.logits.double().flatten()])


DEFAULT = {"xglm", "ctrl", "kosmos-2"}
"""The types of models that compute in what torch's default is in places, or make masks with its least number (see
`in_default`)."""


@contextmanager
def with_caches_by_layer(config: Any) -> Iterator[None]:
    """FlauBERT's pre-LN block asks a cache for its layer as if it were a list, which it no longer is."""
    patch = pytest.MonkeyPatch()
    if getattr(config, "pre_norm", False):
        patch.setattr(tf.EncoderDecoderCache, "__getitem__", lambda cache, layer: cache, raising=False)
    try:
        yield
    finally:
        patch.undo()


@contextmanager
def in_default(config: Any) -> Iterator[None]:
    """Where a model makes tensors of the default's width, let that be float64."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64 if config.model_type in DEFAULT else before)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def in_width(model: Any, dtype: torch.dtype) -> Any:
    """XLNet makes its projections in float32 and loads them so, whatever it is asked for."""
    return model.to(dtype) if model.config.model_type == "xlnet" else model


def seen_outputs(kind: str, returned: Any) -> torch.Tensor | None:
    """The outputs of a model type in a row; None where its logits are all."""
    if kind not in OUTPUTS:
        return None
    named = [
        reduce(lambda part, key: part.get(key), name.split("."), returned)
        for name in OUTPUTS[kind]
        if name.split(".")[0] in returned
    ]
    return torch.cat([each.double().flatten() for each in named if each is not None])
