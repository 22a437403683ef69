"""``slices`` in one of several modules: layers of an encoder, or of a decoder, against modules that were cut by hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file

import isomerge as library
from isomerge.errors import IsomergeError
from solve.disguises import single
from toys import config_of, loaded

# toy -> its depths, the keys of these, and where its layers are in the module of transformers
Layers = Callable[[Any], Any]
FAMILIES: dict[str, tuple[tuple[int, int], tuple[str, str], Layers, Layers]] = {
    "t5-gated": ((3, 2), ("num_layers", "num_decoder_layers"), lambda m: m.encoder.block, lambda m: m.decoder.block),
    "bart": ((2, 2), ("encoder_layers", "decoder_layers"), lambda m: m.model.encoder.layers, lambda m: m.model.decoder.layers),
    "whisper": ((2, 2), ("encoder_layers", "decoder_layers"), lambda m: m.model.encoder.layers, lambda m: m.model.decoder.layers),
}  # fmt: skip


def made(name: str, *models: str) -> None:
    for seed, model in enumerate(models):
        single(name, Path(model), seed=seed)


def write(method: str, **modules: Any) -> str:
    content = {"merge_method": method, "modules": modules}
    if method != "passthrough":
        content["parameters"] = {"weight": 1.0}
    Path("r.yml").write_text(yaml.safe_dump(content, sort_keys=False))
    return "r.yml"


def slices(*parts: tuple[str, int, int]) -> dict[str, Any]:
    """One source for each."""
    return {"slices": [{"sources": [{"model": m, "layer_range": [a, b]}]} for m, a, b in parts]}


def whole(*names: str) -> dict[str, Any]:
    return {"models": [{"model": name} for name in names]}


def stored(folder: str) -> dict[str, torch.Tensor]:
    return load_file(f"{folder}/model.safetensors")


def logits(module: Any) -> torch.Tensor:
    rng = torch.Generator().manual_seed(3)
    ids = torch.randint(3, 20, (2, 5), generator=rng)
    read: dict[str, Any] = {"input_ids": ids}
    if module.config.model_type == "whisper":
        length = 2 * module.config.max_source_positions
        read = {
            "input_features": torch.randn(2, module.config.num_mel_bins, length, generator=rng, dtype=torch.float64)
        }
    with torch.no_grad():
        return module(**read, decoder_input_ids=ids, use_cache=False).logits


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", FAMILIES)
def test_all_layers_in_order_are_the_same_file(name: str) -> None:
    """Also cut in two and put together again."""
    made(name, "a")
    deep, short = FAMILIES[name][0]
    parts = {"encoder": slices(("a", 0, 1), ("a", 1, deep)), "decoder": slices(("a", 0, short))}
    library.merge(write("passthrough", **parts), out="out")
    assert Path("out/model.safetensors").read_bytes() == Path("a/model.safetensors").read_bytes()
    assert config_of("out") == config_of("a")


@pytest.mark.parametrize("name", FAMILIES)
def test_a_part_is_the_module_without_the_other_layers(name: str) -> None:
    """Of the encoder alone, and of both; transformers loads all of it, and its outputs are those of the module from whose
    lists of layers the others were taken by hand."""
    made(name, "a", "b")
    keys, encoder, decoder = FAMILIES[name][1:]
    library.merge(write("passthrough", encoder=slices(("a", 0, 1)), decoder=whole("a")), out="one")
    library.merge(
        write("passthrough", encoder=slices(("a", 0, 1)), decoder=slices(("a", 0, 2), ("a", 1, 2))), out="both"
    )
    for out, left, repeated in (("one", [0], [0, 1]), ("both", [0], [0, 1, 1])):
        assert [config_of(out)[key] for key in keys] == [len(left), len(repeated)]
        changed = {key: value for key, value in config_of(out).items() if value != config_of("a").get(key)}
        assert set(changed) <= set(keys)
        by_hand = loaded("a")
        for layers, kept in ((encoder(by_hand), left), (decoder(by_hand), repeated)):
            chosen = [layers[number] for number in kept]
            del layers[:]
            layers.extend(chosen)
        torch.testing.assert_close(logits(loaded(out)), logits(by_hand), rtol=1e-9, atol=1e-9)
    assert not torch.allclose(logits(loaded("one")), logits(loaded("a")), atol=1e-4)


def test_layers_of_several_models(isomerge: Callable) -> None:
    """A decoder of layers of two models, an encoder that is their mean, and embeddings of a third one: every tensor by
    hand."""
    made("t5-gated", "a", "b", "c")
    mean = {"slices": [{"sources": [{"model": m, "layer_range": [0, 2]} for m in "ab"]}]}
    recipe = write("linear", encoder=mean, decoder=slices(("a", 0, 2), ("b", 1, 2)), shared=whole("c"))
    said = isomerge("merge", recipe, "out", "--no-report")
    assert said.code == 0, said.err
    a, b, c, out = map(stored, ("a", "b", "c", "out"))
    wanted: dict[str, torch.Tensor] = {}
    for name in a:
        if name.startswith("encoder."):
            if ".block.2." not in name:
                wanted[name] = (a[name] + b[name]) / 2
        elif name.startswith("decoder."):
            wanted[name] = (b if "final" in name else a)[name]
        else:
            wanted[name] = c[name]
    wanted |= {n.replace("block.1.", "block.2."): x for n, x in b.items() if n.startswith("decoder.block.1.")}
    assert out.keys() == wanted.keys()
    for name, x in wanted.items():
        torch.testing.assert_close(out[name], x, rtol=1e-6, atol=1e-7)
    assert (config_of("out")["num_layers"], config_of("out")["num_decoder_layers"]) == (2, 3)
    loaded("out")
    assert isomerge("fsck", "out").code == 0


def test_parameters_of_slices_are_of_their_layers() -> None:
    """A gradient goes through the slices of the module, and not through the layers of another one."""
    made("bart", "a", "b")
    parts = [
        {"sources": [{"model": m, "layer_range": [k, k + 1], "parameters": {"weight": w}} for m, w in zip("ab", ws, strict=True)]}
        for k, ws in enumerate(((3, 1), (1, 3)))
    ]  # fmt: skip
    library.merge(write("linear", decoder={"slices": parts}, encoder=whole("a", "b")), out="out")
    a, b, out = map(stored, ("a", "b", "out"))
    for number, share in enumerate((0.75, 0.25)):
        name = f"model.decoder.layers.{number}.fc1.weight"
        torch.testing.assert_close(out[name], share * a[name] + (1 - share) * b[name])
    name = "model.encoder.layers.1.fc1.weight"
    torch.testing.assert_close(out[name], (a[name] + b[name]) / 2)


def test_what_is_around_a_slice_goes_with_the_first_or_the_last() -> None:
    """An encoder, which has more layers than there are slices, comes before the decoder's layers, and has the first slice's
    model and weights; the decoder's last norm has the last one's."""
    made("t5-gated", "a", "b")
    library.merge(write("passthrough", decoder=slices(("a", 0, 1), ("b", 1, 2))), out="out")
    a, b, out = map(stored, ("a", "b", "out"))
    for name, x in out.items():
        last = name.startswith(("decoder.block.1.", "decoder.final")) or name == "lm_head.weight"
        assert torch.equal(x, (b if last else a)[name]), name
    parts = [
        {"sources": [{"model": m, "layer_range": [k, k + 1], "parameters": {"weight": w}} for m, w in zip("ab", ws, strict=True)]}
        for k, ws in enumerate(((3, 1), (1, 3)))
    ]  # fmt: skip
    library.merge(write("linear", decoder={"slices": parts}), out="mean")
    for name, x in stored("mean").items():
        last = name.startswith(("decoder.block.1.", "decoder.final")) or name == "lm_head.weight"
        share = 0.25 if last else 0.75
        torch.testing.assert_close(x, share * a[name] + (1 - share) * b[name], rtol=1e-5, atol=1e-6)


def test_one_module_alone_and_the_recipe_that_is_written() -> None:
    """A recipe of one sliced module is a merge; the recipe beside it makes the same files."""
    made("t5-gated", "a")
    library.merge(write("passthrough", encoder=slices(("a", 0, 1), ("a", 2, 3))), out="out")
    assert [config_of("out")[key] for key in ("num_layers", "num_decoder_layers")] == [2, 2]
    assert "sliced: {module: encoder}" in Path("out/isomerge_recipe.yml").read_text()
    library.merge("out/isomerge_recipe.yml", out="again")
    assert Path("again/model.safetensors").read_bytes() == Path("out/model.safetensors").read_bytes()
    library.merge(write("passthrough", encoder=slices(("a", 0, 1)), decoder=slices(("a", 0, 1))), out="both")
    step = "both.steps/encoder"
    assert "sliced:" in Path(step, "isomerge_recipe.yml").read_text()
    library.merge(f"{step}/isomerge_recipe.yml", out="step")
    assert Path("step/model.safetensors").read_bytes() == Path(step, "model.safetensors").read_bytes()


@pytest.mark.parametrize(("name", "old"), [("t5-gated", {}), ("bart", {"num_hidden_layers": 2})])
def test_configs_of_older_days(name: str, old: dict[str, Any]) -> None:
    """One number for both stacks, which then differ; a second name of the encoder's depth, which would count before."""
    made(name, "a")
    said = {**config_of("a"), **old}
    if not old:  # of equal depths
        said = {key: value for key, value in said.items() if key != "num_decoder_layers"}
        library.merge(write("passthrough", encoder=slices(("a", 0, 2))), out="even")
        Path("even/config.json").write_text(json.dumps({**said, "num_layers": 2}))
    else:
        Path("a/config.json").write_text(json.dumps(said))
    source = "a" if old else "even"
    library.merge(write("passthrough", encoder=slices((source, 0, 1)), decoder=whole(source)), out="out")
    keys = FAMILIES[name][1]
    assert [config_of("out")[key] for key in keys if key in config_of("out")] == [1, 2]
    assert "num_hidden_layers" not in old or config_of("out")["num_hidden_layers"] == 1
    loaded("out")


