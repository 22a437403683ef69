"""The ways to match by name: ours, and published ones, which are built on ours and loaded when they are named."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from isomerge.errors import IsomergeError
from isomerge.solve.match_options import OURS, Matching

AS_PUBLISHED, CENTRED = BY_ACTIVATIONS = ("git-rebasin-acts", "git-rebasin-acts-centred")
"""Git Re-Basin by activations: as in its paper, and a variant (docs/lab/transport.md)."""
BY_WEIGHTS = ("git-rebasin", "otfusion")
EXACT = ("git-rebasin", *BY_ACTIVATIONS, "otfusion")
"""Their result is an element of the symmetry group."""
SOFT = ("ot-wts", "ot-acts", "ot-acts-emd")
"""Their result is a fusion: the transported source is another function."""
MATCHES = (OURS, *EXACT, *SOFT)


def published() -> Any:
    """The package of the published ways to match: `isomerge.research.baselines`."""
    return import_module("isomerge.research.baselines")


def check_match(matching: Matching) -> None:
    """Refuse an unknown way to match, and options that only ours has.

    Raises:
        IsomergeError: naming the option.
    """
    if matching.match not in MATCHES:
        raise IsomergeError(f"--match {matching.match}: choose from {', '.join(MATCHES)}")
    transport = transport_of(matching)
    if matching.match == OURS:
        return
    others = {
        "--stats-src": matching.stats, "--learn": matching.learn, "--search": matching.search,
        "--input-metric": matching.input_metric,
    }  # fmt: skip
    if idle := [name for name, value in others.items() if value]:
        raise IsomergeError(f"{idle[0]} does not go with --match {matching.match}: leave one of them out")
    if reads_activations(matching) and matching.data is None:
        raise IsomergeError(f"--match {matching.match} compares activations here: add --data DATA")
    if transport is not None:
        transport.check(activations=matching.data is not None)


def transport_of(matching: Matching) -> Any:
    """The settings of a fusion by optimal transport, with what was said of them
    (`isomerge.research.baselines.transport_maps.TransportSettings`); None of other ways to match.

    Raises:
        IsomergeError: an unknown setting, or one for another way to match.
    """
    if matching.match in SOFT:
        return published().changed(published().METHODS[matching.match], matching.transport)
    if matching.transport:
        raise IsomergeError(
            f"--transport {matching.transport[0][0]} is a setting of --match {', '.join(SOFT)}: choose one of "
            f"them, or leave it out"
        )
    return None


def reads_activations(matching: Matching) -> bool:
    """Whether a baseline looks at activations, and not at weights alone."""
    if matching.match in BY_ACTIVATIONS:
        return True
    settings = transport_of(matching)
    return settings is not None and (settings.cost == "activations" or settings.residual.startswith("weighted"))
