"""`isomerge.merge` and `layershuffle`: models merged, or their layers shuffled."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from isomerge.api.live import live
from isomerge.api.live_inputs import own_models, with_examples
from isomerge.commands.merge_door import MergeDoor, Teller
from isomerge.errors import IsomergeError
from isomerge.models.references import is_assembled
from isomerge.options import MatchingOptions
from isomerge.options.requests import merging as asked_for
from isomerge.progress import Observer
from isomerge.records import Json, Record
from isomerge.run.arguments import checked


@checked(asked_for.Merge)
def merge(asked: asked_for.Merge, observer: Observer) -> Any:
    """Align every model onto the first (or, with ``anchor="none"``, onto their common mean), merge them, and return
    the merged module; with ``out``, write it there and return the report.

    Args:
        models: folders, hub ids (``org/name@revision+adapter``), open checkpoints or live modules; or one recipe
            file, which says all that the other arguments say but ``out`` and how it is written. A document of
            mergekit-moe (or one with ``merge_method: moe``) makes one model with experts of dense ones.
        intermediate_dir: of a recipe of several steps (documents), where the outputs of all but the last go, by
            their names; by default beside ``out``, as ``OUT.steps``. Those that are there already, made by the same
            recipe, are kept.
        out: the folder to write. Without it nothing is written, and a live module comes back: of the models' class,
            in the dtype and on the device of the first one where that is a module; its report is its attribute
            ``isomerge_report``.
        options: the method and what the models are to it, what may move, what is looked at beside the weights, and
            how it is read, written and run. A list in ``parameters`` has one number per model. Methods that need
            statistics read ``stats``, or without them ``data`` on the aligned models. Task vectors of models that
            were tuned from ``source_bases`` are moved onto ``base_model``. With any ``heads`` but ``average`` the
            numbers of labels may differ. ``align`` is ``auto`` (models that are aligned already, as fine-tunes of
            one base are, are left as they are), True (all are aligned) or False (none).

    Raises:
        IsomergeError: the models do not fit together, or an option is wrong; nothing is written.
    """
    first: Any = None
    if not isinstance(asked.models, (str, Path)):
        models = own_models(asked.models, asked.live.loss)
        first = models[0] if models else None
        given = {**asked.matching.given(), "repair": asked.repair}
        given = with_examples(given, ("data", "learn", "repair"), first, asked.live.tokenizer)
        asked = replace(asked, models=models, repair=given.pop("repair"), matching=MatchingOptions(**given))
    if asked.out is not None:
        return MergeDoor(asked, Teller(observer)).run()
    named: list[Any] = [asked.models] if isinstance(asked.models, (str, Path)) else list(asked.models)
    if (pipeline := next((ref for ref in named if is_assembled(ref)), None)) is not None:
        raise IsomergeError(f"{pipeline} is a pipeline, which is merged into a folder: name it with --out")
    return live(lambda folder: MergeDoor(replace(asked, out=folder), Teller(observer)).run(), first)


@checked(asked_for.Layershuffle)
def layershuffle(asked: asked_for.Layershuffle, observer: Observer) -> Record | Json:
    """Draw every layer from one of several models, and write the model that they make; equal seeds draw the same.

    Returns:
        The report of the merge by the recipe that was drawn, which stands in ``out`` as ``isomerge_recipe.yml``.

    Raises:
        IsomergeError: the layers do not fit together, or an option is wrong; nothing is written.
    """
    from isomerge.commands.layershuffle import shuffled  # few merges are drawn

    return shuffled(asked).run(Teller(observer))
