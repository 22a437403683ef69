"""The comparison of standard, quotient and relational training: what is measured, in which order, and what may be
said of it."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.paper.results import Results
from benchmarks.relational import data, orbits, said, tables
from benchmarks.relational.arms import ARMS
from benchmarks.relational.compare import FREQUENCIES, RATES, SEEDS, Cell, best_rate, missing
from benchmarks.relational.models import Standard
from benchmarks.relational.summary import GRID, NEAR, Range, Summary, loss_of, width
from benchmarks.relational.training import fit, learning_rate, run


@pytest.fixture(autouse=True)
def small_data(monkeypatch):
    """Images and text at random, so that nothing is fetched; one thread."""
    monkeypatch.setattr(data, "VALIDATION_IMAGES", 8)
    monkeypatch.setattr(data, "TEST_IMAGES", 12)
    generator = torch.Generator().manual_seed(0)

    def images(name, split):
        count = 80 if split == "train" else 20
        pixels = torch.rand(count, 1, 28, 28, generator=generator)
        return pixels, torch.randint(data.CLASSES, (count,), generator=generator)

    monkeypatch.setattr(data, "load_images", images)
    letters = torch.randint(97, 123, (3000,), generator=generator)
    monkeypatch.setattr(data, "load_text", lambda name: letters.to(torch.uint8))
    monkeypatch.setattr(data, "held_out_windows", lambda: letters[: 16 * data.WINDOW].view(16, -1))


@pytest.mark.parametrize("task", data.TASKS)
def test_batches_depend_on_the_seed_alone(task):
    found = data.TASKS[task]()
    one, same, other = (list(found.batches(seed, 4)) for seed in (0, 0, 1))
    assert all(torch.equal(a, b) for x, y in zip(one, same, strict=True) for a, b in zip(x, y, strict=True))
    assert not torch.equal(one[0][0], other[0][0])
    assert {len(x) for x, _ in one} == {found.batch}


def test_what_is_trained_on_is_not_tested():
    images = data.Fashion()
    parts = [images.train, images.part("validation"), images.part("test")]
    assert [len(labels) for _, labels in parts] == [72, 8, 12]
    rows = [tuple(image.flatten().tolist()) for pixels, _ in parts for image in pixels]
    assert len(set(rows)) == 92
    text = data.Text()
    windows = [tuple(row.tolist()) for part in ("validation", "test") for row in text.part(part)[0]]
    assert len(set(windows)) == len(windows) == 4 + 8


def test_the_loss_of_a_text_is_of_the_bytes_that_follow():
    tokens, targets = data.Text().part("test")
    logits = torch.zeros(*tokens.shape, data.BYTES)
    logits[:, :-1].scatter_(2, targets[..., None], 50.0)
    assert data.cross_entropy(logits, targets) < 1e-6
    assert data.score(torch.nn.Identity(), logits, targets) == data.Scores(
        float(data.cross_entropy(logits.double(), targets)), 1.0
    )
    frequencies = torch.bincount(data.Text().text.long(), minlength=256).double() + 1
    constant = (frequencies / frequencies.sum()).log().expand(*tokens.shape, -1)
    assert data.Text().known() == pytest.approx(float(data.cross_entropy(constant, targets)))


shapes = st.tuples(
    st.integers(1, 3), st.integers(1, 4), st.integers(4, 6), st.integers(4, 7), st.integers(0, 2**31)
)


def draw(shape):
    """A pair and a move at random."""
    heads, n, p, m, seed = shape
    generator = torch.Generator().manual_seed(seed)

    def some(k):
        return torch.randn(heads, n, k, generator=generator, dtype=torch.float64)

    return (some(p), some(m)), (some(p), some(m))


def inner(one, two):
    return sum(float((a * b).sum()) for a, b in zip(one, two, strict=True))


@settings(deadline=None, max_examples=40)
@given(shapes)
def test_the_vertical_part_is_an_orthogonal_projection_that_the_product_does_not_see(shape):
    at, move = draw(shape)
    found = orbits.vertical(at, move)
    again = orbits.vertical(at, found)
    size = inner(move, move)
    # float64 and the condition of Grams of at most 4 random rows among at least 4
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(found, again, strict=True))
    assert inner(found, found) == pytest.approx(inner(found, move), abs=1e-5 * size)
    assert 0 < inner(found, found) < size
    product = found[0].mT @ at[1] + at[0].mT @ found[1]
    assert float(product.abs().max()) < 1e-5


@settings(deadline=None, max_examples=40)
@given(shapes)
def test_a_gradient_of_a_function_of_products_is_horizontal(shape):
    (p, m), (slope, other) = draw(shape)
    outer = slope.mT @ other
    gradient = m @ outer.mT, p @ outer  # of <p^T m, outer>
    found = orbits.vertical((p, m), gradient)
    assert inner(gradient, gradient) > 0
    assert inner(found, found) < 1e-12 * inner(gradient, gradient)


def test_a_head_that_another_basis_disguises_is_balanced_by_none():
    eye = torch.eye(3, dtype=torch.float64)[None]
    assert float(orbits.imbalance((eye, eye)).abs().max()) == 0
    assert float(orbits.imbalance((2 * eye, eye / 2)).abs().max()) == 3.75


@pytest.mark.parametrize("task", data.TASKS)
def test_adam_wanders_and_plain_gradient_descent_does_not(task):
    shares = {}
    for name, kind in {"sgd": torch.optim.SGD, "adam": torch.optim.AdamW}.items():
        model = Standard(task, 0)
        for parameter in model.parameters():  # biases and gains that matter
            torch.nn.init.normal_(parameter, std=0.2)
        wander = orbits.Wander(orbits.Orbit(model.model), every=1)
        assert len(wander.start) == 8, "query-key and value-output of four layers"
        optimizer = kind(model.parameters(), lr=1e-4)
        for step, (x, y) in enumerate(data.TASKS[task]().batches(0, 2)):
            data.cross_entropy(model(x[:4]), y[:4]).backward()
            assert wander.stepping(step)
            optimizer.step()
            optimizer.zero_grad()
            wander.stepped()
        report = wander.report()
        assert report is not None
        shares[name] = report["vertical"]
    # float32 weights lose about 1e-4 of so small a step of gradient descent
    assert shares["sgd"] < 0.02 < 0.1 < shares["adam"] < 1


def test_the_learning_rate_rises_and_falls():
    rates = [learning_rate(2.0, step, 100, 10) for step in range(100)]
    assert rates[0] == pytest.approx(0.2)
    assert max(rates) == rates[9] == rates[10] == 2.0
    assert rates == [*sorted(rates[:10]), *sorted(rates[10:], reverse=True)]
    assert 0 < rates[-1] < 0.01


def test_a_run_is_repeated_bit_for_bit_and_tells_what_it_did():
    arm = ARMS["standard"]
    task = data.Fashion()
    one, two = (run(arm, task, 0, 1e-3, steps=3, warmup=1) for _ in range(2))
    assert one["test"] == two["test"] != one["validation"]
    assert one["finite"]
    assert one["losses"] == two["losses"]
    assert len(one["losses"]) == 3
    assert one["orbit"]["vertical"] > 0


def test_a_run_that_is_not_finite_stops():
    found = run(ARMS["standard"], data.Text(), 0, 1e30, steps=50, warmup=1)
    assert not found["finite"]
    assert found["validation"] is found["test"] is found["orbit"] is None
    assert len(found["losses"]) < 20
    assert all(map(math.isfinite, found["losses"]))


@pytest.mark.parametrize("name", ARMS)
def test_every_arm_learns_what_a_batch_says(name):
    task = data.Fashion()
    task.train = task.train[0][:32], task.train[1][:32]
    model = ARMS[name].model("fashion", 0)
    before = [p.detach().clone() for p in model.parameters()]
    found = fit(ARMS[name], task, model, 0, 3e-3, 12, 2)
    assert found["losses"][-1] < found["losses"][0] - 0.02
    assert any(not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert (found["orbit"] is None) == (name == "forms"), "only full forms have no gauge"


def measured(loss, accuracy=0.5, vertical=0.2):
    """A run, as results have it."""
    scores = None if loss is None else {"loss": loss, "accuracy": accuracy}
    orbit = dict.fromkeys(("vertical", "walked", "drift", "imbalance_start", "imbalance"), vertical)
    return {
        "parameters": 1000, "validation": scores, "test": scores, "seconds": 3.0, "processor_seconds": 2.0,
        "milliseconds": {"gradient": 10.0, "update": 1.0}, "orbit": orbit,
    }  # fmt: skip


def fill(results, arm, losses, seeds=(), vertical=0.2):
    """Results of an arm: losses in the order of `GRID`, and those of further seeds at the best rate."""
    for rate, loss in zip(GRID, losses, strict=True):
        results.put(Cell(arm, rate, 0).key, measured(loss, vertical=vertical))
    for seed, loss in zip(SEEDS[1:], seeds, strict=False):
        results.put(Cell(arm, best_rate(results, arm) or 0, seed).key, measured(loss, vertical=vertical))


@pytest.fixture
def results(tmp_path):
    """No runs yet; knowing frequencies gives 2.3 nats."""
    found = Results(tmp_path / "fashion.json", {})
    found.put(FREQUENCIES, {"test": {"loss": 2.3}})
    return found


def test_middle_rates_come_first_and_seeds_last(results):
    arms = ["standard", "forms"]
    first = list(missing(results, arms))
    assert [cell.rate for cell in first] == [rate for rate in RATES for _ in arms]
    assert {cell.seed for cell in first} == {0}
    fill(results, "forms", [1.0, 0.8, None, 0.9, 2.0])
    left = list(missing(results, arms))
    assert left[: len(RATES)] == [Cell("standard", rate, 0) for rate in RATES]
    assert left[len(RATES) :] == [Cell("forms", GRID[1], seed) for seed in SEEDS[1:]]
    fill(results, "standard", [None] * 5)
    assert list(missing(results, arms)) == [Cell("forms", GRID[1], seed) for seed in SEEDS[1:]]


def seen(found):
    """A range without the rounding of its logarithms."""
    return round(found.decades, 9), found.open


def test_the_width_of_a_range_of_rates():
    losses = {1e-4: 1.0, 1e-3: 0.5, 1e-2: 0.5, 1e-1: math.inf}
    assert seen(width(losses, 0.6)) == (1.2, False), "a fifth of a decade towards 1e-4, none towards infinity"
    assert width(losses, 0.4) is None
    assert seen(width(losses, 1.0)) == (2.0, True)
    assert width({1e-3: 0.5}, 0.6) == Range(0.0, True)
    assert seen(width({1e-4: 0.5, 1e-3: 0.9, 1e-2: 0.5}, 0.6)) == (0.25, True), "not past a bad rate"


def test_what_is_within_the_spread_is_not_claimed(results):
    fill(results, "standard", [1.0, 0.6, 0.7, 0.9, 1.5], (0.7, 0.8))
    fill(results, "quotient", [1.0, 0.62, 0.7, 0.9, 1.5], (0.69, 0.79))
    fill(results, "relational", [0.49, 0.48, 0.4, 0.45, 0.41], (0.51, 0.6), vertical=0.1)
    fill(results, "forms", [1.0, 1.9, None, 2.4, 1.2], (1.2, 1.1), vertical=0.1)
    text = " ".join(said.of_quality(Summary(results), tables.LABELS))
    better, worse, level = text.split(". ")
    assert "lower" in better
    assert "relational (rank 16)" in better
    assert "-0.1967 ± 0.0058 nats" in better
    assert "higher" in worse
    assert "full forms" in worse
    assert "nothing is claimed" in level
    assert "quotient" in level
    overall = said.overall([Summary(results)], tables.LABELS)
    assert "Of 3 comparisons" in overall
    assert "lower in 1, higher in 1, and within the spread over seeds in 1." in overall
    stable = " ".join(said.of_stability(Summary(results), tables.LABELS))
    assert "Failed runs: relational (full forms) at 0.003, 0.01." in stable
    assert "Wider by more than a step of the sweep: relational (rank 16)" in stable
    assert "No smaller share, or within the spread: quotient AdamW" in " ".join(
        said.of_orbit(Summary(results), tables.LABELS)
    )


def test_one_seed_claims_nothing(results):
    fill(results, "standard", [1.0, 0.6, 0.7, 0.9, 1.5])
    fill(results, "relational", [1.0, 0.1, 0.7, 0.9, 1.5])
    assert "lower" not in " ".join(said.of_quality(Summary(results), tables.LABELS))


def test_the_page_shows_what_there_is(results):
    fill(results, "standard", [1.0, 0.6, 0.7, 0.9, 1.5], (0.7, 0.8))
    fill(results, "forms", [1.0, 0.9, None, 2.4, 1.1])
    results.put(Cell("invariant", RATES[0], 0).key, measured(0.9))
    page = tables.page({"fashion": Summary(results)})
    row = "| AdamW (standard) | 1,000 | 0.001 | 3 | 0.7000 ± 0.1000 | 50.00 ± 0.00 |"
    assert row in page
    assert "| relational (full forms) | 1.000 | 0.900 | failed | failed | 1.100 | 1.520 | 2 of 5 |" in page
    assert "| invariant Adam | – | – | 0.900 | – | – | – | 0 of 1 | – | – |" in page
    assert "Not run" not in page
    assert loss_of(results.get(FREQUENCIES)) == 2.3
    assert f"within {NEAR} nats" in page
