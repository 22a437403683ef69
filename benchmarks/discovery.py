"""What discovery finds, against the specs written by hand, and on architectures that have none.

For every architecture with a spec in ``src/isomerge/archs``: which of its spaces, by role and group, discovery
finds without having read it (recall), and whether all that it proves holds on specimens of other sizes and seeds
(unsound spaces: must be 0). Then architectures that nobody has described, untouched. Run ``python
benchmarks/discovery.py [MODEL_TYPE ...]``; it takes about a quarter of an hour on one core and writes
benchmarks/results/discovery.json.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from isomerge.archs import spec_texts
from isomerge.discovery.building import real_config, specimens
from isomerge.discovery.discover import Discovery, discover, proven_again
from isomerge.discovery.shrinking import Scale
from isomerge.discovery.specimen import Specimen
from isomerge.errors import IsomergeError
from isomerge.models.tied_tensors import without_broken_ties
from isomerge.symmetry.blocks import gather_blocks
from isomerge.symmetry.language.spec import Spec, by_canonical, coverage
from isomerge.symmetry.language.spec_text import parse_spec
from isomerge.symmetry.stage import find_shifts
from isomerge.symmetry.units import elements_of

RESULT = Path(__file__).parent / "results" / "discovery.json"
# Other sizes than those that discovery works with: wider heads, more layers, other vocabularies.
OTHER = (Scale(4, 8, 4, 16, 4, 44, 6, 139, 60, 88), Scale(5, 5, 5, 32, 4, 68, 12, 157, 36, 104))
SECTIONS = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [16, 24, 24]}
ENTRIES: dict[str, dict[str, Any]] = {
    "nemotron": {"num_key_value_heads": 8},
    "esm": {"vocab_size": 33, "position_embedding_type": "rotary", "pad_token_id": 1, "mask_token_id": 32},
    "deberta-v2": {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "position_buckets": 32},
    "llama": {"num_attention_heads": 32, "num_key_value_heads": 8},
    # V2-Lite's routing, and a first layer that is dense; V3's without layers that predict more tokens, which its
    # class does not run
    "deepseek_v2": {"num_experts_per_tok": 6, "topk_method": "greedy", "first_k_dense_replace": 1},
    "deepseek_v3": {"num_nextn_predict_layers": 0},
    "qwen2_vl": {
        "text_config": {
            "hidden_size": 3584,
            "num_attention_heads": 28,
            "num_key_value_heads": 4,
            "rope_parameters": SECTIONS,
        }
    },
    "qwen2_vl_text": {"rope_parameters": SECTIONS},
    "qwen2_5_vl": {"text_config": {"rope_parameters": SECTIONS}, "vision_config": {"out_hidden_size": 8192}},
    "qwen2_5_vl_text": {"rope_parameters": SECTIONS},
    "qwen3_vl": {"vision_config": {"out_hidden_size": 4096}},
    "qwen3": {"num_attention_heads": 32, "num_key_value_heads": 8},
}
"""Keys that the default config of a class lacks, or that make it like its best-known checkpoint."""
UNSEEN = (
    "gptj",
    "codegen",
    "olmo",
    "olmo2",
    "nemotron",
    "glm",
    "persimmon",
    "xglm",
    "biogpt",
    "esm",
    "squeezebert",
    "mpnet",
    "electra",
    "albert",
    "modernbert",
    "roformer",
    "ernie",
    "megatron-bert",
    "rembert",
    "gpt_neo",
    "gpt_bigcode",
    "openai-gpt",
    "smollm3",
    "granite",
    "granitemoe",
    "exaone4",
    "ernie4_5",
    "seed_oss",
    "arcee",
    "olmoe",
    "qwen2_moe",
    "qwen3_moe",
    "beit",
    "ijepa",
    "vit_mae",
    "bart",
    "marian",
    "pegasus",
    "nystromformer",
    "data2vec-text",
    # composites
    "aya_vision",
    "smolvlm",
    "siglip",
    "vipllava",
    "cohere2_vision",
    # chosen after the specs of November 2026 were written
    "lilt",
    "bros",
    "markuplm",
    "roc_bert",
    "visual_bert",
    "mobilebert",
    "convbert",
    "ctrl",
    "diffllama",
    "doge",
    "dbrx",
    "minimax",
    "xmod",
    "vivit",
    "timesformer",
    "layoutlmv3",
    "ibert",
    "mra",
    "yoso",
    "prophetnet",
    "xlnet",
)
"""Architectures that had no spec by hand when this was written; those that have one by now are counted there."""


def roles(spec: Spec, specimen: Specimen) -> Counter[str]:
    """The spaces of a spec that can move a specimen, as ``role: group``; scales over a residual stream are gains,
    shifts are biases. Permutations of one thing, and biases that this config switches off, are not counted."""
    matches = coverage(spec, {name: tuple(t.shape) for name, t in specimen.stored.items()})
    spec = without_broken_ties(spec, by_canonical(matches), specimen.config)
    blocks = gather_blocks(spec, matches)
    acting = {space.name for block in blocks for space in elements_of(spec, block).values()}
    found: Counter[str] = Counter()
    for space in spec.spaces.values():
        if space.name not in acting or (space.group_name == "Perm" and spec.sizes[space.name] < 2):
            continue
        gain = space.residual and space.group_name in ("Scale", "PositiveScale")
        role = "gain" if gain else "res" if space.residual else space.role
        found[
            f"{role}: {space.group_name}"
            + (f" folded {space.folded}" if space.folded and spec.can_fold(space.name) else "")
        ] += 1
    found["bias: translation"] += len({shift.name for shift, _, _ in find_shifts(spec, blocks)})
    return +found


def compared(kind: str, found: Discovery, specimen: Specimen) -> dict[str, Any]:
    """The spaces that a spec by hand declares for a specimen, and those of them that were found."""
    by_hand = roles(
        parse_spec(spec_texts()[kind][1], specimen.config, spec_texts()[kind][0], spec_texts()), specimen
    )
    mine = roles(parse_spec(found.text, specimen.config, "discovered"), specimen)
    both = by_hand & mine
    return {
        "by_hand": dict(sorted(by_hand.items())),
        "found": dict(sorted(mine.items())),
        "missed": dict(sorted((by_hand - mine).items())),
        "more": dict(sorted((mine - by_hand).items())),
        "recall": [both.total(), by_hand.total()],
    }


def measured(kind: str) -> dict[str, Any]:
    """One architecture: found, proven on other sizes, compared."""
    start, given = time.perf_counter(), {"model_type": kind, **ENTRIES.get(kind, {})}
    try:
        found = discover(given, seed=0)
    except IsomergeError as error:
        return {"refused": str(error)}
    seconds = time.perf_counter() - start
    config, others, again, unsound = real_config(given), None, {}, []
    errors: dict[str, float] = {}
    try:
        others = specimens(config, 1000, untied=False, scales=OTHER)
    except IsomergeError as error:  # no model to try on, so that nothing was found to be wrong, or right
        again = {"not_tried_again": str(error)}
    try:
        errors = proven_again(found.draft, others) if others is not None else {}
    except IsomergeError as error:
        unsound = [str(error)]
    entry: dict[str, Any] = {
        "class": found.module,
        "seconds": round(seconds, 1),
        "proven": [
            f"{s.name}: {s.group}" + (f" folded {s.folded}" if s.folded else "")
            for s in found.draft.spaces.values()
        ]
        + [f"{name}: translation" for name in found.draft.shifts],
        "fixed": list(found.fixed),
        "rejected": sorted({f"{v.space}: {v.group}" for v in found.record if not v.proven}),
        "largest_error": max(errors.values(), default=None),
        "smallest_rejected": min(
            (v.error for v in found.record if not v.proven and v.error < float("inf")), default=None
        ),
        "unsound": unsound,
        **again,
    }
    if kind in spec_texts() and others is not None and not unsound:
        try:
            entry |= compared(kind, found, others[0])
        except IsomergeError as error:
            entry["not_compared"] = str(error)
    return entry


def main(kinds: list[str]) -> None:
    """Measure, print and write."""
    import torch

    torch.set_num_threads(1)
    results = json.loads(RESULT.read_text())["architectures"] if RESULT.is_file() and kinds else {}
    for kind in kinds or [*sorted(spec_texts()), *(k for k in UNSEEN if k not in spec_texts())]:
        results[kind] = measured(kind)
        print(
            kind,
            json.dumps({k: results[kind].get(k) for k in ("seconds", "recall", "missed", "unsound", "refused")}),
            flush=True,
        )
        write(results)


def whole(spaces: list[str]) -> bool:
    """Whether values, queries and keys, and neurons are all among the spaces proven."""
    names = {space.partition(":")[0].rstrip("0123456789") for space in spaces}
    return {"ov", "ff"} <= names and bool(names & {"qk", "c", "sg"})


def write(results: dict[str, Any]) -> None:
    """The figures so far, with totals."""
    known = [r for r in results.values() if "recall" in r]
    again = {k for k, r in results.items() if r.get("proven") and not r["unsound"] and "not_tried_again" not in r}
    proven = [k for k in results if k in again and k not in spec_texts()]
    totals = {
        "spaces_by_hand": sum(r["recall"][1] for r in known),
        "spaces_found": sum(r["recall"][0] for r in known),
        "unsound": sum(len(r.get("unsound", [])) for r in results.values()),
        "architectures_compared": len(known),
        "without_a_spec_and_proven": proven,
        "of_them_attention_and_neurons": [k for k in proven if whole(results[k]["proven"])],
        "largest_proven_error": max(
            (r["largest_error"] or 0.0 for r in results.values() if "unsound" in r), default=None
        ),
        "smallest_rejected_error": min(
            (r["smallest_rejected"] for r in results.values() if r.get("smallest_rejected") is not None),
            default=None,
        ),
        "not_tried_again": sorted(k for k, r in results.items() if "not_tried_again" in r),
        "refused": sorted(k for k, r in results.items() if "refused" in r),
    }
    RESULT.write_text(json.dumps({"totals": totals, "architectures": results}, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
