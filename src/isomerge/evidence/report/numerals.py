"""Figures as people read them."""

from __future__ import annotations

from math import inf


def figure(x: float, digits: int = 3) -> str:
    """Three significant digits, never an exponent below a million: ``0.0361``, ``1.21``, ``136 000``."""
    if x == 0:
        return "0"
    if abs(x) < 5e-5:
        return "< 0.0001" if x > 0 else "−0"
    if abs(x) >= 1000:
        return f"{x:,.0f}".replace(",", " ")
    text = f"{x:.{digits}g}"
    if "e" in text:
        text = f"{x:.6f}".rstrip("0")
    return text.replace("-", "−")


def ratio(x: float) -> str:
    """A distance in parts of a norm: two decimals, more where it is small."""
    if x == inf:
        return "infinitely many times"
    if x == 0 or x >= 0.095:
        return f"{x:.2f}" if x < 99.995 else figure(x)
    return figure(x, 2)


def nats(x: float) -> str:
    """A loss or a barrier, three decimals."""
    if abs(x) < 5e-4:
        return "0.000"
    return f"{x:.3f}".replace("-", "−")


def percent(x: float) -> str:
    """A share as per cent."""
    return f"{100 * x:.1f} %"


def count(n: int) -> str:
    """A number of parameters or steps: ``136 138``, ``7.24 billion``."""
    for size, word in ((10**12, "trillion"), (10**9, "billion"), (10**6, "million")):
        if n >= size:
            return f"{n / size:.3g} {word}"
    return f"{n:,}".replace(",", " ")


def size_text(n: float) -> str:
    """Bytes."""
    for unit in ("B", "kB", "MB", "GB"):
        if n < 999.5:
            return f"{n:.3g} {unit}"
        n /= 1000
    return f"{n:.3g} TB"
