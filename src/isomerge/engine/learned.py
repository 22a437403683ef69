"""Learned matching: all continuous spaces at once, by gradient on the loss between the models.

The line runs from the anchor to the moved source, both in the canonical frame (gains folded, gauges balanced) of the
anchor's own architecture. A step draws a point of the line and a batch, and moves the source along its orbit so that the
loss there falls: labels where there are some, else the mean of the endpoints' predictions. What is kept is the step
whose maximum over the whole path is lowest, on examples that are held out: a midpoint alone can be bought by moving
the barrier elsewhere. The result is an exact symmetry, whatever was learned.

Sources: Theus et al. 2025 (learned matching of residual streams), Ainsworth et al. 2023 and Pena et al. 2023
(straight-through and Sinkhorn permutations), Becigneul and Ganea 2019 (Riemannian Adam).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

from isomerge.data.examples import IGNORED
from isomerge.engine.modules import load_module, parameter_names
from isomerge.engine.streams import StreamSolver
from isomerge.errors import IsomergeError
from isomerge.matching.smooth import RiemannianAdam, SmoothElements
from isomerge.symmetry.alignment import Alignment
from isomerge.symmetry.blocks import Block
from isomerge.symmetry.stage import Stage

if TYPE_CHECKING:
    from torch import Generator, Tensor, nn

    from isomerge.data.examples import Examples
    from isomerge.engine.models import Model

EFFORTS = {"quick": 300, "thorough": 2000}
# The points at which a path is judged: its maximum is what counts.
PATH = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
# Seconds between two saved states.
SAVE_EVERY = 20.0


@dataclass(frozen=True)
class LearnSettings:
    """How a matching is learned; the defaults are the measured recipe (docs/experiments.md)."""

    steps: int = EFFORTS["quick"]
    batch_size: int | None = None
    """Examples per step; by default as many as make about 2048 tokens, or 128 images."""
    target: str = "auto"
    """``labels``, ``distill`` (the mean of the endpoints' predictions), or ``auto``: labels where there are some."""
    rotation_rate: float = 2e-2
    gauge_rate: float = 1e-1
    permutations: bool = False
    device: str = "cpu"
    precision: str = "float32"
    """``bfloat16`` runs the model in mixed precision; the elements stay in float32."""
    shifts: bool = True
    """Shift images at random by up to an eighth of their side."""
    checkpointing: bool = False
    """Trade time for memory: recompute activations in the backward pass."""
    held_out: float = 0.1
    """The share of the examples on which paths are judged."""
    judged: int = 256
    """The largest number of held-out examples."""
    seed: int = 0


@dataclass
class Learned:
    """What was learned: elements that act after the solver's, and the record of the run."""

    elements: dict[str, Tensor]
    report: dict[str, Any] = field(default_factory=dict)


@contextmanager
def substituted(module: nn.Module, tensors: Mapping[str, Tensor]) -> Iterator[None]:
    """While it lasts, parameters of a module are these tensors (by parameter name; tied places follow).

    Unlike torch's functional call it may outlive the forward pass: recomputed activations see the same tensors.
    """
    places: dict[int, list[tuple[dict[str, Any], str]]] = {}
    for _, part in module.named_modules():
        for name, parameter in part._parameters.items():
            if parameter is not None:
                places.setdefault(id(parameter), []).append((part._parameters, name))
    by_name = dict(module.named_parameters(remove_duplicate=False))
    kept = []
    try:
        for name, tensor in tensors.items():
            old = by_name[name]
            for owner, attribute in places[id(old)]:
                kept.append((owner, attribute, old))
                owner[attribute] = tensor
        yield
    finally:
        for owner, attribute, old in kept:
            owner[attribute] = old


class MatchedLine:
    """The line from the anchor to the source as the solver has matched it, moved further by learned elements.

    Args:
        solver: a solver after its descent.
        settings: device and precision.
    """

    def __init__(self, solver: StreamSolver, settings: LearnSettings) -> None:
        import torch

        self.solver, self.settings = solver, settings
        anchor = solver.pair.anchor
        self.module = untied_module(anchor, settings.device)
        self.module.requires_grad_(False)
        if settings.checkpointing:
            _enable_checkpointing(self.module)
        self.names = parameter_names(self.module, anchor.spec)
        self.anchor: dict[Block, Tensor] = {}
        self.source: dict[Block, Tensor] = {}
        for unit in solver.pair.plan.units:
            matched = solver.placed_unit(unit)
            for block in unit.blocks:
                if matched.anchor[block].is_floating_point():
                    self.anchor[block] = matched.anchor[block].to(settings.device, torch.float32)
                    self.source[block] = matched.source[block].to(settings.device, torch.float32)
        shared = {block.key for block in self.anchor}
        self.alone = {
            block: solver.folded(anchor, block).to(settings.device, torch.float32)
            for block in anchor.blocks
            if block.key not in shared and block.canonical[0] in self.names
        }

    def point(self, t: float, stage: Stage | None) -> dict[str, Tensor]:
        """The weights at ``(1 - t) anchor + t source`` by parameter name, with gradients to the stage's elements."""
        import torch

        found = {}
        for block, a in self.anchor.items():
            b = self.source[block]
            if stage is not None and t > 0:
                b = b.clone()
                stage.act_linearly(block, b)
            mixed = torch.lerp(a, b, t) if t < 1 else b
            found |= {self.names[n]: part for n, part in block.split(mixed) if n in self.names}
        for block, a in self.alone.items():
            found |= {self.names[n]: part for n, part in block.split(a) if n in self.names}
        return found

    def logits(self, batch: Mapping[str, Tensor]) -> Tensor:
        """The module's logits with the weights that are substituted now."""
        import torch

        from isomerge.evidence.losses import logits_of

        half = self.settings.precision == "bfloat16"
        kind = torch.device(self.settings.device).type
        with torch.autocast(kind, torch.bfloat16) if half else nullcontext():
            return logits_of(self.module, batch).float()


def untied_module(model: Model, device: str) -> nn.Module:
    """The module of a model; where the model was untied, the module's head has weights of its own."""
    import torch

    module = load_module(model, device=device)
    for name in model.names:
        for line in model.spec.lines:
            if line.tied is not None and line.canonical({}) == name and model.names[name] == name:
                owner, _, attribute = name.rpartition(".")
                place: Any = module.get_submodule(owner)
                setattr(place, attribute, torch.nn.Parameter(getattr(place, attribute).detach().clone()))
    return module


def _enable_checkpointing(module: nn.Module) -> None:
    from torch import nn

    # of the two names the older one is on its way out
    names = ("activation_checkpointing_enable", "gradient_checkpointing_enable")
    enable: Any = next((found for name in names if (found := getattr(module, name, None)) is not None), None)
    if enable is None or not getattr(module, "supports_gradient_checkpointing", True):
        raise IsomergeError(
            f"{type(module).__name__} cannot recompute its activations: leave --gradient-checkpointing away"
        )
    enable()
    config: Any = getattr(module, "config", None)
    if hasattr(config, "use_cache"):
        config.use_cache = False  # nothing is generated; layers that recompute cannot keep a cache
    module.train()  # transformers recomputes in training mode only; nothing may be drawn there
    for part in module.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0
        for name, value in vars(part).items():  # drop_prob, attention_dropout, layerdrop, router_jitter_noise, ...
            if isinstance(value, float) and any(word in name for word in ("drop", "jitter")):
                setattr(part, name, 0.0)


class Learner:
    """Learns the elements that lower the loss along a line.

    Args:
        line: the line to start from.
        examples: what it is learned from; a part is held out to judge.
        state: where the state is kept for a run that is interrupted.
        observer: told of steps done and of the current loss.
    """

    def __init__(
        self, line: MatchedLine, examples: Examples, state: Path, observer: Callable[[str, int, int], None]
    ) -> None:
        settings = line.settings
        self.line, self.observer, self.state, self.settings = line, observer, state, settings
        self.target = settings.target
        if self.target == "auto":
            self.target = "labels" if examples.labelled else "distill"
        if self.target == "labels" and not examples.labelled:
            raise IsomergeError("the data have no labels: learn with --learn-target distill")
        if len(examples) < 2:
            raise IsomergeError(
                "--learn: a single example is too few, as one is held out to judge by: give more data"
            )
        held, self.examples = examples.split(max(settings.held_out, 0.6 / len(examples)), seed=settings.seed)
        self.held = held.head(settings.judged)
        self.batch_size = settings.batch_size or _batch_size(examples)
        solver = line.solver
        keys = [k for unit in solver.pair.plan.units if solver.is_matched(unit) for k in unit.elements]
        keys = [*dict.fromkeys(k for k in keys if not k.startswith("shift."))]
        full = Alignment(solver.frame) @ Alignment(solver.local)
        self.elements = SmoothElements(
            full.spec, [*solver.frame.streams, *keys], settings.device, permutations=settings.permutations
        )
        if not self.elements.parameters():
            raise IsomergeError("nothing can be learned: no continuous space is chosen; add some with --spaces")
        self.optimiser = RiemannianAdam(
            self.elements, settings.rotation_rate, settings.gauge_rate, settings.steps, min(20, settings.steps)
        )
        self.best: tuple[float, dict[str, Tensor]] | None = None
        self.history: list[dict[str, float]] = []

    def stage(self) -> Stage:
        """The learned elements as they act now."""
        return Stage(self.elements.acting, self.elements.elements())

    # -------------------------------------------------------------------- loss

    def loss(self, batch: Mapping[str, Tensor], wanted: Tensor | None) -> Tensor:
        """The mean loss in nats of the substituted weights."""
        import torch

        from isomerge.evidence.losses import loss_of_logits, targets_of

        logits = self.line.logits(batch)
        if wanted is None:
            total, count, _ = loss_of_logits(logits, targets_of(batch, logits))
            return total / max(count, 1)
        gap = -(wanted * torch.log_softmax(logits, -1)).sum(-1)
        kept = gap[_kept(batch, logits)]
        return kept.sum() / max(kept.numel(), 1)

    def wanted(self, batch: Mapping[str, Tensor]) -> Tensor | None:
        """The mean of the endpoints' predictions, where these are the target."""
        import torch

        if self.target == "labels":
            return None
        with torch.no_grad():
            parts = []
            for t in (0.0, 1.0):
                with substituted(self.line.module, self.line.point(t, None)):
                    parts.append(self.line.logits(batch).softmax(-1))
        return (parts[0] + parts[1]) / 2

    def judge(self) -> dict[str, Any]:
        """The path on the held-out examples: excess loss over the straight line between the endpoints', and its maximum."""
        import torch

        with torch.no_grad():
            stage = Stage(self.elements.acting, self.elements.elements())
            ends = [self._held_loss(t, stage) for t in (0.0, 1.0)]
            excess = [self._held_loss(t, stage) - ((1 - t) * ends[0] + t * ends[1]) for t in PATH]
        return {"excess": excess, "barrier": max(excess), "midpoint": excess[len(PATH) // 2]}

    def _held_loss(self, t: float, stage: Stage) -> float:
        total, count = 0.0, 0
        with substituted(self.line.module, self.line.point(t, stage)):
            for batch, wanted in self.judged:
                n = len(next(iter(batch.values())))
                total, count = total + float(self.loss(batch, wanted)) * n, count + n
        return total / count

    @cached_property
    def judged(self) -> list[tuple[dict[str, Tensor], Tensor | None]]:
        """The held-out batches with their targets; images are shifted as those that are learned from."""
        import torch

        found = []
        for number, batch in enumerate(self.held.batches(max(self.batch_size, 32))):
            here = {name: x.to(self.settings.device) for name, x in batch.items()}
            if self.settings.shifts:
                here = shifted(here, torch.Generator().manual_seed(number))
            found.append((here, self.wanted(here)))
        return found

    # --------------------------------------------------------------------- run

    def run(self) -> Learned:
        """Learn; an interrupted run goes on where its state was saved."""
        self._resume()
        steps, saved = self.settings.steps, monotonic()
        looks = {0, steps, *(steps * k // 10 for k in range(4, 10))}
        for batch in self._batches(self.optimiser.step_number):
            number = self.optimiser.step_number
            if number in looks:
                self._keep_if_better(number)
            if number >= steps:
                break
            self._step(number, batch)
            if monotonic() - saved > SAVE_EVERY:
                self._save()
                saved = monotonic()
        assert self.best is not None
        self.elements.load(self.best[1])
        report = {
            "target": self.target,
            "steps": steps,
            "batch_size": self.batch_size,
            "examples": len(self.examples),
            "held_out": len(self.held),
            "barrier": self.best[0],
            "history": self.history,
        }
        return Learned(self.elements.solution(), report)

    def _step(self, number: int, batch: Mapping[str, Tensor]) -> None:
        import torch

        rng = torch.Generator().manual_seed(self.settings.seed * 1_000_003 + number)
        t = 0.5 if number % 2 == 0 else float(torch.rand((), generator=rng)) * 0.5 + 0.25
        if self.settings.shifts:
            batch = shifted(batch, rng)
        wanted = self.wanted(batch)
        with substituted(self.line.module, self.line.point(t, self.stage())):
            loss = self.loss(batch, wanted)
            if not bool(loss.isfinite()):
                raise IsomergeError(
                    f"learning diverged at step {number} (loss {float(loss.detach())}): learn with --precision float32, or give other data with --learn"
                )
            backward(loss)
        self.optimiser.step()
        self.observer(f"learning, loss {float(loss.detach()):.3f}", number + 1, self.settings.steps)

    def _batches(self, first: int) -> Iterator[dict[str, Tensor]]:
        """Batches from step ``first`` on, an epoch after the other, each in an order of its own."""
        size = min(self.batch_size, len(self.examples))
        per_epoch = max(len(self.examples) // size, 1)
        epoch, skip = divmod(first, per_epoch)
        while True:
            seed = self.settings.seed * 7919 + epoch
            for k, batch in enumerate(self.examples.batches(size, shuffle_seed=seed, drop_last=True)):
                if k >= skip:
                    yield {name: x.to(self.settings.device) for name, x in batch.items()}
            epoch, skip = epoch + 1, 0

    def _keep_if_better(self, number: int) -> None:
        if self.history and self.history[-1]["step"] >= number:
            return  # a resumed run has judged this step already
        found = self.judge()
        self.history.append({"step": number, "barrier": found["barrier"], "midpoint": found["midpoint"]})
        if self.best is None or found["barrier"] < self.best[0]:
            self.best = (found["barrier"], self.elements.state())
        self._save()

    # ------------------------------------------------------------------- state

    def _save(self) -> None:
        import json
        import os

        from safetensors.torch import save_file

        parts = {"now": self.elements.state(), "optimiser": self.optimiser.state()}
        if self.best is not None:
            parts["best"] = self.best[1]
        tensors = {f"{part}/{k}": v.contiguous() for part, d in parts.items() for k, v in d.items()}
        about = {"history": self.history, "best": None if self.best is None else self.best[0]}
        beside = self.state.with_suffix(".new")
        save_file(tensors, str(beside), metadata={"isomerge": json.dumps(about)})
        os.replace(beside, self.state)

    def _resume(self) -> None:
        import json

        from safetensors import safe_open

        if not self.state.exists():
            return
        parts: dict[str, dict[str, Tensor]] = {}
        with safe_open(str(self.state), "pt") as file:
            about = json.loads((file.metadata() or {})["isomerge"])
            for name in file.keys():  # noqa: SIM118
                part, _, key = name.partition("/")
                parts.setdefault(part, {})[key] = file.get_tensor(name)
        self.elements.load(parts["now"])
        self.optimiser.load(parts["optimiser"])
        self.history = about["history"]
        if "best" in parts:
            self.best = (about["best"], parts["best"])


def shifted(batch: Mapping[str, Tensor], rng: Generator) -> dict[str, Tensor]:
    """Images [n, c, height, width] shifted at random by up to an eighth of their side, edges repeated; other inputs as
    they are. A few hundred images are soon known by heart: endpoints that have seen them say nothing new about them."""
    import torch

    pixels = batch.get("pixel_values")
    if pixels is None or pixels.ndim != 4:
        return dict(batch)
    n, channels, height, width = pixels.shape
    reach = max(1, min(height, width) // 8)
    down, right = (torch.randint(0, 2 * reach + 1, (n,), generator=rng) for _ in range(2))
    padded = torch.nn.functional.pad(pixels, (reach, reach, reach, reach), mode="replicate")
    rows = (down[:, None] + torch.arange(height)).to(pixels.device)[:, None, :, None]
    columns = (right[:, None] + torch.arange(width)).to(pixels.device)[:, None, None, :]
    found = padded.gather(2, rows.expand(n, channels, height, width + 2 * reach))
    return {**batch, "pixel_values": found.gather(3, columns.expand(n, channels, height, width))}


def backward(loss: Tensor) -> None:
    """The backward pass.

    Raises:
        IsomergeError: the device has too little memory for it.
    """
    import torch

    try:
        loss.backward()
    except torch.OutOfMemoryError as error:
        raise IsomergeError(
            "the device has too little memory: give a smaller --batch-size, or --gradient-checkpointing"
        ) from error


def _kept(batch: Mapping[str, Tensor], logits: Tensor) -> Tensor:
    """The predictions that count: all of a classifier, the tokens of a text that are no padding."""
    import torch

    read, written = batch.get("attention_mask"), batch.get("labels")
    if "decoder_input_ids" in batch:  # the mask is of what the encoder reads
        read = None if written is None else (written != IGNORED).long()
    if logits.ndim == 3 and read is not None and read.shape == logits.shape[:-1]:
        return read.to(logits.device) == 1
    return torch.ones(logits.shape[:-1], dtype=torch.bool, device=logits.device)


def _batch_size(examples: Examples) -> int:
    ids = examples.tensors.get("input_ids")
    return 128 if ids is None else max(1, 2048 // ids.shape[1])


def settings_of(effort: str, steps: int | None, **more: Any) -> LearnSettings:
    """Settings from the names of the command line.

    Raises:
        IsomergeError: an unknown effort, target or precision, or a number out of range.
    """
    if effort not in EFFORTS:
        raise IsomergeError(f"--learn-effort {effort}: choose from {', '.join(EFFORTS)}")
    found = LearnSettings(steps=EFFORTS[effort] if steps is None else steps, **more)
    if found.steps < 1:
        raise IsomergeError(f"--steps {found.steps}: at least one step is needed")
    if found.target not in ("auto", "labels", "distill"):
        raise IsomergeError(f"--learn-target {found.target}: choose labels or distill")
    if found.batch_size is not None and found.batch_size < 1:
        raise IsomergeError(f"--batch-size {found.batch_size}: at least one example is needed")
    if not 0 <= found.seed < 1 << 32:
        raise IsomergeError(f"--seed {found.seed}: give a number from 0 to 4294967295")
    if found.precision not in ("float32", "bfloat16"):
        raise IsomergeError(f"--precision {found.precision}: choose float32 or bfloat16")
    return found
