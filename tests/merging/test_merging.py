"""Merging by every method: a model and its disguised twin give the model back; parameters reach the tensors
meant."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import isomerge
from depth import more
from isomerge.errors import IsomergeError
from isomerge.fusion.registry import Method, methods
from isomerge.merging.fusing import generator
from isomerge.models.recognised import recognise
from solve.disguises import disguise, perturb, single
from toys import outputs, relative

# fisher is refused where heads are rotated (see below); methods that run models have tests of their own
PLAIN = [name for name, m in methods().items() if not m.forward and name not in ("fisher", "passthrough")]


def tokens(folder: Path) -> Path:
    """Examples for a toy of text."""
    ids = torch.randint(1, 60, (12, 10), generator=torch.Generator().manual_seed(3))
    save_file({"input_ids": ids}, folder / "tokens.safetensors")
    return folder / "tokens.safetensors"


def given(method: Method, models: list[Path], folder: Path) -> dict:
    """What a method needs beside models: a base, its parameters, statistics."""
    found: dict = {"method": method.name}
    if method.base == "required":
        found |= {"base_model": models[0]}
    if "t" in method.options:
        found["parameters"] = {"t": 0.4}
    if method.statistics:
        kind = {"grams": "regmean", "factors": "kfac", "fishers": "fisher"}[method.statistics]
        files = [folder / f"{k}-{kind}.safetensors" for k in range(len(models))]
        for model, file in zip(models, files, strict=True):
            isomerge.stats(model, data=tokens(folder), out=file, kinds=[kind], overwrite=True)
        found["stats"] = files
    return found


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize("toy", ["gpt2", *more("llama")])
def test_a_twin_gives_the_model_back(name: str, toy: str, tmp_path: Path) -> None:
    """Statistics, too, are gathered on the twin as it is, and move with it. float32: the bound is that of the
    headline law, ten times where matrices are inverted."""
    model = single(toy, tmp_path / "model")
    twin = disguise(toy, model, tmp_path / "twin", 4)
    models = [model, twin]
    if name in ("model_stock", "consensus"):  # the agreement of one task vector with itself says nothing
        models.append(disguise(toy, model, tmp_path / "another", 6))
    how = given(methods()[name], models, tmp_path)
    isomerge.merge(models, out=tmp_path / "out", **how)
    for file in (tmp_path / "out").glob("alignment*"):
        file.unlink()
    assert relative(outputs(tmp_path / "out"), outputs(model)) <= 1e-4
    isomerge.merge([model, twin], out=tmp_path / "plain", align=False)
    assert relative(outputs(tmp_path / "plain"), outputs(model)) > 0.1


def test_fisher_follows_permutations_and_refuses_rotations(tmp_path: Path) -> None:
    """A diagonal Fisher is never used where it is not one; the sentence names the ways out."""
    model = single("gpt2", tmp_path / "model")
    other = perturb(model, tmp_path / "other", 0.1)
    how = {**given(methods()["fisher"], [model, other], tmp_path), "align": True}
    with pytest.raises(
        IsomergeError, match=r"diagonal Fisher of .* cannot follow .*fisher_kfac.*spaces=.*give data"
    ):
        isomerge.merge([model, other], out=tmp_path / "out", **how)
    assert not (tmp_path / "out").exists()
    isomerge.merge([model, other], out=tmp_path / "out", spaces="h,ff", **how)
    weights = load_file(tmp_path / "out" / "model.safetensors")
    means = {
        k: (load_file(model / "model.safetensors")[k] + load_file(other / "model.safetensors")[k]) / 2
        for k in weights
    }
    assert any((weights[k] - means[k]).abs().max() > 1e-3 for k in weights)
    gathered = isomerge.merge(
        [model, other], out=tmp_path / "now", method="fisher", data=tokens(tmp_path), spaces="default"
    )
    assert gathered["method"] == "fisher"


def test_task_vectors_are_a_function_of_orbits(tmp_path: Path) -> None:
    """Base and both fine-tunes disguised: task arithmetic gives the same function."""
    base = single("llama", tmp_path / "base")
    tuned = [perturb(base, tmp_path / f"tuned{k}", 0.1, seed=k) for k in (1, 2)]
    moved = [disguise("llama", m, tmp_path / f"moved-{m.name}", 20 + k) for k, m in enumerate([base, *tuned])]
    found = {}
    for tag, (first, *others) in {"stored": [base, *tuned], "moved": moved}.items():
        out = tmp_path / tag
        isomerge.merge(others, out=out, method="task_arithmetic", base_model=first, weights=[0.7, 0.4], align=True)
        for file in out.glob("alignment*"):
            file.unlink()
        found[tag] = outputs(out)
    assert relative(found["moved"], found["stored"]) <= 1e-5
    assert relative(found["stored"], outputs(base)) > 0.01


RECIPE = """
slices:
- sources:
  - {{model: {a}, layer_range: [0, 2]}}
  - {{model: {b}, layer_range: [0, 2]}}
