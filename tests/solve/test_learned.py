"""Learned matching through the engine: lower barriers, exact symmetries, resumable runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import isomerge
from depth import more
from isomerge.cli.evidence import evidence_lines
from isomerge.errors import IsomergeError
from isomerge.evidence.digits import example_models, held_out_digits
from isomerge.models.recognised import recognise
from isomerge.models.unit_plan import make_plan
from isomerge.observe.live.modules import load_module
from isomerge.observe.live.substitution import ask_for_weights, layers_of, substituted
from isomerge.solve.learn import learner as learned
from isomerge.solve.learn import settings as learning
from isomerge.solve.learn.learner import Learner
from isomerge.solve.learn.settings import LearnSettings
from isomerge.solve.learn.simplex import MatchedLine
from isomerge.solve.pairs import stream_descent as streams
from isomerge.solve.pairs.pair import PairSolver
from isomerge.solve.pairs.stream_descent import StreamSolver
from solve.disguises import single
from toys import config_of, inputs, outputs, relative

pytestmark = pytest.mark.matched(
    "of layers: else strangers' streams are matched as well, and small changes not at all"
)


@pytest.fixture(autouse=True)
def few_sweeps(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is learned starts from a rough match."""
    monkeypatch.setattr(streams, "SWEEPS", 2)


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Training images of the digits, as a file; disjoint from the test images."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    data: Any = load_digits()
    train, _ = train_test_split(range(len(data.target)), test_size=0.25, random_state=0, stratify=data.target)
    images = ((torch.tensor(data.images, dtype=torch.float32) / 16 - 0.5) / 0.5).unsqueeze(1)
    file = tmp_path_factory.mktemp("digits") / "train.safetensors"
    save_file({"pixel_values": images[train].contiguous(), "labels": torch.tensor(data.target)[train]}, file)
    return str(file)


def test_learning_lowers_the_barrier(digits: str, tmp_path: Path) -> None:
    """Two ViTs from different seeds: the midpoint gets better than activations alone bring it; the function
    stays."""
    a, b = example_models()
    images, labels = held_out_digits()

    def midpoint(folder: Path) -> float:
        isomerge.merge([a, folder], out=tmp_path / "mid", align=False, overwrite=True)
        with torch.no_grad():
            logits = load_module(tmp_path / "mid")(pixel_values=images).logits
        return float(torch.nn.functional.cross_entropy(logits, labels))

    isomerge.align(b, onto=a, out=tmp_path / "acts", data=digits, limit=256)
    alignment, report = isomerge.align(b, onto=a, out=tmp_path / "learned", learn=digits, steps=24)
    found = report["streams"][0]["learned"]
    assert found["target"] == "distill"
    assert found["history"][0]["step"] == 0
    assert found["barrier"] < 0.8 * found["history"][0]["barrier"]
    assert midpoint(tmp_path / "learned") < 0.7 * midpoint(tmp_path / "acts") < 1.4
    with torch.no_grad():
        one, two = (load_module(f)(pixel_values=images).logits for f in (b, tmp_path / "learned"))
    assert relative(two, one) < 1e-4
    assert isomerge.verify(b, tmp_path / "learned")["same"]
    isomerge.apply(alignment, b, out=tmp_path / "again")
    old, new = (load_file(tmp_path / name / "model.safetensors") for name in ("learned", "again"))
    assert all(torch.equal(old[k], new[k]) for k in old)


def learner(a: Path, b: Path, tokens: torch.Tensor, state: Path, observer: Any = None, **options: Any) -> Learner:
    """A learner between two toys on token ids."""
    from isomerge.observe.data.opening_data import open_data

    file = state.with_name("ids.safetensors")
    untie = options.pop("untie", False)
    one, two = recognise(a, untie=untie), recognise(b, untie=untie)
    save_file({"input_ids": tokens, **options.pop("more", {})}, file)
    examples = open_data(str(file), a, config=one.config)
    pair = PairSolver(one, two, make_plan(two, [one], "all"), torch.float32, guard=False)
    solver = StreamSolver(pair, lambda *_: None)
    solver.solve()
    settings = LearnSettings(**{"steps": 8, "batch_size": 4, "target": "distill", **options})
    return Learner(MatchedLine(solver, settings), examples, state, observer or (lambda *_: None))


