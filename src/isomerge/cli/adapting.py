"""What the command line says of adapters, masks and corrected heads: ``isomerge extract-lora``, ``merge-lora``,
``task-mask``, ``restore-task`` and ``surgery``."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from isomerge.cli.console import Voice
from isomerge.cli.door import call_of, check_alone
from isomerge.errors import IsomergeError
from isomerge.options.requests import adapting as asked_for
from isomerge.options.requests.adapting import AdapterOptions
from isomerge.records import OfModels

if TYPE_CHECKING:
    from isomerge.api.adapting import MergeLoraReport
    from isomerge.merging.adapter.extract_lora import Extraction
    from isomerge.merging.adapter.surgery import SurgeryReport
    from isomerge.merging.task_masks import MaskReport, MaskUse


def tell_extract_lora(voice: Voice, asked: asked_for.ExtractLora, report: OfModels[Extraction]) -> None:
    """What of the difference is described, and how."""
    about = report.about
    tensors = about.tensors
    if voice.verbose:
        rows = [[n, x.kept, str(x.rank or ""), f"{x.norm:.4g}", f"{x.lost:.4g}"] for n, x in tensors.items()]
        voice.table(["tensor that differs", "kept", "rank", "norm of the difference", "lost"], rows)
    voice.warn(*about.notes)
    kept = Counter(x.kept for x in tensors.values())
    parts = [f"{kept['lora']} weights by factors of rank {about.rank} or less"]
    parts += [f"{kept['saved']} tensors whole"] if kept["saved"] else []
    voice.say(f"Wrote {asked.out}: {', '.join(parts)}; {about.share:.2%} of the difference is lost (Frobenius).")
    if kept["lost"]:
        names = [name for name, x in tensors.items() if x.kept == "lost"]
        more = f" and {len(names) - 4} more" if len(names) > 4 else ""
        voice.say(
            f"Not described: {', '.join(names[:4])}{more}. --save-modules keeps what has no factors, "
            f"--embeddings tables."
        )


def run_merge_lora(voice: Voice, asked: asked_for.MergeLora) -> MergeLoraReport:
    """One adapter of several, or of a recipe, which says what is merged."""
    import isomerge

    refs: Any = asked.adapters
    if refs[0].endswith((".yml", ".yaml")):
        if len(refs) > 1:
            raise IsomergeError(f"{refs[0]}: a recipe names its adapters: leave {refs[1]} out")
        check_alone(refs[0], asked, AdapterOptions)
        asked = replace(asked, adapters=refs[0])
    return call_of(isomerge.merge_lora)(asked)


def tell_merge_lora(voice: Voice, asked: asked_for.MergeLora, report: MergeLoraReport) -> None:
    """How far the merged update is from the weighted sum."""
    about = report.about
    if voice.verbose:
        rows = [
            [name, str(len(made.adapters)), str(made.rank), f"{made.norm:.4g}", f"{made.distance:.4g}"]
            for name, made in about.modules.items()
        ]
        voice.table(["module", "adapters", "rank", "norm of the sum", "distance from it"], rows)
    voice.warn(*about.notes)
    voice.say(
        f"Wrote {asked.out}: {about.method} merge of {', '.join(report.adapters)}, {len(about.modules)} modules of "
        f"rank {about.rank} or less; {about.share:.2%} from the weighted sum of the updates (Frobenius), which "
        "--method cat gives."
    )


def tell_task_mask(voice: Voice, asked: asked_for.TaskMask, report: OfModels[MaskReport]) -> None:
    """How many weights are in the mask, and how far the restored model will be from the task's."""
    about = report.about
    voice.warn(*about.mask.notes)
    voice.say(
        f"Wrote {asked.out}: {about.share:.1%} of the weights in the mask. The restored model is "
        f"{about.error:.1%} of the task vector's length from {asked.task} (the base: 100 %)."
    )


def tell_restore_task(voice: Voice, asked: asked_for.RestoreTask, report: OfModels[MaskUse]) -> None:
    """What was written."""
    voice.warn(*report.about.notes)
    voice.say(f"Wrote {asked.out}: the task of {asked.mask}, from {asked.merged} and {asked.base}.")


def tell_surgery(voice: Voice, asked: asked_for.Surgery, report: OfModels[SurgeryReport]) -> None:
    """What was gained on held-out examples."""
    about = report.about
    voice.warn(*about.notes)
    agreement = about.agreement
    compared = "" if agreement is None else (
        f"; of its predictions {100 * agreement.before:.1f} % and {100 * agreement.after:.1f} % are "
        f"{asked.task}'s"
    )  # fmt: skip
    voice.say(
        f"Wrote {asked.out}, an adapter for {asked.merged}. On held-out examples what {about.head} reads is "
        f"{about.bias.before:.1%} from {asked.task}'s without it, and {about.bias.after:.1%} with it{compared}."
    )
