"""Verify where gauges fail: heads without full rank, neurons that write nothing, and gauges that rounding has
spoilt."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import isomerge
from depth import more
from isomerge.cli.program import app
from isomerge.evidence.verify import Comparison, Residual, contradiction
from isomerge.matching.products import Sides, close_orbits, tied
from isomerge.models.recognised import recognise
from isomerge.models.unit_plan import make_plan
from solve.disguises import disguise, perturb, turn, write_like
from toys import outputs, relative, save_toy

Change = Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]


def shrink(x: torch.Tensor, least: float) -> torch.Tensor:
    """Every other head's side [b, n, p] made small in some direction, down to this share."""
    n = x.shape[1]
    q = torch.linalg.qr(torch.randn(n, n, generator=torch.Generator().manual_seed(1), dtype=torch.float64)).Q
    x = x.clone()
    x[::2] = (q * torch.logspace(0, torch.tensor(least).log10().item(), n, dtype=torch.float64)) @ q.mT @ x[::2]
    return x


CHANGES: dict[str, tuple[str, Change]] = {
    "queries without rank": ("GL", lambda x, y: (shrink(x, 1e-9), y)),
    "thin on both sides": ("GL", lambda x, y: (shrink(x, 1e-4), shrink(y, 1e-4))),
    "nothing is attended": ("GL", lambda x, y: (torch.zeros_like(x), y)),
    "idle neurons": ("Scale", lambda x, y: (torch.cat([0 * x[:3], x[3:]]), torch.cat([y[:5], 0 * y[5:8], y[8:]]))),
    "idle neurons behind ReLU": (
        "PositiveScale",
        lambda x, y: (torch.cat([0 * x[:3], x[3:]]), torch.cat([y[:5], 0 * y[5:8], y[8:]])),
    ),
}


def elements(folder: Path, found: dict[str, torch.Tensor]) -> Iterator[Sides]:
    """The two sides of every element of a checkpoint's non-compact spaces, as views of its tensors."""
    model = recognise(folder)
    plan = make_plan(model, [], "default")
    for unit in plan.units:
        yield from tied(plan.selection.spec, {b: found[model.names[b.canonical[0]]] for b in unit.blocks})


def changed(folder: Path, out: Path, kind: str) -> Path:
    """A copy in which the elements of one group are changed."""
    group, change = CHANGES[kind]

    def apply(found: dict[str, torch.Tensor]) -> None:
        hit = [sides for sides in elements(folder, found) if sides.space.group_name == group]
        assert hit
        for sides in hit:
            sides.write(*change(*sides.stacked()))

    return write_like(folder, out, apply)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("gpt2-untied", "queries without rank"),
        ("bert", "thin on both sides"),
        ("bert", "nothing is attended"),
        ("llama", "idle neurons"),
        ("bert-relu", "idle neurons behind ReLU"),
        *more(("bert", "queries without rank")),
    ],
)
def test_products_decide_where_gauges_fail(name: str, kind: str, tmp_path: Path) -> None:
    """A twin in float32 is the same, and a twin with one row a tenth larger is another function."""
    a = changed(save_toy(name, tmp_path / "a", dtype=torch.float32), tmp_path / "weak", kind)
    twin = turn(name, a, tmp_path / "twin", 3)
    report = isomerge.verify(a, twin)
    assert report["same"] is True, report["residual"]
    assert report["dead_blocks"] or kind == "thin on both sides"

    def row(found: dict[str, torch.Tensor]) -> None:
        parts = ("query.weight", "c_attn.weight") if CHANGES[kind][0] == "GL" else ("embed",)
        parts = ("embed",) if kind == "nothing is attended" else parts  # where a query changes nothing
        next(t for n, t in found.items() if t.ndim == 2 and any(p in n for p in parts))[9] *= 1.1

    assert isomerge.verify(a, write_like(twin, tmp_path / "other", row))["same"] is False


def test_what_rounding_may_explain_cannot_be_told(tmp_path: Path) -> None:
    """A gauge of condition 1e7 leaves a tenth of the digits that float32 has: neither the same nor different."""
    a = save_toy("bert", tmp_path / "a", dtype=torch.float32)
    twin = disguise("bert", a, tmp_path / "twin", 3, condition=1e7)
    assert 1e-3 < relative(outputs(twin), outputs(a)) < 1
    got = CliRunner().invoke(app, ["verify", str(a), str(twin), "--json", str(tmp_path / "r.json")])
    assert got.exit_code == 3
    report = json.loads((tmp_path / "r.json").read_text())
    assert report["same"] is None
    assert report["residual"]["tensor"].startswith(("products of qk[", "products of ov["))
    assert report["residual"]["largest"] < report["residual"]["rounding"]
    assert "Cannot tell: " + report["residual"]["tensor"] in got.output
    assert "cannot tell" in isomerge.diff(a, twin)["verdict"]["sentence"]
    far = perturb(twin, tmp_path / "far", 0.5, only="intermediate")
    assert isomerge.verify(a, far)["same"] is False


