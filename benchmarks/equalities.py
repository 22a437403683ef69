"""Adapters: how far what isomerge makes of them is from what peft and diffusers make (docs/lab/equalities.md).

python -m benchmarks.equalities     # measures all on tiny models, and writes the page

What the libraries make is stored: tests/merging/peft_reference.py and image_lora_reference.py write it in an environment
with peft. The bounds are those of the tests that hold every case.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness import DOCS, markdown, quiet, reach_tests, write_whole

PAGE = DOCS / "lab" / "equalities.md"
ABOUT = """# Adapters: equal to peft and diffusers

The largest difference between what isomerge makes of an adapter and what the library makes of it that the adapter is for, relative to the largest
entry, in float32 (0: every bit is equal, where products are not added in another order); the bound is that of the tests.
`python -m benchmarks.equalities` writes this page; what the libraries made (peft 0.21, diffusers 0.42) is stored beside the tests.
"""


@dataclass(frozen=True)
class Case:
    """One thing that is made twice."""

    what: str
    largest: float
    bound: float


def merged_adapters(root: Path) -> Iterator[Case]:
    """`merge-lora` beside peft's `add_weighted_adapter`, products of the halves; DARE with the entries that peft drew."""
    import pytest

    import isomerge
    from merging import test_merge_lora as tests
    from merging.peft_reference import DENSITY, HERE, MERGES, WEIGHTS

    for name, how in MERGES.items():
        method = how["combination_type"]
        density = DENSITY if method.startswith(("ties", "dare", "magnitude")) else None
        sign = how.get("majority_sign_method", "total")
        adapters = [HERE / key for key in how["adapters"]]
        with pytest.MonkeyPatch.context() as patch:
            tests.with_pefts_masks(name, patch)
            isomerge.merge_lora(
                adapters, out=root / name, method=method, weights=WEIGHTS, rank=how.get("svd_rank"), density=density,
                majority_sign=sign,
            )  # fmt: skip
        worst = 0.0
        for module, (b, a, _) in tests.updates(root / name).items():
            wanted = tests.PEFT[f"{name}/{module}.B"].flatten(1) @ tests.PEFT[f"{name}/{module}.A"].flatten(1)
            made = b.flatten(1) @ a.flatten(1)
            worst = max(worst, float((made - wanted).abs().max() / wanted.abs().max()))
        yield Case(f"`merge-lora --method {method}`" + (f", {name}" if name != method else ""), worst, 2e-5)


def parameters(root: Path) -> Iterator[Case]:
    """`MODEL+LORA` beside peft's `merge_and_unload`: parameters of fused experts, rows of tokens."""
    from safetensors.torch import load_file

    from merging.peft_reference import PARAMETERS
    from models import test_live_parameters as tests

    for name, how in PARAMETERS.items():
        ours = tests.live(f"{tests.base(name, root / name)}+{tests.place(name)}", name)
        theirs = load_file(tests.place(name) / "merged.safetensors")
        worst = max(tests.apart(ours[key], theirs[key]) for key in theirs.keys() & ours.keys())
        yield Case(f"{name}: `{next(iter(how))}`", worst, tests.TOLERANCE)


def image_loras(root: Path) -> Iterator[Case]:
    """`PIPELINE+LORA` beside diffusers' `load_lora_weights` and `fuse_lora`: every change times random numbers."""
    from image_loras import FORMS, pipeline_of
    from merging import test_image_loras as tests

    for name in FORMS:
        pipeline, folder = pipeline_of(name), root / name
        pipeline.save_pretrained(folder)
        file = tests.saved(root / f"{name}.safetensors", name, pipeline)
        before, after = (tests.views(ref, *tests.NOTED) for ref in (str(folder), f"{folder}+{file}"))
        worst = 0.0
        for part, wanted in json.loads(tests.HERE.read_text())[name].items():
            made = tests.probes(before[part], after[part])
            size = max(map(abs, wanted.values()), default=1.0)
            worst = max(worst, *(abs(made[key] - x) / size for key, x in wanted.items()), 0.0)
        yield Case(name.replace("-", ", in the form of ", 1), worst, tests.TOLERANCE)


KINDS = {
    "Adapters merged with each other, beside peft's `add_weighted_adapter`": merged_adapters,
    "Parameters of experts, rows of tokens, beside peft's `merge_and_unload`": parameters,
    "LoRAs of image models, beside diffusers' `load_lora_weights` and `fuse_lora`": image_loras,
}


def main() -> None:
    """Measures, and writes the page; no bound may be broken."""
    quiet()
    reach_tests()
    text = ABOUT
    with tempfile.TemporaryDirectory() as root:
        for number, (kind, measure) in enumerate(KINDS.items()):
            (place := Path(root) / str(number)).mkdir()
            cases = list(measure(place))
            assert all(case.largest <= case.bound for case in cases), cases
            rows = [[case.what, f"{case.largest:.0e}", f"{case.bound:.0e}"] for case in cases]
            text += f"\n## {kind}\n\n{markdown(['', 'largest difference', 'bound'], rows)}\n"
    write_whole(PAGE, text)


if __name__ == "__main__":
    sys.exit(main())
