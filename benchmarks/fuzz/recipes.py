"""Seeded mutations of recipes: other values, other bytes, and bombs that YAML allows."""

from __future__ import annotations

from random import Random

import yaml

from benchmarks.fuzz.mutations import mutate_bytes, mutate_document


def _merged(levels: int, times: int) -> str:
    """Merge keys of merge keys: ``times`` to the power of ``levels`` of them."""
    lines = ["m0: &m0 {k: 1}\n"]
    lines += [f"m{k}: &m{k} {{<<: [{', '.join([f'*m{k - 1}'] * times)}]}}\n" for k in range(1, levels)]
    return "".join(lines)


def mutate_recipe(raw: bytes, rng: Random) -> bytes:
    """A YAML text with other values or bytes, or one of the known bombs."""
    kind = rng.random()
    if kind < 0.4:
        return mutate_bytes(raw, rng)
    if kind < 0.45:
        size = rng.choice([10, 1000, 20_000])
        bombs = [
            "a0: &a0 [x]\n" + "".join(f"a{k}: &a{k} [{f'*a{k - 1}, ' * 9}]\n" for k in range(1, 25)),
            "models: &m\n- *m\n", "[" * size, "{a: " * size, "- " * size + "1", "? " * size, "a:\n" * size,
            "&a " * size + "1", "'" + "x" * size, "".join(f"k{k}: 1\n" for k in range(size)),
            "models: [" + "{model: x}, " * size + "]\n", "a: !!float " + "9" * size,
            _merged(rng.randrange(2, 9), rng.choice([3, 30])),
            "models: [{model: a, parameters: {weight: !!binary aGk=}}, {model: b}]\nmerge_method: linear\n",
            "merge_method: linear\nparameters: " + "{a: " * min(size, 300) + "1" + "}" * min(size, 300),
        ]  # fmt: skip
        return rng.choice(bombs).encode() + (raw if rng.random() < 0.5 else b"")
    document = mutate_document(yaml.safe_load(raw), rng)
    try:
        return yaml.safe_dump(document, allow_unicode=True).encode("utf-8", "surrogatepass")
    except (yaml.YAMLError, RecursionError):
        return mutate_bytes(raw, rng)
