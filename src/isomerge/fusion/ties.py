"""TIES (Yadav et al. 2023, TIES-Merging: Resolving Interference When Merging Models)."""

from __future__ import annotations

from isomerge.fusion.task_vectors import sparse_method
from isomerge.fusion.trimming import largest

ties = sparse_method(
    "ties",
    largest,
    elects=True,
    normalize=True,
    about="""Trim, elect, merge: task vectors keep their largest entries, and of these only those of the elected
    sign.

    ``base + lambda (sum_m w_m d_m [sign(w_m d_m) = s]) / (sum_m w_m [sign(w_m d_m) = s])`` with the trimmed task
    vectors ``d_m`` and ``s = sign(sum_m w_m d_m)``, entry by entry.
    """,
)
