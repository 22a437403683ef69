"""Does a switch of a config that changes what transformers reads go unnoticed? Every switch of every toy, turned,
with its tensors left.

    python -m benchmarks.switches                 # all toys, an hour of one core; prints what is accepted
    python -m benchmarks.switches llama vit

A switch counts where the class has other tensors with it. isomerge must then refuse the checkpoint: by the spec
(sizes, names) or by what the class ignores, lacks or has in another shape.
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from isomerge.checkpoint.in_memory import in_memory
from isomerge.checkpoint.opening import open_checkpoint
from isomerge.config.agreement import read_by_transformers
from isomerge.errors import IsomergeError
from isomerge.models.recognised import recognise
from isomerge.models.transformers_reading import reading_of, switches, turned


def answers(name: str) -> Iterator[tuple[str, str]]:
    """For every switch of a toy that changes what is read: its path, and whether isomerge notices."""
    from toys import save_toy, tensors

    with tempfile.TemporaryDirectory() as folder:
        checkpoint = open_checkpoint(save_toy(name, Path(folder), dtype=torch.float32))
        weights, config, shapes = tensors(Path(folder)), checkpoint.config, checkpoint.shapes
    base = reading_of(config, shapes)
    if base is None:
        return
    whole: dict[str, Any] = {**read_by_transformers(config).to_dict(), **config}
    for path, value in switches(whole):
        changed = turned({**config, **({path[0]: whole[path[0]]} if path[0] in whole else {})}, path, not value)
        reading = reading_of(changed, shapes)
        same = reading is not None and (reading.ignored, reading.lacking, reading.reshaped) == (
            base.ignored, base.lacking, base.reshaped,
        )  # fmt: skip
        if reading is None or same:
            continue
        try:
            recognise(in_memory(weights, changed))
        except IsomergeError as error:
            yield ".".join(path), f"refused: {str(error)[:100]}"
        else:
            yield ".".join(path), f"accepted: ignored {list(reading.ignored)[:2]}, lacking {reading.lacking[:2]}"


def main() -> None:
    """Print what is accepted, and how many are refused."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    from toys import TOYS

    counts: Counter[str] = Counter()
    for name in sys.argv[1:] or TOYS:
        try:
            for path, told in answers(name):
                counts[told.partition(":")[0]] += 1
                if told.startswith("accepted"):
                    print(name, path, told, flush=True)
        except Exception as error:  # a toy that has no folder, or no config of transformers
            print(name, f"not asked ({error})"[:120], flush=True)
    print(dict(counts))


if __name__ == "__main__":
    main()
