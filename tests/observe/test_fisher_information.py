"""The Fisher information of toys: against Hugging Face's own losses, one example at a time, and against closed
forms."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from isomerge.errors import IsomergeError
from isomerge.models.recognised import recognise
from isomerge.observe.data.examples import IGNORED, Examples
from isomerge.observe.live.modules import load_module, parameter_names
from isomerge.observe.stats import fisher_information
from isomerge.observe.stats.fisher_information import FisherInformation, gather_fisher, log_likelihoods
from isomerge.observe.stats.gathering import gather
from isomerge.observe.stats.taps import plan_linears
from observe.test_statistics import examples_for, near
from solve.disguises import single
from toys import config_of


def labelled(folder: Path, count: int = 5, seed: int = 0) -> Examples:
    """Examples that say what is predicted: classes, next tokens, masked tokens, or what a decoder writes."""
    found, rng = examples_for(folder, count, seed), torch.Generator().manual_seed(seed + 1)
    kind = config_of(folder)["architectures"][0]
    if "Classification" in kind:
        labels = torch.randint(0, 2, (count,), generator=rng)
    elif "CausalLM" in kind or "LMHead" in kind:
        return Examples(found.tensors, True)
    else:
        ids = found.tensors.get("decoder_input_ids", found.tensors["input_ids"])
        labels = torch.randint(1, 60, ids.shape, generator=rng)
        if "attention_mask" in found.tensors:
            hidden = torch.rand(ids.shape, generator=rng) < 0.5
            labels = torch.where(hidden & (found.tensors["attention_mask"] == 1), labels, IGNORED)
            labels[:, 0] = 7
    return Examples({**found.tensors, "labels": labels}, True)


def fisher_of(folder: Path, examples: Examples, **how: Any) -> tuple[Any, Any, FisherInformation]:
    """Model, module, Fisher."""
    model = recognise(folder)
    module = load_module(model)
    return model, module, gather_fisher(model, module, examples, **how)


def hugging_face_loss(module: Any, example: dict[str, torch.Tensor]) -> torch.Tensor:
    """The loss as transformers computes it from labels."""
    given = dict(example)
    if "labels" not in given:
        mask = given.get("attention_mask", torch.ones_like(given["input_ids"]))
        given["labels"] = torch.where(mask == 1, given["input_ids"], IGNORED)
    return module(**given).loss


@pytest.mark.parametrize("name", ["vit", "gpt2", "llama", "bert", "t5-gated"])
def test_the_diagonal_is_the_mean_of_squared_gradients(name: str, tmp_path: Path) -> None:
    """Of every stored tensor, as a loop over examples with transformers' own loss finds it; tied ones once."""
    a = single(name, tmp_path / "a")
    examples = labelled(a)
    model, module, found = fisher_of(a, examples, factors=False)
    sums: dict[str, torch.Tensor] = {}
    for example in examples.batches(1):
        module.zero_grad()
        hugging_face_loss(module, example).backward()
        for n, p in module.named_parameters():
            if p.grad is not None:
                sums[n] = sums.get(n, 0) + p.grad.double() ** 2 / len(examples)
    names = parameter_names(module, model.spec)
    assert found.fishers.keys() == {block.key for block in model.blocks}
    assert found.samples == len(examples)
    assert found.labels == "given"
    assert ("lm_head.weight" in found.tied) == (name in ("gpt2", "t5-gated"))
    gaps = {}
    for block in model.blocks:
        wanted = sums.get(names[block.canonical[0]])
        # a module may have parameters that do not reach its loss (the pooler of a body): they have zeros
        if wanted is None:
            assert float(found.fishers[block.key].abs().max()) == 0
        else:
            gaps[block.key] = near(found.fishers[block.key], wanted)
    # both are float32 gradients of one loss, summed in another order; twice the relative error of a square
    assert len(gaps) >= len(model.blocks) - 2
    assert {k: gap for k, gap in gaps.items() if gap > 1e-4} == {}


def test_expected_is_the_fisher_itself(tmp_path: Path) -> None:
    """Of a softmax classifier: F of the head's bias is E p (1 - p), of its weight E p (1 - p) x^2."""
    a = single("vit", tmp_path / "a")
    examples = examples_for(a, 6)
    _, module, found = fisher_of(a, examples, labels="expected")
    seen = []
    hook = module.classifier.register_forward_pre_hook(lambda _m, given: seen.append(given[0]))
    with torch.no_grad():
        p = module(**examples.tensors).logits.softmax(-1).double()
    hook.remove()
    spread, x = p * (1 - p), seen[0].double()
    assert near(found.fishers["classifier.bias"], spread.mean(0)) < 1e-5
    weight = (spread[:, :, None] * x[:, None] ** 2).mean(0)
    assert near(found.fishers["classifier.weight"], weight) < 1e-5
    # and the factor of what the classifier gives is the covariance of its prediction
    factor = (torch.diag_embed(p) - p[:, :, None] * p[:, None]).mean(0)
    assert near(found.factors["classifier.weight"], factor) < 1e-5