merge_method: slerp
base_model: {a}
parameters:
  t:
  - {{filter: self_attn, value: [0, 1]}}
  - {{filter: mlp, value: 1}}
  - value: 0
"""


def test_gradients_and_filters_reach_their_tensors(tmp_path: Path) -> None:
    """At t = 0 the base, at t = 1 the other model; mergekit's slices of all layers are whole models."""
    a, b = (single("llama", tmp_path / tag, seed) for tag, seed in (("a", 0), ("b", 5)))
    (tmp_path / "r.yml").write_text(RECIPE.format(a=a, b=b))
    isomerge.merge(tmp_path / "r.yml", out=tmp_path / "out")
    ours, one, two = (load_file(f / "model.safetensors") for f in (tmp_path / "out", a, b))
    for name in ours:
        attends, last = "self_attn" in name, "layers.1." in name
        wanted = two if ("mlp" in name or (attends and last)) else one
        torch.testing.assert_close(ours[name], wanted[name], msg=name)


def test_random_methods_repeat(tmp_path: Path) -> None:
    """Equal seeds give equal bytes, other seeds other weights."""
    base = single("gpt2", tmp_path / "base")
    tuned = perturb(base, tmp_path / "tuned", 0.1)
    found = []
    for k, seed in enumerate((1, 1, 2)):
        how = {"method": "dare_linear", "parameters": {"density": 0.5}, "base_model": base, "seed": seed}
        isomerge.merge([tuned], out=tmp_path / str(k), align=False, **how)
        found.append((tmp_path / str(k) / "model.safetensors").read_bytes())
    assert found[0] == found[1] != found[2]


def test_the_base_comes_first(tmp_path: Path) -> None:
    """Listed or not, the base is the donor; weights stay with their models."""
    a, b, c = (single("gpt2", tmp_path / tag, seed) for tag, seed in (("a", 0), ("b", 5), ("c", 6)))
    how = {"method": "task_arithmetic", "align": False}
    isomerge.merge([b, c], out=tmp_path / "one", base_model=a, weights=[0.3, 0.6], **how)
    isomerge.merge([b, a, c], out=tmp_path / "two", base_model=a, weights=[0.3, 9.0, 0.6], **how)
    one, two = (load_file(tmp_path / tag / "model.safetensors") for tag in ("one", "two"))
    wa, wb, wc = (load_file(f / "model.safetensors") for f in (a, b, c))
    for name in one:
        assert torch.equal(one[name], two[name])
        torch.testing.assert_close(one[name], wa[name] + 0.3 * (wb[name] - wa[name]) + 0.6 * (wc[name] - wa[name]))
    report = isomerge.merge([b, a], out=tmp_path / "linear", base_model=a, weights=[1.0, 3.0], align=False)
    assert report["models"] == [str(a), str(b)]
    assert report["weights"] == [3.0, 1.0]


def test_weights_may_sum_to_zero_where_nothing_is_divided_by_them(tmp_path: Path) -> None:
    """A task vector taken away and another added."""
    a, b, c = (single("gpt2", tmp_path / tag, seed) for tag, seed in (("a", 0), ("b", 5), ("c", 6)))
    how = {"align": False, "base_model": a, "weights": [1.0, -1.0]}
    isomerge.merge([b, c], out=tmp_path / "out", method="task_arithmetic", **how)
    wa, wb, wc = (load_file(f / "model.safetensors") for f in (a, b, c))
    for name, found in load_file(tmp_path / "out" / "model.safetensors").items():
        torch.testing.assert_close(found, wa[name] + wb[name] - wc[name])


