"""How much of every architecture's redundancy is declared: the completeness law over model types.

    python -m benchmarks.completeness                      # all that are not there yet; a few seconds each on one core
    python -m benchmarks.completeness --only llama bert    # these, anew
    python -m benchmarks.completeness --classes            # other classes of the types that are counted, tied and untied
    python -m benchmarks.completeness --within 300         # at most so many seconds of CPU for a type (600); the page lists what took longer
    python -m benchmarks.completeness --memory 4           # at most so many gigabytes for a type (8); the page lists what took more

For every model type a tiny random model of its class (about 1,500 parameters, float64): the dimensions that change no
output, those that the spec's groups explain, the gap between the least singular value that counts and the largest that
does not, and what is left by tensors. What LayerNorm leaves free counts as declared where `verify` knows it.

A cell `TYPE` is the class and the tie that the default config has; `TYPE/CLASS` is another class of the type, and
`TYPE/CLASS/untied` (or `tied`) one with its head tied otherwise than the default config has it. The cheapest types
come first, one of each text, and of each type what heads differ in most.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import signal
import time
from collections.abc import Iterator
from functools import cache
from math import ceil
from typing import Any

import transformers

from benchmarks.harness import Benchmark, Cells, Section, markdown, quiet
from isomerge.archs import expanded_texts, spec_texts
from isomerge.commands.proof import text_of
from isomerge.discovery.building import HEADS
from isomerge.discovery.completeness import try_completeness

FIRST = [
    "llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "phi", "phi3", "gpt2", "gpt_neox",
    "gptj", "gpt_neo", "opt", "bloom", "falcon", "mpt", "stablelm", "starcoder2", "granite", "olmo", "olmo2",
    "olmo3", "cohere", "cohere2", "glm", "glm4", "smollm3", "nemotron", "bert", "roberta", "xlm-roberta",
    "distilbert", "electra", "albert", "deberta", "deberta-v2", "modernbert", "camembert", "mpnet", "nomic_bert",
    "esm", "ernie", "xlnet", "vit", "deit", "beit", "dinov2", "dinov3_vit", "swin", "vit_mae", "clip",
    "clip_text_model", "clip_vision_model", "siglip", "siglip_text_model", "siglip_vision_model", "sam", "detr",
    "convnext", "segformer", "t5", "mt5", "bart", "mbart", "pegasus", "marian", "m2m_100", "whisper", "wav2vec2",
    "hubert", "speech_to_text", "mixtral", "qwen2_moe", "qwen3_moe", "qwen3_next", "qwen3_5_text", "deepseek_v2",
    "deepseek_v3", "gpt_oss", "olmoe", "granitemoe", "jetmoe", "minimax", "dbrx", "phimoe", "llama4_text",
    "ernie4_5", "ernie4_5_moe", "seed_oss", "arcee", "hunyuan_v1_dense", "helium", "exaone4", "gemma3n_text",
    "gemma4_text", "codegen", "xglm", "gpt_bigcode", "persimmon", "biogpt", "llava", "qwen2_vl", "qwen2_5_vl",
    "mamba", "mamba2", "falcon_mamba", "rwkv", "lfm2", "jamba", "recurrent_gemma",
]  # fmt: skip
"""What people merge most, first."""
NEEDED: dict[str, dict[str, Any]] = {
    "esm": {"vocab_size": 33, "pad_token_id": 1, "mask_token_id": 32},
    "dbrx": {
        "attn_config": {"kv_n_heads": 1, "clip_qkv": 8.0, "rope_theta": 10000.0, "attn_pdrop": 0.0},
        "ffn_config": {"ffn_hidden_size": 12, "moe_num_experts": 2, "moe_top_k": 2},
    },
    "gpt_neox": {"rotary_pct": 0.5},
    "stablelm": {"partial_rotary_factor": 0.5},
    "nemotron": {"num_key_value_heads": 8},  # as in Nemotron-4 and Minitron
    "electra": {"embedding_size": 256},  # as wide as the stream: the base and large ones
    "deberta": {  # as deberta-base is
        "relative_attention": True, "pos_att_type": ["c2p", "p2c"], "position_biased_input": False, "type_vocab_size": 0,
    },
    "deberta-v2": {  # as deberta-v3-base is
        "relative_attention": True, "pos_att_type": ["p2c", "c2p"], "share_att_key": True, "norm_rel_ebd": "layer_norm",
        "position_buckets": 256, "position_biased_input": False, "type_vocab_size": 0,
    },
    "dinov2": {"architectures": ["Dinov2Model"]},  # as its checkpoints are
    "yolos": {"num_detection_tokens": 4},
    "minimax": {"block_size": 16},
    "deepseek_v2": {"n_shared_experts": 1},
    "hunyuan_v1_dense": {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}, "head_dim": 128},
    "ministral": {"head_dim": 128},
    "dots1": {"n_routed_experts": 8, "n_shared_experts": 1, "num_experts_per_tok": 2},
    "siglip_text_model": {"architectures": ["SiglipTextModel"]},
    "vit_mae": {"num_channels": 1, "decoder_hidden_size": 768, "mask_ratio": 0.5},
    "whisper": {"num_mel_bins": 8},
    "speech_to_text": {"input_feat_per_channel": 8, "conv_channels": 8},
    "lilt": {"channel_shrink_ratio": 2, "architectures": ["LiltForTokenClassification"]},  # as its uses are
    "markuplm": {
        "architectures": ["MarkupLMForTokenClassification"], "max_depth": 2, "xpath_unit_hidden_size": 4,
        "max_xpath_tag_unit_embeddings": 4, "max_xpath_subs_unit_embeddings": 4, "tag_pad_id": 3, "subs_pad_id": 3,
    },
    "layoutlmv3": {
        "architectures": ["LayoutLMv3ForTokenClassification"], "coordinate_size": 1, "shape_size": 2, "input_size": 8,
    },
    "segformer": {"architectures": ["SegformerForSemanticSegmentation"]},
    "led": {"attention_window": 4},
    "longformer": {"attention_window": 4},
    "mobilebert": {"true_hidden_size": 8, "intra_bottleneck_size": 8, "num_feedforward_networks": 2},
    "squeezebert": {f"{part}_groups": 2 for part in ("q", "k", "v", "intermediate", "output")},
    "mamba": {"time_step_rank": 4, "state_size": 4},
    "falcon_mamba": {"time_step_rank": 4, "state_size": 4},
    **{
        kind: {
            "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 4, "linear_value_head_dim": 4,
            "linear_conv_kernel_dim": 2,
        }
        for kind in ("qwen3_next", "qwen3_5_text")
    },
    **{
        kind: {
            "architectures": [f"{name}ForCTC"], "conv_dim": [8, 8], "conv_kernel": [4, 3], "conv_stride": [2, 2],
            "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2,
        }
        for kind, name in (("wav2vec2", "Wav2Vec2"), ("hubert", "Hubert"))
    },
    "audio-spectrogram-transformer": {
        "architectures": ["ASTForAudioClassification"], "patch_size": 4, "frequency_stride": 3, "time_stride": 3,
        "max_length": 10, "num_mel_bins": 7,
    },
    "lfm2": {
        "block_auto_adjust_ff_dim": False, "layer_types": ["conv", "full_attention"], "full_attn_idxs": [1],
        "num_hidden_layers": 2,
    },
    "mamba2": {"expand": 1, "n_groups": 1, "state_size": 4, "chunk_size": 4, "num_heads": 64, "conv_kernel": 2},
    "jamba": {
        "attn_layer_offset": 1, "attn_layer_period": 2, "mamba_dt_rank": 4, "mamba_d_state": 4, "mamba_d_conv": 2,
        "num_experts": 2, "use_mamba_kernels": False,
    },
    **{
        kind: {
            "num_hidden_layers": 2, "num_kv_shared_layers": 0, "layer_types": ["sliding_attention", "full_attention"],
            "vocab_size_per_layer_input": 22, "hidden_size_per_layer_input": 4, **more,
        }
        for kind, more in (
            ("gemma4_text", {"per_layer_config": {}}),
            # of a lower Laurel rank gains beside it could trade with its norm's
            ("gemma3n_text", {
                "activation_sparsity_pattern": [0.0, 0.0], "intermediate_size": [12, 12], "laurel_rank": 4,
                "altup_num_inputs": 2,
            }),
        )
    },
    "rembert": {"input_embedding_size": 8, "output_embedding_size": 8},
}  # fmt: skip
"""What a config must say of model types of which the default builds no model, or none that is small enough."""
NO_MEMORY = "DefaultCPUAllocator: can't allocate memory"


LM_HEADS = (
    "CAUSAL_LM",
    "MASKED_LM",
    "SEQ_TO_SEQ_CAUSAL_LM",
    "SPEECH_SEQ_2_SEQ",
    "IMAGE_TEXT_TO_TEXT",
    "PRETRAINING",
)
"""Heads of words, which may be the embeddings."""
ROUNDS = (LM_HEADS, ("", "TEXT_ENCODING", "IMAGE"), ("SEQUENCE_CLASSIFICATION", "IMAGE_CLASSIFICATION"),
          ("TOKEN_CLASSIFICATION", "QUESTION_ANSWERING"))  # fmt: skip
"""What heads of a type differ in most, first."""


@cache
def default_config(kind: str) -> dict[str, Any]:
    """The config of a type as it is counted."""
    return transformers.AutoConfig.for_model(kind, **NEEDED.get(kind, {})).to_dict() | {"model_type": kind}


@cache
def classes_of(kind: str) -> dict[str, str]:
    """The classes of a type, and for what each is by transformers' tables ("" is the base class)."""
    from transformers.models.auto import modeling_auto

    classes: dict[str, str] = {}
    for table in sorted(name for name in vars(modeling_auto) if name.startswith("MODEL_")):
        if table.endswith("MAPPING_NAMES") and kind in (names := getattr(modeling_auto, table)):
            purpose = table.removeprefix("MODEL_").removesuffix("MAPPING_NAMES").removeprefix("FOR_").rstrip("_")
            of_table = names[kind] if isinstance(names[kind], (tuple, list)) else [names[kind]]
            for name in of_table:
                classes[name] = min(classes.get(name, purpose), purpose, key=_round)
    return {name: purpose for name, purpose in classes.items() if hasattr(transformers, name)}


