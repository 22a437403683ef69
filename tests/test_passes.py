"""One pass widens, measures and rounds as torch does, to the last bit; what it tells is what float64 tells."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from isomerge import loops, passes
from isomerge.fusion.linear import MIXED
from isomerge.passes import BITS, NotFiniteError, Pass

HALVES = (torch.bfloat16, torch.float16)
BYTES = (torch.float8_e4m3fn, torch.float8_e5m2)
STORED = (*HALVES, *BYTES, torch.float32, torch.float64)


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces of a hundred entries."""
    monkeypatch.setattr(passes, "PIECE", 100)


def entries(dtype: torch.dtype, count: int, seed: int = 0) -> torch.Tensor:
    """Noise in a stored type, with zeros of both signs and its smallest numbers."""
    x = torch.randn(count, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    info = torch.finfo(dtype)
    x[:4] = torch.tensor([0.0, -0.0, info.smallest_normal, -info.smallest_normal * info.eps])
    return x.to(dtype)


def widened(x: torch.Tensor, wide: torch.dtype) -> Iterator[torch.Tensor]:
    """All pieces of a tensor."""
    yield from (part.clone() for (part,) in Pass([x], wide).pieces())


@pytest.mark.parametrize("dtype", [*HALVES, *BYTES], ids=str)
def test_every_number_of_a_type_is_widened(dtype: torch.dtype) -> None:
    """All bits that there are: subnormal ones, zeros, infinities and what is no number."""
    every = torch.arange(1 << (8 * dtype.itemsize), dtype=torch.int64).to(BITS[dtype]).view(dtype)
    wide = torch.cat(list(widened(every, torch.float32)))
    assert torch.equal(wide.view(torch.int32)[~wide.isnan()], every.float().view(torch.int32)[~wide.isnan()])
    assert torch.equal(wide.isnan(), every.float().isnan())


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_every_exponent_is_rounded_to_nearest_even(dtype: torch.dtype) -> None:
    """Random bits of float32, halves between two numbers, and the edges of the type, as torch rounds them."""
    bits = np.random.default_rng(0).integers(0, 1 << 32, 200_000, dtype=np.uint32)
    bits[::3] &= np.uint32(0xFFFFF000)  # ties of float16
    bits[::5] = (bits[::5] & np.uint32(0xFFFF0000)) | np.uint32(0x8000)  # of bfloat16
    x = torch.from_numpy(bits.view(np.float32))
    info = torch.finfo(dtype)
    edges = [info.max, info.max * (1 + info.eps / 4), info.max * (1 + info.eps / 2), info.smallest_normal, 65520.0]
    x = torch.cat([x[~x.isnan()], torch.tensor([s * e for e in edges for s in (1, -1)], dtype=torch.float32)])
    out = torch.empty(len(x), dtype=dtype)
    passes._rounded(x, out)
    assert torch.equal(out.view(torch.int16), x.to(dtype).view(torch.int16))


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("wide", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("dtype", STORED, ids=str)
def test_it_tells_what_float64_tells(dtype: torch.dtype, wide: torch.dtype) -> None:
    """Norms, distances from whichever is the anchor, largest magnitudes, and those of the result before it is
    rounded; what is stored in full precision to the last digits."""
    if dtype == torch.float64:
        wide = dtype
    every = [entries(dtype, 1003, seed) for seed in range(3)]
    reading, out = Pass(every, wide, anchor=1), torch.empty(1003, dtype=dtype)
    reading.run(lambda parts: (parts[0] + parts[2]) * 0.5, out)
    tolerance = 1e-12 if dtype.itemsize > 2 else 1e-6
    for x, sums in zip(every, reading.sums, strict=True):
        exact, anchor = x.double(), every[1].double()
        assert sums.square == pytest.approx(float(exact.square().sum()), rel=tolerance)
        assert sums.gap == pytest.approx(float((exact - anchor).square().sum()), rel=tolerance)
        assert sums.largest == float(exact.abs().max())
    result = (every[0].to(wide) + every[2].to(wide)) * 0.5
    assert reading.result.largest == float(result.abs().max())
    assert reading.result.square == pytest.approx(float(result.double().square().sum()), rel=1e-6)
    assert torch.equal(out.view(torch.uint8), result.to(dtype).view(torch.uint8))


def test_sums_do_not_depend_on_what_else_is_read() -> None:
    """The same to the last bit alone and beside others, and in either place of a file."""
    x, y = entries(torch.bfloat16, 20_001), entries(torch.float32, 20_001, 1)
    alone, beside = Pass([x], torch.float32), Pass([y, x], torch.float32, anchor=1)
    alone.run()
    beside.run()
    assert alone.sums[0].square == beside.sums[1].square
    apart = torch.cat([torch.zeros(3, dtype=x.dtype), x])[3:]
    shifted = Pass([apart], torch.float32)
    shifted.run()
    assert shifted.sums[0] == alone.sums[0]


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("out", [*HALVES, torch.float32], ids=str)
@pytest.mark.parametrize("bad", [None, float("inf"), 3e38], ids=str)
def test_an_average_in_one_loop_is_that_of_the_method(bad: float | None, out: torch.dtype) -> None:
    """To the last bit, of every mixture of types, and so is all that is told; where sums are not finite as well.

    Products and sums that are rounded together (``fastmath`` of loops with rules) fail here."""
    for seed in range(12):
        rng = np.random.default_rng(seed)
        dtypes = [STORED[k] for k in rng.integers(5, size=1 + seed % 4)]
        every = [entries(dtype, 1003, k) for k, dtype in enumerate(dtypes)]
        if bad is not None:
            every[-1][500] = bad
        told, weight = [], rng.normal(size=len(every)).tolist()
        mixed = MIXED([[share] for share in weight])
        for made in (lambda parts, mixed=mixed: mixed(parts), mixed):
            seen: list[object] = []
            reading = Pass(
                every, torch.float32, anchor=seed % len(every), seen=lambda _, f, seen=seen: seen.append(f)
            )
            result, error = torch.zeros(1003, dtype=out), None
            try:
                reading.run(made, result)
            except NotFiniteError as raised:
                error = type(raised)
            told.append([result.view(torch.uint8).tolist(), str(reading.sums), str(reading.result), error, seen])
        assert told[0] == told[1]


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("dtype", STORED, ids=str)
def test_what_is_not_finite_is_told_before_it_is_computed_with(dtype: torch.dtype) -> None:
    """Which tensor it is; what squares of float32 cannot hold is finite."""
    bad = entries(dtype, 300)
    bad[150] = float("nan")
    seen, computed = [], []
    reading = Pass([entries(dtype, 300), bad], torch.float32, seen=lambda stored, finite: seen.append(finite))
    for _ in reading.pieces():
        computed.append(len(seen))
    assert seen == [[True, True], [True, False], [True, True]]
    assert computed == [1, 2, 3]
    if dtype in (torch.bfloat16, torch.float32):
        large = Pass([torch.full((64,), 2.0**127).to(dtype)], torch.float32)
        large.run()
        assert large.sums[0].square == 2.0**260


@pytest.mark.parametrize(
    ("dtype", "value"),
    [(torch.float16, 65520.0), (torch.bfloat16, 3.4e38), (torch.float8_e4m3fn, 1e3), (torch.float32, float("inf"))],
    ids=str,
)
@pytest.mark.usefixtures("short")
def test_a_result_that_does_not_fit_is_refused(dtype: torch.dtype, value: float) -> None:
    """In the type that it is stored in, and not one digit before."""
    x, out = torch.zeros(250), torch.empty(250, dtype=dtype)
    for fits in (torch.finfo(dtype).max, -torch.finfo(dtype).max):
        x[-1] = fits
        Pass([x], torch.float32).run(lambda parts: parts[0], out)
        assert float(out[-1]) == fits
    x[-1] = value
    with pytest.raises(NotFiniteError):
        Pass([x], torch.float32).run(lambda parts: parts[0], out)


def test_where_nothing_can_be_kept_loops_run_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """No folder for what is compiled costs time, never an error; nor does a full one."""

    class Full:
        def __init__(self, raises: bool) -> None:
            self.raises = raises

        def __call__(self, *_: object) -> None:
            if not self.raises:
                raise OSError(28, "No space left on device")
            ran.append("without a folder")

    def no_folder(_: object) -> None:
        raise RuntimeError("no locator available")

    ran: list[str] = []
    compiled = loops.compiled.__wrapped__
    with monkeypatch.context() as patch:
        patch.setattr(loops.numba, "njit", lambda **_: lambda loop: Full(raises=True))
        patch.setattr(loops, "_Kept", no_folder)
        compiled(loops.count_high)()
        assert ran == ["without a folder"]
        patch.setattr(loops, "_Kept", lambda _: None)
        kept = iter([Full(raises=False), lambda *_: ran.append("without room")])
        patch.setattr(loops.numba, "njit", lambda **_: lambda loop: next(kept))
        compiled(loops.count_high)()
    assert ran[1:] == ["without room"]
