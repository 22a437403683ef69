"""What the command line says of what there is to choose from: ``isomerge methods`` and ``architectures``; and
``isomerge demo``: two real classifiers, trained apart, aligned and merged, with the evidence beside it."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from isomerge.cli.console import Voice
from isomerge.options.requests import showing as asked_for
from isomerge.records import Json


def tell_methods(voice: Voice, asked: asked_for.Methods, report: Json) -> None:
    """The methods, with their parameters and whether they need a base model."""
    for row in report["methods"]:
        words = [
            f"{name}{'' if o['required'] else '=' + str(o['default'])}{' (per model)' if o['per_model'] else ''}"
            for name, o in row["parameters"].items()
        ]
        base = {"none": "", "optional": " [base_model]", "required": " base_model,"}[row["base_model"]]
        voice.say(f"{row['method']}:{base} {', '.join(words)}".rstrip(" ,:"), style="bold")
        voice.say(f"    {row['summary']}")
        if row["source"] != "isomerge":
            voice.say(f"    from {row['source']}")


def tell_architectures(voice: Voice, asked: asked_for.Architectures, report: Json) -> None:
    """The model types, and where their texts come from."""
    for row in report["architectures"]:
        more = "" if row["source"] == "isomerge" else f" from {row['source']}"
        voice.say(f"{row['model_type']}: {row['spec']}{more}")
    voice.warn(*report["problems"])


TEST = "isomerge.evidence.digits:labelled_test_digits"
LEARN = {"learn": "isomerge.evidence.digits:training_digits", "learn_target": "distill"}
# What a row says, the folder it writes, and how the second model is aligned.
KINDS: tuple[tuple[str, str, Mapping[str, Any]], ...] = (
    ("no alignment", "none", {"spaces": "none"}),
    ("the paper's spaces", "paper", {"spaces": "paper"}),
    ("all spaces, by weights", "all", {"spaces": "all"}),
    ("learned, without labels", "learned", LEARN),
)


def run_demo(voice: Voice, asked: asked_for.Demo) -> Json:
    """The story, in the terminal; its figures."""
    import isomerge
    from isomerge.evidence.digits import digit_evaluator, example_models
    from isomerge.evidence.report.page import PAGE

    out = asked.out
    evaluate = digit_evaluator()
    a, b = example_models()
    _single_thread()
    voice.say(
        "1. A model and its disguised twin: the same function, random symmetries applied to the weights",
        style="bold",
    )
    twin = _twin(voice, a, out, evaluate)
    voice.say(
        "\n2. Two models trained from different seeds on scanned digits, tested on 450 digits held out",
        style="bold",
    )
    report = {"twin": twin, **_pair(voice, a, b, out, evaluate)}
    page = isomerge.report(out / "vit-b-learned", data=TEST).save(out / PAGE)
    leave_for_guides(a, b, out)
    voice.say(_plain_words(out, page))
    return report


def leave_for_guides(a: Path, b: Path, out: Path) -> None:
    """Copy the two models, and the scripts that the guides run, which ship beside them."""
    for folder in (a, b):
        shutil.copytree(folder, out / folder.name, dirs_exist_ok=True)
    shutil.copytree(a.parents[1] / "guide", out, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))


def _single_thread() -> None:
    """Tiny models: OpenMP's barriers would cost more than they win."""
    import torch
    from transformers.utils import logging

    torch.set_num_threads(1)
    logging.disable_progress_bar()
    logging.set_verbosity_error()


def _load(folder: Path) -> Any:
    from transformers import ViTForImageClassification

    return ViTForImageClassification.from_pretrained(folder).eval()


def _twin(voice: Voice, a: Path, out: Path, evaluate: Any) -> Json:
    """Merge a model with a disguised copy of itself, with and without alignment."""
    import torch

    import isomerge
    from isomerge.evidence.law import random_alignment
    from isomerge.matching.selection import select_spaces
    from isomerge.models.recognised import recognise

    model = recognise(a)
    spec = select_spaces(model.spec, "default").spec
    disguise = random_alignment(spec, model.blocks, torch.Generator().manual_seed(0))
    isomerge.apply(disguise, a, out=out / "twin", overwrite=True)
    rows, measured = [], {}
    for name, folder, align in (
        ("plain average", "twin-average", False),
        ("aligned, then averaged", "twin-merge", True),
    ):
        isomerge.merge([a, out / "twin"], out=out / folder, align=align, overwrite=True)
        loss, accuracy = evaluate(_load(out / folder))
        measured[name] = {"loss": loss, "accuracy": accuracy}
        rows.append([name, f"{100 * accuracy:.1f} %", f"{loss:.4f}"])
    loss, accuracy = evaluate(_load(out / "twin"))
    rows.insert(0, ["the twin itself", f"{100 * accuracy:.1f} %", f"{loss:.4f}"])
    voice.table(["merge of vit-a with its twin", "accuracy", "loss (nats)"], rows)
    return measured


def _pair(voice: Voice, a: Path, b: Path, out: Path, evaluate: Any) -> Json:
    """Merge the two models in three ways, and draw the loss on the way from one to the other."""
    import isomerge
    from isomerge.evidence.line import draw_lines, loss_line

    first, second = _load(a), _load(b)
    rows = [
        [name, f"{100 * acc:.1f} %", f"{loss:.3f}", "", ""]
        for name, (loss, acc) in (("vit-a", evaluate(first)), ("vit-b", evaluate(second)))
    ]
    lines, report = [], {}
    for name, kind, how in KINDS:
        closest = out / f"vit-b-{kind}"
        with voice.progress(f"aligning: {name}") as observer:
            _, aligned = isomerge.align(b, onto=a, out=closest, overwrite=True, observer=observer, **how)
        folder = out / f"merge-{kind}"
        isomerge.merge([a, closest], out=folder, align=False, overwrite=True)
        loss, accuracy = evaluate(_load(folder))
        line = loss_line(first, _load(closest), evaluate)
        lines.append((name, line))
        distance = aligned["distance"]["after"]
        figures = [f"{100 * accuracy:.1f} %", f"{loss:.3f}", f"{line.barrier:.3f}", f"{distance:.2f}"]
        rows.append([f"merged, {name}", *figures])
        report[kind] = {"loss": loss, "accuracy": accuracy, "barrier": line.barrier, "distance": distance}
    voice.table(["", "accuracy", "loss (nats)", "barrier (nats)", "distance"], rows)
    draw_lines(
        lines,
        ("vit-a", "vit-b"),
        out / "loss-line.png",
        "Two digit ViTs from different seeds: the line between them",
    )
    return report


def _plain_words(out: Path, page: Path) -> str:
    return (
        "\nWhat this shows. Where two models differ only by symmetry, alignment gives the model back and the plain "
        "average destroys it.\nTwo models trained from scratch differ by more: heads and neurons are in another "
        "order, and the residual stream that connects\nthe layers is in another basis. Weights alone bring the "
        "midpoint part of the way; a match that is learned on the models' own\npredictions (no labels) brings it "
        "to the models themselves, in the same architecture, and the aligned model is still exactly\nvit-b's "
        f"function: distance goes up while the barrier goes away.\n\nPicture: {out / 'loss-line.png'}\nReport of "
        f"the learned match: {page} (open it in a browser)\nMerged model: {out / 'merge-learned'} "
        "(ViTForImageClassification.from_pretrained loads it)\nFor the guides: vit-a, vit-b "
        f"and scripts, in {out}"
    )
