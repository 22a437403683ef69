"""Toys of all architectures and what is known of them, one file per family; a new file is taken by being there.

A family file declares any of these tables (`tables` has their types):

- ``TOYS``: tiny models by name, the model type first; ``MORE_TOYS``: those that only `make test-all` takes, as they
  combine what others have.
- ``NAMES``: configs and classes by the name they begin with, whose saved tensors' names are tried; ``MORE_NAMES``.
- ``HALF``: classes that leave a part out, and how the names of the spaces begin that they do not have.
- ``STREAMS``: the largest group of every stream, written out: nothing else says that a spec does not promise too little.
- ``WITHOUT_GAINS``: toys whose streams no gain stands before: there is nothing to fold before they are turned.
- ``IDLE``: spaces that a toy declares but cannot move: shifts whose biases are absent, permutations of one thing.
- ``INPUTS``: by model type, inputs other than texts or images. ``OUTPUTS``: the outputs compared, where not the logits
  alone. ``CONVERTED``: toys that transformers stores otherwise than it computes with them.
- ``MUTANTS``, ``STREAM_MUTANTS``: plausible wrong specs, which the laws refute (see `mutants`).
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from families.tables import Drawn, Saved, Streams, Toy
from mutants import Mutant, StreamMutant

FILES = [
    import_module(f"families.{p.stem}")
    for p in sorted(Path(__file__).parent.glob("[!_]*.py"))
    if p.stem != "tables"
]


def together(*tables: str) -> dict[str, Any]:
    """The tables of these names, of all files as one; a key that stands twice is an error."""
    whole: dict[str, Any] = {}
    for file in FILES:
        for key, value in ((k, v) for table in tables for k, v in getattr(file, table, {}).items()):
            assert key not in whole, f"{key!r} stands twice in {tables}, the second time in {file.__file__}"
            whole[key] = value
    return whole


def listed(table: str) -> list[Any]:
    """The entries of the tables of this name, file by file."""
    return [entry for file in FILES for entry in getattr(file, table, ())]


IN_EVERY_RUN: dict[str, Toy] = together("TOYS")
TOYS: dict[str, Toy] = together("TOYS", "MORE_TOYS")
NAMES_IN_EVERY_RUN: dict[str, Saved] = together("NAMES")
NAMES: dict[str, Saved] = together("NAMES", "MORE_NAMES")
HALF: dict[str, str | tuple[str, ...]] = together("HALF")
STREAMS: dict[str, Streams] = together("STREAMS")
WITHOUT_GAINS: set[str] = set(listed("WITHOUT_GAINS"))
IDLE: set[tuple[str, str]] = set(listed("IDLE"))
INPUTS: dict[str, Drawn] = together("INPUTS")
OUTPUTS: dict[str, tuple[str, ...]] = together("OUTPUTS")
CONVERTED: list[str] = sorted(listed("CONVERTED"))
MUTANTS: list[Mutant] = listed("MUTANTS")
STREAM_MUTANTS: list[StreamMutant] = listed("STREAM_MUTANTS")