def _round(purpose: str) -> int:
    """When classes for a purpose are counted."""
    return next((n for n, purposes in enumerate(ROUNDS) if purpose in purposes), len(ROUNDS))


def default_class(kind: str) -> str | None:
    """The class that a cell `TYPE` is of; None where transformers has none."""
    from transformers.models.auto import modeling_auto

    named = default_config(kind).get("architectures") or []
    tables = (getattr(modeling_auto, f"{table}_NAMES") for table in HEADS)
    of_tables = [names[kind] for names in tables if kind in names]
    first = next(iter([*named, *of_tables]), None)
    return first[0] if isinstance(first, (tuple, list)) else first


def class_cells(kinds: list[str]) -> Iterator[tuple[int, str]]:
    """Cells of other classes and other ties of types, with the round in which each is counted."""
    texts = expanded_texts()
    first = {texts[kind][1]: kind for kind in reversed(kinds) if kind in texts}
    for kind in kinds:
        known = default_class(kind)
        later = 0 if kind in first.values() else len(ROUNDS) + 1
        other = "untied" if default_config(kind).get("tie_word_embeddings", True) else "tied"
        for name, purpose in classes_of(kind).items():
            if name != known:
                yield later + _round(purpose), f"{kind}/{name}"
            if purpose in LM_HEADS:
                yield later + _round(purpose), f"{kind}/{name}/{other}"


