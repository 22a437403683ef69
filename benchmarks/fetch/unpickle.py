"""Rewrite a pickled state dict as safetensors, in a process of its own: `unpickle.py IN OUT [PREFIX]`.

Only tensors are unpickled (`weights_only`); PREFIX is taken off names that have it.
"""

from __future__ import annotations

import sys
from pathlib import Path


def main(source: Path, target: Path, prefix: str = "") -> None:
    import torch
    from safetensors.torch import save_file

    state = torch.load(source, map_location="cpu", weights_only=True)
    if not isinstance(state, dict) or not all(isinstance(value, torch.Tensor) for value in state.values()):
        sys.exit(f"{source.name} holds more than named tensors: it is no state dict")
    tensors = {name.removeprefix(prefix): value.detach().clone().contiguous() for name, value in state.items()}
    if len(tensors) != len(state):
        sys.exit(f"{source.name}: two tensors have one name without {prefix}")
    save_file(tensors, target, metadata={"format": "pt"})


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:])