FEW_EXPERTS = """
models:
- {{model: {a}, parameters: {{weight: [{{filter: layers.1., value: 0}}, {{value: 1}}]}}}}
- {{model: {b}, parameters: {{weight: [{{filter: layers.1., value: 0}}, {{value: 1}}]}}}}
merge_method: linear
align: {{enabled: false}}
"""


def test_filters_that_leave_a_tensor_without_weight(tmp_path: Path) -> None:
    """Told before anything is written, with the tensor's name."""
    a, b = (single("gpt2", tmp_path / tag, seed) for tag, seed in (("a", 0), ("b", 5)))
    (tmp_path / "r.yml").write_text(FEW_EXPERTS.format(a=a, b=b).replace("layers.1.", "h.1."))
    with pytest.raises(IsomergeError, match=r"tensor transformer\.h\.1\..*sum to zero"):
        isomerge.merge(tmp_path / "r.yml", out=tmp_path / "out")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "b", "r.yml"]


@pytest.mark.parametrize("name", ["ties", "dare_ties", "slerp", "karcher"])
def test_experts_are_merged_one_by_one(name: str, tmp_path: Path) -> None:
    """A checkpoint's tensors are what a method sees, as in mergekit, whatever is one tensor to the spec; filters
    find experts."""
    base, *tuned = (single("mixtral", tmp_path / str(k), k) for k in range(3))
    chosen, parameters = methods()[name], {"density": 0.4} if "density" in methods()[name].options else {}
    weights = [load_file(f / "model.safetensors") for f in (base, *tuned)]
    experts = sorted(n for n in weights[0] if ".experts.1." in n)
    assert len(experts) > 3
    if name == "slerp":
        parameters = {"t": [{"filter": "experts.1.", "value": 0.9}, {"value": 0.3}]}
    how = {"base_model": base} if chosen.base == "required" else {}
    used = weights if chosen.base == "none" else weights[1:]
    models = [base, *tuned] if chosen.base == "none" else tuned
    if name == "slerp":
        models, used = models[:1], used[:1]
    isomerge.merge(models, out=tmp_path / "out", method=name, align=False, seed=7, parameters=parameters, **how)
    found = load_file(tmp_path / "out" / "model.safetensors")
    for tensor in experts:
        flat = {**parameters, **({"t": 0.9} if name == "slerp" else {})}
        rng = generator(7, name, canonical_of(base, tensor))
        origin = weights[0][tensor] if how else None
        alone = chosen.fuse([w[tensor] for w in used], flat, base=origin, rng=rng)
        torch.testing.assert_close(found[tensor], alone, rtol=1e-5, atol=1e-6)


def canonical_of(folder: Path, tensor: str) -> str:
    """A stored tensor's name in its spec."""
    names = recognise(folder).names
    return next(canonical for canonical, stored in names.items() if stored == tensor)


SHIFTED = """
slices:
- sources:
  - {{model: {a}, layer_range: [1, 3], parameters: {{weight: [{{filter: h.1., value: 3}}, {{value: 1}}]}}}}
  - {{model: {b}, layer_range: [0, 2], parameters: {{weight: [{{filter: h.1., value: 5}}, {{value: 1}}]}}}}
merge_method: linear
align: {{enabled: false}}
"""


def test_filters_of_a_source_count_its_own_layers(tmp_path: Path) -> None:
    """The second of three layers is the first one taken of a, and the second one taken of b."""
    a, b = (single("gpt2", tmp_path / tag, seed) for tag, seed in (("a", 0), ("b", 5)))
    (tmp_path / "r.yml").write_text(SHIFTED.format(a=a, b=b))
    isomerge.merge(tmp_path / "r.yml", out=tmp_path / "out")
    wa, wb, found = (load_file(f / "model.safetensors") for f in (a, b, tmp_path / "out"))
    prefix = next(n.partition("h.")[0] for n in wa if "h.0." in n)
    rest = "mlp.c_fc.weight"
    for layer, (left, right) in enumerate(((0.75, 0.25), (1 / 6, 5 / 6))):
        mean = left * wa[f"{prefix}h.{layer + 1}.{rest}"] + right * wb[f"{prefix}h.{layer}.{rest}"]
        torch.testing.assert_close(found[f"{prefix}h.{layer}.{rest}"], mean)


