"""What a group must offer; every algorithm of isomerge is written against this page alone.

Elements are tensors with batch dimensions first (one element per value of the space's indices). The objective
of matching is linear in a compact element: ``<A, g B> = <C, g>`` with the cross-Gram ``C = A B^T``. The
non-compact part is removed beforehand by ``balance`` (the minimum-norm point of the orbit).
"""

from __future__ import annotations

from typing import Protocol

from torch import Generator, Tensor


class Group(Protocol):
    """A group acting on an axis of length n; stateless. ``*b`` are batch dimensions."""

    name: str
    """The name used in spec texts."""
    compact: str
    """The name of the maximal compact subgroup: what is left after balancing (itself when compact)."""

    def identity(self, batch: tuple[int, ...], n: int) -> Tensor:
        """The identity of every batch entry."""
        ...

    def sample(self, batch: tuple[int, ...], n: int, rng: Generator, condition: float = 4.0) -> Tensor:
        """A random element; non-compact groups have singular values within a ratio of ``condition``."""
        ...

    def act(self, g: Tensor, x: Tensor, dual: bool) -> Tensor:
        """Apply g (by its inverse transpose when ``dual``) to the last axis of ``x`` [*b, r, n]."""
        ...

    def act_diagonal(self, g: Tensor, x: Tensor, dual: bool) -> Tensor:
        """The diagonal of ``g diag(x) g^-1`` on the last axis of ``x`` [*b, r, n].

        A fibre of scales acts on a gain as on a vector: its other side is the norm's own output, which has none.

        Raises:
            IsomergeError: the result is not diagonal (a rotation of a gain that is not constant).
        """
        ...

    def compose(self, g: Tensor, h: Tensor) -> Tensor:
        """The element that acts like h first, then g."""
        ...

    def inverse(self, g: Tensor) -> Tensor:
        """The inverse element."""
        ...

    def contains(self, g: Tensor) -> bool:
        """Whether every entry of ``g`` (of the right shape) is an element."""
        ...

    def solve(self, cross: Tensor) -> tuple[Tensor, Tensor]:
        """The compact element that maximises ``<C, g>`` for ``cross`` C [*b, n, n], and its score [*b]."""
        ...

    def score(self, cross: Tensor) -> Tensor:
        """The score of ``solve`` alone [*b]; cheaper where the element is not needed."""
        ...

    def contract(self, g: Tensor, cross: Tensor) -> Tensor:
        """``<C, g>`` [*b] of a compact element."""
        ...

    def balance(self, plus: Tensor, minus: Tensor) -> tuple[Tensor, Tensor] | None:
        """The element that moves to the minimum-norm point, from self-Grams [*b, n, n]; None when compact.

        The second result [*b] is True where the orbit is not closed (a dead or rank-deficient block): there
        the identity is returned.
        """
        ...

    def dimension(self, n: int) -> int:
        """The number of continuous parameters of one element."""
        ...

    def generators(self, n: int) -> Tensor:
        """A basis of the Lie algebra, float64 [dimension, *element]: the identity and t times one of them is an
        element to first order in t."""
        ...