def test_closing_an_orbit_keeps_products(tmp_path: Path) -> None:
    """Balanced factors exist without full rank, have equal Grams, and the products of what they replace."""
    a = changed(save_toy("gpt2", tmp_path / "a"), tmp_path / "weak", "queries without rank")
    model = recognise(a)
    plan = make_plan(model, [], "default")
    for unit in plan.units:
        blocks = {block: model.assemble(block, torch.float64).clone() for block in unit.blocks}
        before = {sides.key: sides.stacked() for sides in tied(plan.selection.spec, blocks)}
        assert close_orbits(plan.selection.spec, blocks) == []
        for sides in tied(plan.selection.spec, blocks):
            (x, y), (v, w) = before[sides.key], sides.stacked()
            assert torch.allclose(v.mH @ w, x.mH @ y, atol=1e-12)
            assert torch.allclose(v @ v.mH, w @ w.mH, atol=1e-12)
            assert not torch.allclose(v, x, atol=1e-3)


def test_outputs_may_contradict(tmp_path: Path) -> None:
    """A sentence where algebra and outputs disagree, which leaves the verdict open, and none where they agree."""

    def said(same: bool | None, outputs: float, tolerance: float) -> str | None:
        return contradiction(Comparison(same, residual=Residual(0.5, "x", tolerance)), outputs)

    assert "may not be what its config.json" in (said(True, 0.1, 1e-4) or "")
    assert "rare tokens" in (said(False, 0.0, 1e-4) or "")
    quiet = [(True, 1e-4, 1e-4), (True, 0.2, 3e-2), (False, 1e-3, 1e-4), (None, 0.5, 1e-4), (None, 0.0, 1e-4)]
    assert [said(*case) for case in quiet] == [None] * len(quiet)
    a = save_toy("bert", tmp_path / "a", dtype=torch.float32)
    table = "bert.embeddings.position_embeddings.weight"  # runs are of 16 tokens: the last position is never read

    def edit(found: dict[str, torch.Tensor]) -> None:
        found[table][-1] *= 2

    b = write_like(a, tmp_path / "b", edit)
    got = CliRunner().invoke(app, ["verify", str(a), str(b), "--run", "--json", str(tmp_path / "r.json")])
    assert got.exit_code == 3
    assert "Cannot tell: embeddings.position_embeddings.weight differs by" in got.output
    report = json.loads((tmp_path / "r.json").read_text())
    assert (report["same"], report["algebra"], report["reason"]) == (None, False, report["contradiction"])
    assert CliRunner().invoke(app, ["verify", str(a), str(b)]).exit_code == 1


def test_outputs_that_differ_leave_equal_weights_open(tmp_path: Path) -> None:
    """Equal weights under configs that differ in what no spec declares: no verdict, and the key is named; with
    --run, what outputs say."""
    a, b = (save_toy("gpt2", tmp_path / name, dtype=torch.float32) for name in "ab")
    config = json.loads((b / "config.json").read_text())
    (b / "config.json").write_text(json.dumps({**config, "bos_token_id": 5, "attn_pdrop": 0.5}))
    report = isomerge.verify(a, b)
    assert (report["same"], report["algebra"]) == (None, True)
    assert "config.json differs in bos_token_id (50256 and 5)" in report["reason"]
    (b / "config.json").write_text(json.dumps({**config, "attn_pdrop": 0.5}))
    assert isomerge.verify(a, b)["same"] is True
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("isomerge.api.comparing.compare_outputs", lambda *_: {"logits": 0.3})
        got = CliRunner().invoke(app, ["verify", str(a), str(b), "--run"])
    assert got.exit_code == 3
    assert "one of the models may not be what its config.json and the spec say" in got.output


def test_what_explains_outputs_is_named_with_them(tmp_path: Path, capfd: pytest.CaptureFixture) -> None:
    """The same weights in a class with a window, which the first one's does not know: the window is named, with and
    without --run, and nobody says that the functions are the same; transformers prints no tables."""
    a, b = (save_toy("llama", tmp_path / name, dtype=torch.float32) for name in "ab")
    config = json.loads((b / "config.json").read_text())
    config |= {"model_type": "mistral", "architectures": ["MistralForCausalLM"], "sliding_window": 4}
    (b / "config.json").write_text(json.dumps(config))
    capfd.readouterr()
    for options in ([], ["--run"]):
        got = CliRunner().invoke(app, ["verify", str(a), str(b), *options, "--json", str(tmp_path / "r.json")])
        report = json.loads((tmp_path / "r.json").read_text())
        assert (got.exit_code, report["same"], report["algebra"]) == (3, None, True)
        assert "differs in sliding_window (None and 4) and model_type ('llama' and 'mistral')" in report["reason"]
        assert ("outputs on random inputs differ by" in report["reason"]) is bool(options)
        assert "functions are the same" not in got.output
    assert "LOAD REPORT" not in "".join(capfd.readouterr())