WRONG = [
    ({"method": "ties"}, "needs a base model"),
    ({"method": "tias"}, "did you mean ties"),
    ({"dtype": "bf16"}, "dtype='bf16'): did you mean bfloat16? choose from float32"),
    ({"method": "linear", "parameters": {"wieght": 1}}, "did you mean `weight`"),
    ({"method": "linear", "parameters": {"normalize": "maybe"}}, "true or false"),
    ({"method": "linear", "weights": [1.0]}, "2 finite numbers are needed"),
    ({"method": "linear", "weights": [1.0, -1.0]}, "sum to zero"),
    ({"method": "linear", "parameters": {"weight": [0.0, 0.0]}, "align": False}, "sum to zero"),
    ({"method": "regmean"}, "needs statistics"),
    ({"method": "regression"}, "runs the models: add merge(..., data=DATA)"),
    ({"method": "slerp", "base_model": 0}, "needs `t`"),
    ({"method": "regmean", "stats": ["a"]}, "2 files are needed"),
    ({"method": "karcher", "weights": [1.0, 2.0]}, "has no weights"),
]


@pytest.mark.parametrize(("how", "words"), WRONG)
def test_wrong_ways(how: dict, words: str, tmp_path: Path) -> None:
    """One sentence each, and nothing is written."""
    a, b = (single("gpt2", tmp_path / tag, seed) for tag, seed in (("a", 0), ("b", 5)))
    how = {**how, **({"base_model": a} if "base_model" in how else {})}
    with pytest.raises(IsomergeError) as error:
        isomerge.merge([a, b], out=tmp_path / "out", **how)
    assert words in str(error.value)
    assert not (tmp_path / "out").exists()


def test_regression_and_repair_run(tmp_path: Path) -> None:
    """Methods that run the models, on the aligned ones, through the writer; the report has the control."""
    model = single("gpt2", tmp_path / "model")
    twin = disguise("gpt2", model, tmp_path / "twin", 4)
    report = isomerge.merge(
        [model, twin], out=tmp_path / "out", method="regression", data=tokens(tmp_path), spaces="default"
    )
    assert relative(outputs(tmp_path / "out"), outputs(model)) <= 1e-3  # ridge regression in float32
    assert report["forward"]["control"]["average"]["error"] > 0.1 > report["forward"]["average"]["error"]
    report = isomerge.merge([model, twin], out=tmp_path / "re", repair=tokens(tmp_path))
    assert relative(outputs(tmp_path / "re"), outputs(model)) <= 1e-3
    assert report["forward"]["repair"]["layers"]


@pytest.mark.parametrize("match", ["git-rebasin", "otfusion", "ot-wts", "ot-acts", "ot-acts-emd"])
def test_baselines_of_matching(match: str, tmp_path: Path) -> None:
    """Equal models are the identity, whatever the method; the exact ones keep the function of another model as
    well."""
    a, b = (single("gpt2", tmp_path / tag, seed) for tag, seed in (("a", 0), ("b", 5)))
    data = {"data": tokens(tmp_path)} if "acts" in match else {}
    report = isomerge.merge([a, a], out=tmp_path / "same", match=match, **data)
    assert report["match"]["name"] == match
    for file in (tmp_path / "same").glob("alignment*"):
        file.unlink()
    if match in ("git-rebasin", "otfusion"):
        assert relative(outputs(tmp_path / "same"), outputs(a)) <= 1e-6
        alignment, found = isomerge.align(b, onto=a, out=tmp_path / "moved", match=match)
        (tmp_path / "moved" / "alignment.safetensors").unlink()
        assert alignment
        assert relative(outputs(tmp_path / "moved"), outputs(b)) <= 1e-5
        assert found["distance"]["after"] < found["distance"]["before"]
    else:
        with pytest.raises(IsomergeError, match="does not preserve the function"):
            isomerge.align(b, onto=a, match=match, **data)
        assert relative(outputs(tmp_path / "same"), outputs(a)) <= (0.2 if match != "ot-acts-emd" else 1e-6)


