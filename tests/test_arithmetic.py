"""MKL's reproducible mode: asked for before torch computes, told by MKL itself, a user's own choice kept, children
included."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import torch

from isomerge import arithmetic

TELL = "from isomerge.arithmetic import *; import json; print(json.dumps([mkl_mode(), arithmetic_notes()]))"
PRODUCT = "import torch; x = torch.ones(9, 9); x @ x;"
MINE = arithmetic.mkl_mode()
mkl = pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="no MKL in torch on this processor")


def told(code: str, **variables: str) -> tuple[str, list[str]]:
    """The mode and what is said of it, in a fresh interpreter."""
    environment = {name: value for name, value in os.environ.items() if name != arithmetic.VARIABLE}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment | variables, capture_output=True, text=True, check=True
    )
    return tuple(json.loads(done.stdout))


@mkl
def test_the_mode_is_set_before_torch_computes() -> None:
    """By the import alone, before torch or after it; and in the processes that are started from there."""
    nested = (
        f"import isomerge, subprocess, sys; subprocess.run([sys.executable, '-c', {PRODUCT + TELL!r}], check=True)"
    )
    for code in (f"import isomerge; {PRODUCT} {TELL}", f"import torch; {TELL}", nested):
        assert told(code) == ("AUTO", []), code


@mkl
def test_a_choice_of_ones_own_wins() -> None:
    """Another mode, and none, which is told."""
    assert told(f"import isomerge; {TELL}", MKL_CBWR="COMPATIBLE") == ("COMPATIBLE", [])
    mode, (note,) = told(f"import isomerge; {TELL}", MKL_CBWR="")
    assert mode == "OFF"
    assert "MKL_CBWR= keeps MKL out of its reproducible mode (unset it)" in note


@mkl
def test_a_mode_that_needs_one_thread_gets_it() -> None:
    """Before the first tensor is read, and again where somebody asks for more later; other modes keep their
    threads."""
    code = (
        "import isomerge, torch, json; from isomerge.arithmetic import *; torch.set_num_threads(3);"
        "is_reproducible(); torch.set_num_threads(2); is_reproducible();"
        "print(json.dumps([str(torch.get_num_threads()), arithmetic_notes()]))"
    )
    threads, (note,) = told(code, MKL_CBWR="COMPATIBLE")
    assert threads == "1"
    assert "computed on one thread instead of 3" in note
    assert told(code, MKL_CBWR="AUTO") == ("2", [])


@mkl
def test_too_late_is_told() -> None:
    """Where torch has computed before: MKL's own word, not the variable's."""
    mode, (note,) = told(f"{PRODUCT} {TELL}")
    assert mode == "OFF"
    assert "torch had computed before isomerge was imported" in note
    assert "copied to aligned memory" in note


def test_what_is_mapped_is_copied_where_that_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    """And only there: with MKL that does not answer, or another library, nothing is proven."""
    odd = torch.arange(64.0)[2:34]
    for mode in ("AUTO", "COMPATIBLE", "AVX2,STRICT"):
        monkeypatch.setattr(arithmetic, "mkl_mode", lambda mode=mode: mode)
        assert arithmetic.aligned(odd) is odd
        assert arithmetic.arithmetic_notes() == []
    for mode in (arithmetic.OFF, arithmetic.UNKNOWN, arithmetic.NONE):
        monkeypatch.setattr(arithmetic, "mkl_mode", lambda mode=mode: mode)
        copy = arithmetic.aligned(odd)
        assert torch.equal(copy, odd)
        assert copy.data_ptr() % 64 == 0
        assert bool(arithmetic.arithmetic_notes()) == (mode == arithmetic.OFF)


@mkl
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_products_do_not_depend_on_places(dtype: torch.dtype) -> None:
    """Of matrices, vectors and stacks, and decompositions, at every place; these tests themselves run in the
    mode."""
    assert arithmetic.is_reproducible(), MINE
    rng = torch.Generator().manual_seed(0)
    x, y, z = (torch.randn(*shape, dtype=dtype, generator=rng) for shape in ((65, 64), (64, 33), (5, 65, 64)))

    def placed(t: torch.Tensor, at: int) -> torch.Tensor:
        room = torch.empty(t.numel() + 16, dtype=dtype)
        return room[at // room.element_size() :][: t.numel()].view(t.shape).copy_(t)

    def results(at: int) -> list[torch.Tensor]:
        a, b, c = (placed(t, at) for t in (x, y, z))
        flat = c.view(5, -1)
        return [
            a @ b,
            a @ a.T,
            a @ b[:, 0],
            a[0] @ a[1],
            c @ b,
            flat @ flat.T,
            *torch.linalg.svd(a.T @ a),
            torch.cdist(a, a),
        ]

    wanted = results(0)
    for at in range(8, 64, 8):
        assert all(map(torch.equal, results(at), wanted)), at