def test_sampled_labels_follow_the_prediction() -> None:
    """Classes are drawn as often as they are predicted; an example's draw depends on its seed alone."""
    logits = torch.tensor([[0.1, 1.0, -0.5, 0.7]])
    example = {"input_ids": torch.ones(1, 3, dtype=torch.long)}
    draws = [next(log_likelihoods(logits, example, False, "sampled", seed))[1].item() for seed in range(3000)]
    logs = logits.log_softmax(-1)[0]
    counts = torch.stack([torch.isclose(torch.tensor(draws), log).double().mean() for log in logs])
    # three standard deviations of a frequency in 3000 draws
    assert float((counts - logs.exp()).abs().max()) < 3 * (0.25 / 3000) ** 0.5
    assert draws[:5] == [next(log_likelihoods(logits, example, False, "sampled", s))[1].item() for s in range(5)]


def test_sampled_is_reproducible_and_seeded(tmp_path: Path) -> None:
    """Equal seeds give equal numbers; other seeds, and given labels, give others. Padding predicts nothing."""
    a = single("gpt2", tmp_path / "a")
    examples = examples_for(a, 4)
    one, two, other = (fisher_of(a, examples, labels="sampled", seed=s)[2] for s in (0, 0, 1))
    key = "h.0.mlp.c_fc.weight"
    assert torch.equal(one.fishers[key], two.fishers[key])
    assert torch.equal(one.factors[key], two.factors[key])
    assert near(one.fishers[key], other.fishers[key]) > 0.01
    assert one.labels == "sampled"
    short = Examples({k: x[:1, :4].contiguous() for k, x in examples.tensors.items()}, False)
    mask = torch.zeros_like(examples.tensors["input_ids"][:1])
    mask[:, :4] = 1
    padded = Examples({"input_ids": examples.tensors["input_ids"][:1], "attention_mask": mask}, False)
    # the same numbers are drawn for the same tokens, and padding adds nothing but other sums
    one, two = (fisher_of(a, given)[2].fishers for given in (short, padded))
    assert {k: near(one[k], two[k]) for k in one if near(one[k], two[k]) > 1e-4 and "wpe" not in k} == {}


@pytest.mark.parametrize("name", ["vit", "gpt2-untied", "deberta-shared", "llama"])
def test_factors_are_products_of_output_gradients(name: str, tmp_path: Path) -> None:
    """G is E sum_t g g^T, as torch's backward hooks see g; every linear layer has one and a Gram of its input."""
    a = single(name, tmp_path / "a")
    examples = labelled(a, 4)
    model, module, found = fisher_of(a, examples, diagonal=False)
    layers = plan_linears(model, module)
    assert len(layers) >= 3 * 4 + (name != "deberta-shared")
    sums: dict[str, torch.Tensor] = {}
    hooks = []
    for tap, path, _ in layers:

        def see(_m: Any, _in: Any, out: Any, key: str = tap.block) -> None:
            g = out[0].double().flatten(0, -2)
            sums[key] = sums.get(key, 0) + g.mT @ g / len(examples)

        hooks.append(module.get_submodule(path).register_full_backward_hook(see))
    for example in examples.batches(1):
        module.zero_grad()
        hugging_face_loss(module, example).backward()
    for hook in hooks:
        hook.remove()
    assert found.factors.keys() == sums.keys() == {tap.block for tap, _, _ in layers}
    assert {k: near(found.factors[k], x) for k, x in sums.items() if near(found.factors[k], x) > 1e-4} == {}
    grams = gather(model, module, examples)
    assert grams.linears.keys() == sums.keys()


def test_one_token_has_an_exact_factored_fisher(tmp_path: Path) -> None:
    """Of one example and a layer that reads one vector, G (x) A is the outer product of the gradient with
    itself."""
    a = single("vit", tmp_path / "a")
    examples = labelled(a, 1)
    model, module, found = fisher_of(a, examples)
    grams = gather(model, module, examples)
    gram = grams.grams[grams.linears["classifier.weight"][0]]
    module.zero_grad()
    hugging_face_loss(module, examples.tensors).backward()
    grad = module.classifier.weight.grad.double().flatten()
    assert near(torch.kron(found.factors["classifier.weight"], gram), grad.outer(grad)) < 1e-5


def test_wide_outputs_that_nothing_moves_have_a_diagonal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A vocabulary squared would not fit; layers inside keep their matrix, since spaces act on them."""
    a = single("gpt2-untied", tmp_path / "a")
    full = fisher_of(a, labelled(a, 3), diagonal=False)[2].factors
    monkeypatch.setattr(fisher_information, "WIDE", 10)
    found = fisher_of(a, labelled(a, 3), diagonal=False)[2].factors
    assert [key for key, x in found.items() if x.ndim == 1] == ["lm_head.weight"]
    assert near(found["lm_head.weight"], full["lm_head.weight"].diagonal()) < 1e-12
    assert found["h.0.mlp.c_fc.weight"].shape == (40, 40)


def test_what_cannot_be_read_is_refused(tmp_path: Path) -> None:
    """Labels that are not there, expectations over vocabularies, choices that do not exist, nothing to predict."""
    a = single("gpt2", tmp_path / "a")
    examples = examples_for(a, 2)
    nothing = Examples({**examples.tensors, "labels": torch.full((2, 9), IGNORED)}, True)
    cases = [
        (examples, "given", "no labels; choose --fisher-labels sampled"),
        (examples, "expected", "too many to sum over"),
        (examples, "all", "--fisher-labels all: choose from sampled, given, expected"),
        (nothing, None, "nothing to predict"),
    ]
    for given, labels, said in cases:
        with pytest.raises(IsomergeError, match=said):
            fisher_of(a, given, labels=labels)