def test_onto_another_model_than_the_first(tmp_path: Path) -> None:
    """The first gives the config, another one the coordinates; the function is that of the merge onto the first."""
    a, b, c = (single("llama", tmp_path / tag, seed) for tag, seed in (("a", 0), ("b", 5), ("c", 6)))
    twins = [disguise("llama", m, tmp_path / f"twin-{m.name}", 30 + k) for k, m in enumerate((a, b, c))]
    for tag, models in (("stored", [a, b, c]), ("moved", twins)):
        report = isomerge.merge(models, out=tmp_path / tag, onto=models[2], weights=[0.5, 0.2, 0.3])
        assert report["models"] == [str(models[k]) for k in (2, 0, 1)]
        for file in (tmp_path / tag).glob("alignment*"):
            file.unlink()
    assert relative(outputs(tmp_path / "moved"), outputs(tmp_path / "stored")) <= 1e-5
    plain = (tmp_path / "r.yml").write_text(
        f"models: [{{model: {a}}}, {{model: {twins[0]}}}]\nmerge_method: linear\nalign: {{onto: {twins[0]}}}\n"
    )
    assert plain
    isomerge.merge(tmp_path / "r.yml", out=tmp_path / "out")
    ours, theirs = (load_file(f / "model.safetensors") for f in (tmp_path / "out", twins[0]))
    for name in ours:
        torch.testing.assert_close(ours[name], theirs[name], rtol=1e-4, atol=1e-5)
    with pytest.raises(IsomergeError, match=r"onto='d'.*: name one of the models"):
        isomerge.merge([a, b], out=tmp_path / "no", onto="d")


def test_task_vectors_move_to_a_new_base(tmp_path: Path) -> None:
    """A fine-tune of a disguised base brings its task vector to the base itself: the function of the fine-tune
    comes out."""
    base = single("llama", tmp_path / "base")
    tuned = perturb(base, tmp_path / "tuned", 0.1, seed=1)
    old_base, old_tuned = (disguise("llama", m, tmp_path / f"old-{m.name}", 40) for m in (base, tuned))
    how = {"method": "task_arithmetic", "base_model": base}
    isomerge.merge([old_tuned], out=tmp_path / "out", source_bases=[old_base], **how)
    (tmp_path / "out" / "alignment.safetensors").unlink()
    assert relative(outputs(tmp_path / "out"), outputs(tuned)) <= 1e-4
    assert relative(outputs(base), outputs(tuned)) > 0.01
    text = f"models: [{{model: {old_tuned}, base_model: {old_base}}}]\nbase_model: {base}\nmerge_method: task_arithmetic\nalign: true\n"
    (tmp_path / "r.yml").write_text(text)
    isomerge.merge(tmp_path / "r.yml", out=tmp_path / "again")
    again, out = (load_file(tmp_path / tag / "model.safetensors") for tag in ("again", "out"))
    assert all(torch.equal(again[name], out[name]) for name in out)
    with pytest.raises(IsomergeError, match=r"source_bases=.* moves task vectors"):
        isomerge.merge([base, old_tuned], out=tmp_path / "no", source_bases=[old_base])


def test_a_base_of_methods_that_know_none(tmp_path: Path) -> None:
    """It is one of the models, as mergekit has it, unless it is said that it gives config and tokenizer alone: by
    every door."""
    a, b, c = (single("gpt2", tmp_path / tag, seed) for tag, seed in (("a", 0), ("b", 5), ("c", 6)))
    text = f"models: [{{model: {a}}}, {{model: {b}}}]\nmerge_method: linear\nbase_model: {c}\n"
    (tmp_path / "r.yml").write_text(text)
    report = isomerge.merge(tmp_path / "r.yml", out=tmp_path / "three")
    assert (report["models"], report["weights"]) == ([str(c), str(a), str(b)], [1.0, 1.0, 1.0])
    assert any("merged as one of the models, as mergekit does" in note for note in report["notes"])
    report = isomerge.merge([a, b], out=tmp_path / "option", base_model=c, align=False)
    assert any("merged as one of the models, as mergekit does" in note for note in report["notes"])
    isomerge.merge([c, a, b], out=tmp_path / "same", align=False)
    (tmp_path / "r.yml").write_text(text + "align: {enabled: false, merge_base: false}\n")
    isomerge.merge(tmp_path / "r.yml", out=tmp_path / "two")
    isomerge.merge([a, b], out=tmp_path / "donor", base_model=c, merge_base=False, align=False)
    tags = ("three", "option", "same", "two", "donor")
    found = {tag: (tmp_path / tag / "model.safetensors").read_bytes() for tag in tags}
    assert found["three"] == found["option"] == found["same"] != found["two"] == found["donor"]
    for tag in ("three", "option", "donor"):
        isomerge.merge(tmp_path / tag / "isomerge_recipe.yml", out=tmp_path / f"{tag} again")
        assert (tmp_path / f"{tag} again" / "model.safetensors").read_bytes() == found[tag]