def counted(cell: str) -> dict[str, Any]:
    """The report of one class of a model type, with the seconds of CPU it took."""
    began = time.process_time()
    kind, _, rest = cell.partition("/")
    name, _, tie = rest.partition("/")
    try:
        config = default_config(kind) | ({"architectures": [name]} if name else {})
    except ValueError as error:
        return uncounted(str(error).splitlines()[0])
    if tie:
        config |= {"tie_word_embeddings": tie == "tied"}
    report = try_completeness(text_of(None)[1], config).document()
    return {**report, "seconds": round(time.process_time() - began)}


def uncounted(why: str) -> dict[str, Any]:
    return {"complete": None, "redundancy": None, "redundancy_note": why, "inner": []}


def counted_in(cell: str, seconds: float, gigabytes: float) -> dict[str, Any]:
    """The report of one cell in at most so many seconds of CPU and gigabytes of this process, whose limits it
    sets."""
    room, last = int(gigabytes * 1e9), ceil(seconds + time.process_time())
    resource.setrlimit(resource.RLIMIT_DATA, (room, room))
    resource.setrlimit(resource.RLIMIT_CPU, (last, last))
    too_much = uncounted(f"took over {gigabytes:g} GB")
    try:
        report = counted(cell)
    except (MemoryError, RuntimeError) as error:  # torch raises a RuntimeError for memory that it does not get
        if isinstance(error, MemoryError) or NO_MEMORY in str(error):
            return too_much
        raise
    return too_much if NO_MEMORY in (report["redundancy_note"] or "") else report


