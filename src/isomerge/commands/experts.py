"""Dense models made into one with experts: planned (opened, checked, nothing written), then run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import torch
import yaml
from torch import Tensor

from isomerge.archs.expert_targets import ExpertTarget
from isomerge.commands.expert_alignments import ExpertAlignment, Frame, planned_alignments
from isomerge.commands.experts_asked import ExpertsAsked, note_idle_options
from isomerge.commands.opening import Means, destination, recognised
from isomerge.errors import IsomergeError
from isomerge.evidence.card import RECIPE, alignment_file, model_card
from isomerge.evidence.parents import parents_of
from isomerge.merging.experts.expert_checks import check_expert, chosen_target, experts_recipe_text, told_of_recipe
from isomerge.merging.recipe.recipe_words import told_in_keys
from isomerge.merging.recipe.schema import ExpertEntry, ExpertsRecipe
from isomerge.models.experts_view import (
    DenseMlps,
    ExpertFrame,
    ExpertNumbers,
    ExpertPart,
    experts_config,
    with_experts,
)
from isomerge.models.recognised import Model, recognise
from isomerge.observe.prompt_rows import (
    DEGENERATE,
    DRAWS,
    READS,
    Prompts,
    condition_numbers,
    drawn_rows,
    prompt_rows,
    tokenised,
)
from isomerge.records import Record, inline, named, optional
from isomerge.run.provenance import ModelChecksum, model_checksums, other_models
from isomerge.run.run_report import RunReport, run_notes, run_of
from isomerge.run.view_writing import write_blocks
from isomerge.run.writing_run import Output, StreamWriter, run_key
from isomerge.solve.match_checks import files_of_matching
from isomerge.solve.unfinished_run import load_parts, save_parts

TEXT = (
    "A mixture of experts made of dense models: attention, norms and embeddings are those of the first model, and "
    "every expert is the MLPs of one of them. Made by isomerge."
)


class Expert(Record):
    """A model whose MLPs become an expert."""

    model: str
    prompts: Mapping[str, int]
    """How many, ``positive`` and ``negative``."""
    frame: Frame = inline()
    noise_scale: float | None = optional()
    residual_scale: float | None = optional()


class MixtureSize(Record):
    """Parameters."""

    per_token: int
    every: int = named("all")


class Mixture(Record, kw_only=True):
    """A mixture of experts that is made of dense models."""

    method: str = "moe"
    gate_mode: str
    experts_per_token: int
    align: bool
    experts: Sequence[Expert]
    shared_experts: Sequence[Expert]
    parameters: MixtureSize
    bytes: int
    architecture: str


class MixtureReport(RunReport, kw_only=True):
    """What is said of one that was written."""

    about: Mixture = inline()
    """Its architecture is the mixture's, and not the dense models'."""
    condition_numbers: Sequence[float]
    checksums: Sequence[ModelChecksum]


@dataclass
class Experts:
    """A model with experts that will be written."""

    asked: ExpertsAsked
    base: Model
    models: dict[str, Model]
    """The dense models by what the recipe calls them."""
    target: ExpertTarget
    frames: dict[str, ExpertFrame]
    alignments: dict[str, ExpertAlignment]
    output: Output
    notes: list[str]
    rows: Tensor | None = field(default=None, repr=False)
    """Of the routers, float32 [layers, experts and shared ones, width], once they are known."""

    @cached_property
    def view(self) -> Model:
        """The model that is written, recognised by its own architecture.

        Raises:
            IsomergeError: the target has no place for something of the base.
        """
        recipe, base = self.asked.recipe, self.base
        numbers = ExpertNumbers(len(recipe.experts), recipe.experts_per_token, len(recipe.shared_experts))
        parts = [self._part(entry, str(k)) for k, entry in enumerate(recipe.experts)]
        shared = [self._part(entry, f"shared {k}") for k, entry in enumerate(recipe.shared_experts)]
        checkpoint = with_experts(
            base,
            self.target,
            experts_config(base, self.target, numbers),
            experts=[part.read for part in parts],
            shared=[part.read for part in shared],
            rows=lambda layer: self._rows()[layer, : len(parts)],
            shared_rows=lambda layer: self._rows()[layer, len(parts) :],
            sources=[model.checkpoint for model in self.models.values()],
            origin=f"experts {self.recipe_text}",
            dtype=self.output.dtype,
        )
        try:
            return recognise(checkpoint)
        except IsomergeError as error:
            raise IsomergeError(
                f"{base.ref} cannot become {self.target.stem}, which stores other tensors than it has ({error})"
            ) from None

    @cached_property
    def mlps(self) -> DenseMlps:
        """Of the base."""
        return DenseMlps(self.base, self.target)

    def _part(self, entry: ExpertEntry, name: str) -> ExpertPart:
        frame = self.frames[entry.source_model]
        return ExpertPart(frame, name, entry.noise_scale, entry.residual_scale, self.asked.seed)

    def _rows(self) -> Tensor:
        assert self.rows is not None, "rows are asked for before they are known"
        return self.rows

    @cached_property
    def recipe_text(self) -> str:
        """The recipe that makes this again."""
        asked = self.asked
        return experts_recipe_text(asked.recipe, asked.said, asked.seed, self.output.dtype)

    @property
    def about(self) -> Mixture:
        """What will be made."""
        recipe = self.asked.recipe
        return Mixture(
            architecture=self.target.model_type,
            gate_mode=recipe.gate_mode,
            experts_per_token=recipe.experts_per_token,
            align=recipe.align.enabled is not False,
            experts=[self._expert(entry) for entry in recipe.experts],
            shared_experts=[self._expert(entry) for entry in recipe.shared_experts],
            parameters=self._parameters(),
            bytes=self.view.checkpoint.nbytes,
        )

    def _expert(self, entry: ExpertEntry) -> Expert:
        alignment = self.alignments.get(entry.source_model)
        frame = "base" if entry.source_model == self.asked.recipe.base_model else "stored"
        return Expert(
            self.models[entry.source_model].ref,
            prompts={"positive": len(entry.positive_prompts), "negative": len(entry.negative_prompts)},
            frame=Frame(frame) if alignment is None else alignment.frame,
            noise_scale=entry.noise_scale,
            residual_scale=entry.residual_scale,
        )

    def _parameters(self) -> MixtureSize:
        mlps, count = self.mlps, len(self.asked.recipe.experts)
        total = sum(torch.Size(info.shape).numel() for info in self.view.checkpoint.tensors.values())
        of_expert = sum(
            torch.Size(mlps.shape(layer, tail)).numel()
            for layer in range(len(mlps.layers))
            for tail in self.target.dense
        )
        return MixtureSize(total - of_expert * (count - self.asked.recipe.experts_per_token), every=total)

    def run(self) -> MixtureReport:
        """Align, make the routers, write; the report."""
        view, recipe = self.view, self.asked.recipe
        key = run_key(
            "experts",
            list(self.models.values()),
            self.recipe_text,
            view.checkpoint.origin,
            self.output.dtype,
            self.output.out_shard_size,
        )
        with StreamWriter(view, self.output, key, others=self.models.values()) as stream:
            for number, (name, alignment) in enumerate(self.alignments.items()):
                self.frames[name].alignment = alignment.moves(stream, number)
                self.frames[name].model = alignment.source
            self.rows = self._made_rows(stream)
            write_blocks(stream, view)
            report = self._report(recipe)
            moved = [f.alignment for name, f in self.frames.items() if f.alignment is not None]
            files = {alignment_file(k, len(moved)): a for k, a in enumerate(moved, 1)}
            text = self.recipe_text + yaml.safe_dump(
                {"checksums": [each.checksum for each in report.checksums]}, default_flow_style=None, width=116
            )
            return stream.finish(report, files, self._card(report, text), more={RECIPE: text.encode()})

    def _made_rows(self, stream: StreamWriter) -> Tensor:
        """The rows of the routers, found once and kept in the folder of the unfinished output."""
        path = stream.blob("rows.safetensors")
        kept = load_parts(path) if stream.done("rows") is not None else None
        if kept is not None:
            return kept[0]["router"]["rows"]
        rows = self._new_rows()
        save_parts(path, {"router": {"rows": rows}}, {})
        stream.commit("rows", {})
        return rows

    def _new_rows(self) -> Tensor:
        recipe = self.asked.recipe
        layers, width = len(self.mlps.layers), self.mlps.width
        gated = recipe.entries() if self.target.shared == "gated" else recipe.experts
        if recipe.gate_mode in DRAWS:  # for all that are listed, as mergekit has it
            return drawn_rows(recipe.gate_mode, layers, len(recipe.entries()), width, self.asked.seed)
        device, observer = self.asked.match.device, self.output.observer
        prompts = prompts_of(gated)
        return prompt_rows(self.base, recipe.gate_mode, prompts, layers, device=device, observer=observer)

    def _report(self, recipe: ExpertsRecipe) -> MixtureReport:
        notes = list(self.notes)
        conditions = condition_numbers(self._rows()[:, : len(recipe.experts)]) if len(recipe.experts) > 1 else []
        alike = [k for k, value in enumerate(conditions) if value > DEGENERATE]
        if alike and recipe.gate_mode in READS:
            notes.append(
                f"the rows of the router are much alike in {len(alike)} of {len(conditions)} layers (condition "
                f"numbers to {max(conditions):.3g}): some experts will be used little; give other prompts"
            )
        others = [model for name, model in self.models.items() if name != recipe.base_model]
        run = run_of("merge", [self.base, *others])
        checksums = model_checksums(list(self.models.values()), run.inputs, recipe.checksums)
        return MixtureReport(
            run=run,
            notes=run_notes([*notes, *other_models(checksums)]),
            about=self.about,
            condition_numbers=conditions,
            checksums=checksums,
        )

    def _card(self, report: MixtureReport, recipe: str) -> str:
        roles = [(self.base.ref, "attention, norms, embeddings and head")]
        for what, experts in (("expert", report.about.experts), ("shared expert", report.about.shared_experts)):
            roles += [(e.model, f"{what} {k}, {FRAMES[e.frame.frame]}") for k, e in enumerate(experts)]
        parents = parents_of([model.checkpoint for model in self.models.values()])
        return model_card(
            "Mixture of experts",
            [model.ref for model in self.models.values()],
            TEXT,
            report.document(),
            parents=parents,
            architectures=self.view.config.get("architectures") or (),
            recipe=recipe,
            roles=roles,
        )


FRAMES = {
    "base": "its own",
    "stored": "as it is stored",
    "same": "aligned already, as it is stored",
    "aligned": "aligned onto the first model",
}
"""What is said of the frame that an expert is read in."""


def prompts_of(entries: Sequence[ExpertEntry]) -> list[Prompts]:
    """The prompts of experts."""
    return [Prompts(tuple(entry.positive_prompts), tuple(entry.negative_prompts)) for entry in entries]


@contextmanager
def planned_experts(asked: ExpertsAsked, out: str | Path | None, means: Means) -> Iterator[Experts]:
    """A model with experts as it will be made: opened, checked, and nothing is written.

    Raises:
        IsomergeError: the models do not fit together, no architecture has a place for them, or prompts without a
            tokenizer.
    """
    recipe, align = asked.recipe, asked.recipe.align.enabled
    names = recipe.model_names()
    running, observer = means.running, means.observer
    with ExitStack() as stack:
        stack.enter_context(told_in_keys(asked.path, recipe, asked.said))
        opened = stack.enter_context(recognised(names, replace(means.opening, spec=asked.spec)))
        reads = (asked.spec, asked.path, *files_of_matching(asked.match))
        writes = destination(
            out, replace(means.writing, dtype=asked.dtype), opened, *reads, running=running, observer=observer
        )
        output = stack.enter_context(writes)
        models = dict(zip(names, opened, strict=True))
        base = opened[0]
        kinds = [str(model.config.get("model_type")) for model in opened]
        target = chosen_target(recipe, kinds, asked.path)
        note_idle_options(asked, out)
        notes = told_of_recipe(recipe)
        for model in opened[1:]:
            notes += check_expert(base, model, target, aligned=align is not False)
        frames = {name: ExpertFrame(model, base) for name, model in models.items()}
        plan = Experts(asked, base, models, target, frames, {}, output, notes)
        output.check([plan.view, *opened])
        if recipe.gate_mode in READS:
            tokenised(base, prompts_of([entry for entry in recipe.entries() if entry.positive_prompts]))
        others = {name: model for name, model in models.items() if name != recipe.base_model}
        plan.alignments, more = planned_alignments(
            base, others, asked.match, recipe.align, stack=stack, running=running, observer=observer
        )
        plan.notes += more
        yield plan