@pytest.fixture
def tokens() -> torch.Tensor:
    """Random token ids [24, 9]."""
    return torch.randint(1, 60, (24, 9), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", ["gpt2", "qwen3", *more("llama", "bert")])
def test_what_is_learned_is_a_symmetry(name: str, tokens: torch.Tensor, tmp_path: Path) -> None:
    """Any model, tied or not, post-norm or not: elements move, and the moved model computes the source's
    function."""
    a, b = single(name, tmp_path / "a", 0), single(name, tmp_path / "b", 1)
    file = tmp_path / "ids.safetensors"
    more = {"labels": torch.randint(1, 60, (24, 9))} if name == "bert" else {}
    save_file({"input_ids": tokens, **more}, file)
    for untie in {False, name == "gpt2"}:
        out = tmp_path / f"out-{untie}"
        alignment, report = isomerge.align(
            b, onto=a, out=out, learn=str(file), learn_target="distill", steps=6, batch_size=4, untie=untie
        )
        history = report["streams"][0]["learned"]["history"]
        assert history[0]["step"] == 0
        assert len({h["barrier"] for h in history}) > 1
        assert relative(outputs(out), outputs(b)) < 1e-4
        assert bool(config_of(out).get("tie_word_embeddings", True)) is not untie or name != "gpt2"
        assert len(alignment) > 0


def test_a_resumed_run_is_the_same_run(
    tokens: torch.Tensor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed in the middle and started again: bit for bit the elements of a run that was left alone."""
    monkeypatch.setattr(learned, "SAVE_EVERY", 0.0)
    a, b = single("llama", tmp_path / "a", 0), single("llama", tmp_path / "b", 1)

    def killed(what: str, done: int, total: int) -> None:
        if done == 5:
            raise KeyboardInterrupt

    whole = learner(a, b, tokens, tmp_path / "whole.safetensors").run()
    with pytest.raises(KeyboardInterrupt):
        learner(a, b, tokens, tmp_path / "cut.safetensors", killed).run()
    resumed = learner(a, b, tokens, tmp_path / "cut.safetensors")
    rest: list[int] = []
    resumed.observer = lambda what, done, total: rest.append(done)
    found = resumed.run()
    assert rest[0] >= 4
    assert all(torch.equal(g, found.elements[0][k]) for k, g in whole.elements[0].items())
    assert whole.report == found.report


@pytest.mark.parametrize(
    "change",
    [{"checkpointing": True}, {"checkpointing": True, "precision": "bfloat16"}, *more({"precision": "bfloat16"})],
)
def test_cheaper_ways_learn_alike(change: dict[str, Any], tokens: torch.Tensor, tmp_path: Path) -> None:
    """Recomputed activations change nothing; mixed precision only what half precision rounds."""
    a, b = single("llama", tmp_path / "a", 0), single("llama", tmp_path / "b", 1)
    plain = learner(a, b, tokens, tmp_path / "one.safetensors")
    other = learner(a, b, tokens, tmp_path / "two.safetensors", **change)
    gradients = []
    for one in (plain, other):
        batch = next(one._batches(0))
        with one.simplex.standing_at([0.5, 0.5], one.elements.stages()):
            one.loss(batch, one.wanted(batch)).backward()
        gradients.append(
            torch.cat([p.grad.flatten() for p in one.elements.parts[0].parameters().values() if p.grad is not None])
        )
    assert float(gradients[0].norm()) > 1e-3
    allowed = 0.2 if "precision" in change else 1e-4
    assert float((gradients[0] - gradients[1]).norm() / gradients[0].norm()) < allowed


def test_the_gradient_is_the_slope(tokens: torch.Tensor, tmp_path: Path) -> None:
    """A small step against the gradient lowers the loss by what the gradient says, for rotations and gauges."""
    a, b = single("gpt2", tmp_path / "a", 0), single("gpt2", tmp_path / "b", 1)
    found = learner(a, b, tokens, tmp_path / "state.safetensors", untie=True)
    batch = next(found._batches(0))
    wanted = found.wanted(batch)

    def loss() -> torch.Tensor:
        with found.simplex.standing_at([0.5, 0.5], found.elements.stages()):
            return found.loss(batch, wanted)

    before = loss()
    before.backward()
    rotation = found.elements.parts[0].rotations["res"]
    assert rotation.grad is not None
    lie = rotation.grad @ rotation.detach().mT
    skew = (lie - lie.mT) / 2
    skew = skew - skew.mean(-1, keepdim=True)
    skew = skew - skew.mean(-2, keepdim=True)
    size = 1e-3 / float(skew.norm())
    with torch.no_grad():
        rotation.copy_(torch.linalg.matrix_exp(-size * skew) @ rotation)
        after = loss()
    # d/ds L(exp(-s S) R) = -<dL/dR R^T, S> = -|S|^2
    assert float(before.detach() - after) == pytest.approx(size * float(skew.square().sum()), rel=0.1)


def test_substituted_gives_the_module_back(toy: Callable[..., Any]) -> None:
    """Tied places follow, and everything is as before afterwards, also after an error."""
    module = load_module(toy("gpt2").folder)
    weight = module.get_parameter("transformer.wte.weight")
    other = torch.zeros_like(weight)
    with substituted(module, {"transformer.wte.weight": other}):
        assert module.lm_head.weight is other  # pyright: ignore[reportAttributeAccessIssue]
    assert module.get_parameter("transformer.wte.weight") is weight
    stopped = substituted(module, {"transformer.wte.weight": other})
    stopped.__enter__()
    assert stopped.__exit__(ZeroDivisionError, ZeroDivisionError(), None) is not True
    assert module.get_parameter("transformer.wte.weight") is weight is module.lm_head.weight  # pyright: ignore


def test_permutations_over_gains_that_are_not_folded(tokens: torch.Tensor, tmp_path: Path) -> None:
    """A tied head keeps the final norm's gain: a learned permutation of the stream moves it along."""
    a, b = single("gpt2", tmp_path / "a", 0), single("gpt2", tmp_path / "b", 1)
    file = tmp_path / "ids.safetensors"
    save_file({"input_ids": tokens}, file)
    isomerge.align(
        b,
        onto=a,
        out=tmp_path / "out",
        learn=file,
        learn_target="distill",
        steps=3,
        batch_size=4,
        learn_permutations=True,
    )
    assert relative(outputs(tmp_path / "out"), outputs(b)) < 1e-4
    found = learner(a, b, tokens, tmp_path / "state.safetensors", permutations=True)
    order = torch.randperm(48, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        found.elements.parts[0].scores["res"].copy_(torch.nn.functional.one_hot(order, 48) * 5.0)
        batch = next(found._batches(0))
        with found.simplex.standing_at([0.0, 1.0], None):
            before = found.simplex.logits(batch)
        with found.simplex.standing_at([0.0, 1.0], found.elements.stages()):
            after = found.simplex.logits(batch)
    assert relative(after, before) < 1e-4


@pytest.mark.parametrize("name", ["vit", "t5-gated", *more("bert", "mixtral", "gpt2", "zamba")])
def test_layers_ask_for_their_weights(name: str, tokens: torch.Tensor, tmp_path: Path) -> None:
    """Of most weights the module keeps nothing but one number; every layer computes with those of the point."""
    folder, batch = single(name, tmp_path / "a"), {}
    one = recognise(folder)
    pair = PairSolver(one, one, make_plan(one, [one], "all"), torch.float32, guard=False)
    solver = StreamSolver(pair, lambda *_: None)
    solver.solve()
    line = MatchedLine(solver, LearnSettings(checkpointing=True))
    whole = load_module(folder)
    batch = {name: x for name, x in inputs(whole.config).items() if torch.is_tensor(x)}
    batch = {name: x.float() if x.is_floating_point() else x for name, x in batch.items()}
    kept = sum(x.untyped_storage().nbytes() for x in line.module.parameters())
    layers = sum(x.numel() for n, x in whole.named_parameters() if any(n.startswith(f"{m}.") for m in line.layers))
    assert layers > 1000
    assert kept <= 4 * (sum(x.numel() for x in whole.parameters()) - layers) + 4 * len(list(whole.parameters()))
    with torch.no_grad(), line.standing_at([1.0, 0.0], None):
        assert relative(line.logits(batch), whole(**batch).logits) < 1e-4
    assert not line.stands


def test_layers_that_have_no_weights_to_themselves() -> None:
    """ALBERT's one layer is all of them: it computes as often, and is asked as often; a model without layers is refused."""
    module = torch.nn.Sequential(torch.nn.Linear(2, 2))
    assert layers_of(module, ["0.weight"]) == {"0": {"0.weight"}}
    assert layers_of(module, []) == {}
    with pytest.raises(IsomergeError, match="leave --gradient-checkpointing out"):
        ask_for_weights(module, {}, lambda name: {})


def test_what_counts_of_a_decoder() -> None:
    """What is written counts, not what the encoder reads, though both may be as long."""
    logits = torch.zeros(1, 4, 7)
    batch = {
        "input_ids": torch.ones(1, 4, dtype=torch.int64), "attention_mask": torch.tensor([[1, 0, 0, 0]]),
        "decoder_input_ids": torch.ones(1, 4, dtype=torch.int64), "labels": torch.tensor([[3, 2, 5, -100]]),
    }  # fmt: skip
    assert learning.counted(batch, logits).tolist() == [[True, True, True, False]]
    del batch["decoder_input_ids"]
    assert learning.counted(batch, logits).tolist() == [[True, False, False, False]]


def test_a_row_of_nothing_but_padding(tokens: torch.Tensor, tmp_path: Path) -> None:
    """An example without a token adds nothing to the loss; it is no divergence."""
    a, b = single("llama", tmp_path / "a", 0), single("llama", tmp_path / "b", 1)
    mask = torch.ones_like(tokens)
    mask[::2] = 0
    found = learner(
        a, b, tokens, tmp_path / "state.safetensors", more={"attention_mask": mask}, batch_size=1, steps=6
    )
    assert all(h["barrier"] == h["barrier"] for h in found.run().report["history"])


def test_few_examples(tokens: torch.Tensor, tmp_path: Path) -> None:
    """Two examples are enough: one to learn from and one to judge by; one is refused in one sentence."""
    a, b = single("llama", tmp_path / "a", 0), single("llama", tmp_path / "b", 1)
    found = learner(a, b, tokens[:2], tmp_path / "state.safetensors", batch_size=64, steps=3)
    assert (len(found.held), len(found.examples)) == (1, 1)
    assert len(found.run().report["history"]) >= 2
    with pytest.raises(IsomergeError, match="--learn: a single example is too few"):
        learner(a, b, tokens[:1], tmp_path / "other.safetensors")


STILL = {"before": 1.0, "after": 1.0}
"""Distances that do not grow."""


def test_a_gradient_without_bounds(tokens: torch.Tensor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was best before is kept, with finite elements; where nothing was better than the start, a sentence says
    so."""
    a, b = single("llama", tmp_path / "a", 0), single("llama", tmp_path / "b", 1)
    sound = learning.backward

    def diverging(at: int) -> Learner:
        found = learner(a, b, tokens, tmp_path / f"{at}.safetensors", gauge_rate=0.05)

        def poisoned(loss: torch.Tensor) -> None:
            sound(loss)
            if found.elements.steps_taken == at:
                next(iter(found.elements.parts[0].gauges.values())).grad.fill_(torch.inf)  # pyright: ignore[reportOptionalMemberAccess]

        monkeypatch.setattr(learned, "backward", poisoned)
        return found

    found = diverging(7).run()
    looks = found.report["history"]
    assert found.report["diverged"] == 7
    assert max(look["step"] for look in looks) == 7
    assert found.report["barrier"] == min(look["barrier"] for look in looks) < looks[0]["barrier"]
    assert all(bool(g.isfinite().all()) for g in found.elements[0].values())
    assert "diverged at step 7" in evidence_lines([{"learned": found.report}])[0]
    with pytest.raises(IsomergeError, match="learning diverged at step 1 "):
        diverging(1).run()


def test_no_memory_for_the_backward_pass() -> None:
    """What the device cannot hold is told in one sentence, with what to change."""

    class Large:
        def backward(self) -> None:
            raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(IsomergeError, match="smaller --batch-size, or --gradient-checkpointing"):
        learning.backward(Large())  # pyright: ignore[reportArgumentType]


def test_refusals(digits: str, tmp_path: Path) -> None:
    """Contradictions are told before anything is read or written."""
    a, b = example_models()
    for options, says in (
        ({"learn": digits, "steps": 0}, "steps=0"),
        ({"learn": digits, "learn_effort": "huge"}, "learn_effort='huge'.*: choose from quick, thorough"),
        ({"learn": digits, "learn_target": "magic"}, "learn_target='magic'"),
        ({"learn": digits, "precision": "int8"}, "precision='int8'"),
        ({"steps": 5}, "steps=.* is for learning"),
        ({"search": 5.0}, "search=.* needs examples"),
        ({"stats_src": "x"}, "stats_src=.* and stats_anchor belong together"),
        ({"learn": digits, "spaces": "none"}, "nothing can be learned"),
        ({"data": digits, "evidence": "guess"}, "evidence='guess'"),
    ):
        with pytest.raises(IsomergeError, match=says):
            isomerge.align(b, onto=a, out=tmp_path / "out", **options)
        assert not (tmp_path / "out").exists()