def measured(cell: str, seconds: float, gigabytes: float) -> dict[str, Any]:
    """The report of one cell from a process of its own, which the system ends where it takes too long: what
    runs inside of LAPACK hears no handler."""
    context = multiprocessing.get_context("fork")  # what is imported stays: several seconds a type otherwise
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=lambda: sender.send(counted_in(cell, seconds, gigabytes)))
    process.start()
    sender.close()
    try:
        report = receiver.recv()
    except EOFError:
        process.join()
        late = process.exitcode in (-signal.SIGXCPU, -signal.SIGKILL)
        report = uncounted(
            f"took over {seconds:g} s" if late else "the process that counted it ended without a result"
        )
    process.join()
    return report


def share(report: dict[str, Any]) -> float:
    count = report["redundancy"]
    return count["declared"] / max(count["true"], 1)


def table(cells: dict[str, Any]) -> str:
    """Counts of every model type, and those that have none."""
    cells = {kind: report for kind, report in cells.items() if "/" not in kind}
    counts = {kind: report for kind, report in cells.items() if report["redundancy"] is not None}
    rows = []
    for kind in sorted(counts, key=lambda k: (-share(counts[k]), k)):
        count = counts[kind]["redundancy"]
        inner = ", ".join(f"{a['writer']} to {a['reader']} ({a['group']})" for a in counts[kind]["inner"]) or "-"
        figures = [f"{count['parameters']:,}", str(count["true"]), str(count["declared"])]
        percent = f"{int(100 * share(counts[kind]))}%"  # rounded down: 100 % is all
        rows.append([kind, *figures, str(count.get("layer_norm") or "-"), percent, inner])
    late = {kind for kind, r in cells.items() if (r["redundancy_note"] or "").startswith("took over")}
    others = [
        f"{kind} ({r['redundancy_note']})" if kind in late else kind
        for kind, r in sorted(cells.items())
        if r["redundancy"] is None
    ]
    whole = sum(report["redundancy"]["complete"] for report in counts.values())
    head = [
        "model type", "parameters", "redundant, true", "declared", "of these by LayerNorm", "share",
        "inner axes left",
    ]  # fmt: skip
    words = (
        f"{len(counts)} model types counted, {whole} of them complete; {len(others)} not counted: "
        f"{', '.join(others) or 'none'}."
    )
    return f"\n{words}\n\n{markdown(head, rows)}\n"