def test_what_is_refused() -> None:
    """In one sentence, and nothing is written."""
    made("t5-gated", "a", "b")
    rest = whole("a")
    cases: list[tuple[str, dict[str, Any], str]] = [
        ("passthrough", {"encoder": slices(("a", 0, 4)), "decoder": rest}, "a has no layer 3: its layers are 0 to 2"),
        ("passthrough", {"encoder": rest, "decoder": slices(("a", 0, 3))}, "a has no layer 2: its layers are 0 to 1"),
        ("passthrough", {"encoder": slices(("a", 1, 2)), "decoder": rest}, r"transformers would miss .*relative_attention_bias"),
        ("passthrough", {"shared": slices(("a", 0, 1)), "decoder": rest}, "modules.shared.slices`: what is in no other"),
        ("passthrough", {"encoder": {"slices": [{"sources": []}]}, "decoder": rest}, "every slice has `sources`"),
        ("passthrough", {"encoder": {"slices": []}, "decoder": rest}, "every slice has `sources`"),
        ("passthrough", {"visual": slices(("a", 0, 1)), "decoder": rest}, "none of which is of `modules.visual`"),
    ]  # fmt: skip
    for method, modules, words in cases:
        with pytest.raises(IsomergeError, match=words):
            library.merge(write(method, **modules), out="out")
        assert not Path("out").exists()
    library.merge(write("passthrough", decoder=slices(("b", 0, 1))), out="short")
    with pytest.raises(IsomergeError, match=r"a and short have different numbers of layers in decoder\.block\."):
        library.merge(write("passthrough", encoder=slices(("a", 0, 1), ("short", 1, 2))), out="out")
    content = yaml.safe_load(
        Path(write("linear", encoder=slices(("a", 0, 1)), decoder=whole("a", "b"))).read_text()
    )
    Path("r.yml").write_text(yaml.safe_dump({**content, "align": True}))
    with pytest.raises(IsomergeError, match=r"`align` beside `modules\.encoder\.slices`"):
        library.merge("r.yml", out="out")
    plain = {"merge_method": "passthrough", **slices(("a", 0, 1))}
    Path("r.yml").write_text(yaml.safe_dump(plain))
    with pytest.raises(IsomergeError, match=r"several stacks .* as in `modules: {encoder: {slices: ...}}`"):
        library.merge("r.yml", out="out")


def test_modules_that_overlap_are_refused() -> None:
    """A decoder that is called by an encoder's name has both words in its tensors' names."""
    made("encoder-decoder", "a")
    with pytest.raises(IsomergeError, match=r"2 of them are of `modules\.encoder`"):
        library.merge(write("passthrough", encoder=slices(("a", 0, 1)), decoder=whole("a")), out="out")
    assert not Path("out").exists()