def test_a_base_of_a_method_of_one_model(tmp_path: Path) -> None:
    """It cannot be merged as a second one."""
    a, c = (single("gpt2", tmp_path / tag, seed) for tag, seed in (("a", 0), ("c", 6)))
    (tmp_path / "r.yml").write_text(f"models: [{{model: {a}}}]\nmerge_method: passthrough\nbase_model: {c}\n")
    isomerge.merge(tmp_path / "r.yml", out=tmp_path / "out")
    found, wanted = (load_file(folder / "model.safetensors") for folder in (tmp_path / "out", a))
    assert all(torch.equal(found[name], wanted[name]) for name in found)


def test_chat_templates_and_single_models(tmp_path: Path) -> None:
    """A template of the recipe is written where transformers looks for it; one model may pass through, aligned or
    not."""
    a, b = (single("llama", tmp_path / tag, seed) for tag, seed in (("a", 0), ("b", 5)))
    text = "models: [{{model: {a}}}, {{model: {b}}}]\nmerge_method: linear\nchat_template: {t}\n"
    (tmp_path / "r.yml").write_text(text.format(a=a, b=b, t='"{{ messages }}"'))
    isomerge.merge(tmp_path / "r.yml", out=tmp_path / "out")
    assert (tmp_path / "out" / "chat_template.jinja").read_text() == "{{ messages }}"
    (tmp_path / "file.jinja").write_text("{{ file }}")
    (tmp_path / "r.yml").write_text(text.format(a=a, b=b, t="file.jinja"))
    isomerge.merge(tmp_path / "r.yml", out=tmp_path / "file")
    for said in ("out", "file"):  # the kept recipe says the same
        isomerge.merge(tmp_path / said / "isomerge_recipe.yml", out=tmp_path / f"{said} again")
        found, again = (tmp_path / tag / "chat_template.jinja" for tag in (said, f"{said} again"))
        assert found.read_text() == again.read_text()
    assert again.read_text() == "{{ file }}"
    (b / "chat_template.jinja").write_text("{{ b }}")
    (tmp_path / "r.yml").write_text(text.format(a=a, b=b, t="auto"))
    isomerge.merge(tmp_path / "r.yml", out=tmp_path / "auto")  # that of the only model that has one
    assert (tmp_path / "auto" / "chat_template.jinja").read_text() == "{{ b }}"
    (tmp_path / "r.yml").write_text(text.format(a=a, b=b, t="chatml"))
    isomerge.merge(tmp_path / "r.yml", out=tmp_path / "named")
    assert "<|im_start|>" in (tmp_path / "named" / "chat_template.jinja").read_text()
    kept = [(tmp_path / tag / "isomerge_recipe.yml").read_text() for tag in ("auto", "named")]
    assert ["chat_template: auto" in kept[0], "chat_template: chatml" in kept[1]] == [True, True]
    (tmp_path / "r.yml").write_text(text.format(a=a, b=b, t="chatty"))
    with pytest.raises(IsomergeError, match=r"r\.yml: `chat_template` is chatty"):
        isomerge.merge(tmp_path / "r.yml", out=tmp_path / "no")
    isomerge.merge([a], out=tmp_path / "same", method="passthrough")
    assert relative(outputs(tmp_path / "same"), outputs(a)) == 0