def shared(names: list[str]) -> int:
    """How many letters names begin with in common."""
    return next((n for n, letters in enumerate(zip(*names, strict=False)) if len(set(letters)) > 1), len(names[0]))


def class_table(cells: dict[str, Any]) -> str:
    """By type, which of its other classes are complete, which are not, and of which nothing is known."""
    kinds = sorted(kind for kind in cells if "/" not in kind)
    by_kind: dict[str, list[list[str]]] = {}
    totals = [0, 0, 0, 0]
    for _, cell in class_cells(kinds):
        kind, _, rest = cell.partition("/")
        name, _, tie = rest.partition("/")
        short = name[shared(list(classes_of(kind))) :] or name
        words = f"{short} ({tie})" if tie else short
        report = cells.get(cell)
        column = 3 if report is None else 2 if report["redundancy"] is None else int(not report["complete"])
        if column == 1:
            assert report is not None
            count = report["redundancy"]
            words += f" {count['declared']} of {count['true']}"
            words += "".join(f", {a['writer']} to {a['reader']}" for a in report["inner"])
        totals[column] += 1
        by_kind.setdefault(kind, [[], [], [], []])[column].append(words)
    rows = [[kind, *("; ".join(words) or "-" for words in columns)] for kind, columns in sorted(by_kind.items())]
    words = (
        f"{totals[0] + totals[1]} other classes and ties counted, {totals[0]} of them complete; {totals[2]} cannot be counted; "
        f"{totals[3]} are not measured yet."
    )
    head = ["model type", "complete", "not complete", "cannot be counted", "not measured"]
    return f"\n{words}\n\n{markdown(head, rows)}\n"


def left_table(cells: dict[str, Any]) -> str:
    """Of all that is not complete, what is left by the tensors that it moves."""
    rows = []
    for cell, report in sorted(cells.items()):
        if (count := report["redundancy"]) is None or count["complete"]:
            continue
        parts = [
            f"{left['dimensions']} {' and '.join(left['lines']) or 'of more than three lines at once'}"
            for left in sorted(count["left"], key=lambda left: -left["dimensions"])
        ]
        rows.append([cell, f"{count['declared']} of {count['true']}", "; ".join(parts)])
    return f"\n{markdown(['model type or class', 'declared', 'left, by what it moves'], rows)}\n"


def cells(asked: argparse.Namespace) -> Cells:
    limits = {"seconds": asked.within, "gigabytes": asked.memory}
    names: list[str] = list(dict.fromkeys([*FIRST, *spec_texts()]))
    if asked.classes:
        there = BENCHMARK.results().cells
        cheap = sorted((kind for kind in there if "/" not in kind), key=lambda k: there[k].get("seconds") or 1e9)
        names = [name for _, name in sorted(class_cells(cheap), key=lambda cell: cell[0])]
    return {name: {"cell": name, **limits} for name in names}


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--classes", action="store_true", help="other classes of the types that are counted")
    parser.add_argument("--within", type=float, default=600, metavar="SECONDS", help="for each type (600)")
    parser.add_argument("--memory", type=float, default=8, metavar="GB", help="for each type (8)")


def prepare(asked: argparse.Namespace) -> None:
    """Import once what every cell needs: cells are forked."""
    import scipy.linalg  # noqa: F401
    from transformers import GenerationMixin, PreTrainedModel  # noqa: F401

    expanded_texts()


def said(report: dict[str, Any]) -> str:
    count = report["redundancy"]
    return report["redundancy_note"] if count is None else f"{count['declared']} of {count['true']}"


BENCHMARK = Benchmark(
    "completeness", cells, measured, inside="",
    sections=(
        Section("lab/completeness.md", "completeness", table),
        Section("lab/completeness.md", "completeness of classes", class_table),
        Section("lab/completeness.md", "what is left", left_table),
    ),
    said=said, options=options, before=prepare,
)  # fmt: skip

if __name__ == "__main__":
    quiet()
    BENCHMARK.main()
