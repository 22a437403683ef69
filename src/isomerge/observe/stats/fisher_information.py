"""The Fisher information of a model on data: its diagonal, and its Kronecker factors for linear layers.

A *sample* is one example: an image with its class, or a whole sequence. Its log-likelihood l is log p(y | x) for a
class, and the mean of log p(y_t | x, y_<t) over the predicted tokens for sequences, so that long texts count as
much as short ones. Which y: those of the data (``given``: the empirical Fisher), one drawn from the model's own
prediction (``sampled``), or all classes, by their probability (``expected``: the Fisher itself).

Every tensor is read once per sample: ``F = E (dl/dW)^2`` (Matena & Raffel 2022, Eq. 3), and for y = W x ``G = E
sum_t g_t g_t^T`` with g_t = dl/dy_t, which with ``A = E x x^T`` over tokens is the factored Fisher ``F_W ~ G (x)
A`` (Martens & Grosse 2015; for weights shared over tokens "K-FAC expand", Eschenhagen et al. 2023).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from isomerge.errors import IsomergeError
from isomerge.models.recognised import Model
from isomerge.observe.data.examples import IGNORED, Examples
from isomerge.observe.live.parameter_places import places_of, tied_names
from isomerge.observe.losses import logits_of, targets_of
from isomerge.observe.predictions import Classes, prediction_of
from isomerge.observe.stats.taps import Place, is_mobile, plan_linears, watch
from isomerge.progress import Observer, quiet

LABELS = ("sampled", "given", "expected")


def labels_for(examples: Examples, labels: str | None) -> str:
    """The choice of labels: ``sampled`` by default where the data have none, ``given`` where they have.

    Raises:
        IsomergeError: no such choice, or given labels where there are none.
    """
    choice = labels or ("given" if examples.labelled else "sampled")
    if choice not in LABELS:
        raise IsomergeError(f"--fisher-labels {labels}: choose from {', '.join(LABELS)}")
    if choice == "given" and not examples.labelled:
        raise IsomergeError("--fisher-labels given: the data have no labels; choose --fisher-labels sampled")
    return choice


def log_likelihoods(
    logits: Tensor, example: Mapping[str, Tensor], labelled: bool, labels: str, seed: int
) -> Iterator[tuple[float, Tensor]]:
    """The log-likelihoods (scalars) whose squared gradients count, with their shares, of one example.

    Args:
        logits: [1, classes] or [1, length, classes].
        example: a batch of one.
        labelled: whether it says what is predicted.
    """
    if logits.shape[-1] == 1:
        raise IsomergeError(
            "a model with a single output predicts no distribution, so it has no Fisher information"
        )
    logs = logits.log_softmax(-1)
    if labels == "expected":
        if logits.ndim != 2:
            raise IsomergeError(
                "--fisher-labels expected: this model predicts tokens, too many to sum over; choose sampled"
            )
        yield from zip(logs[0].detach().exp().tolist(), logs[0], strict=True)
        return
    targets = _targets(logits, example, labelled)
    kept = targets != IGNORED
    if not bool(kept.any()):
        return
    if labels == "sampled":
        rng = torch.Generator().manual_seed(seed)
        u = torch.rand(targets.shape, generator=rng, dtype=torch.float64)[..., None]
        below = logs.detach().double().exp().cumsum(-1).cpu() < u
        targets = below.sum(-1).clamp_max(logits.shape[-1] - 1).to(logits.device)
    chosen = logs.gather(-1, targets.clamp_min(0)[..., None])[..., 0]
    yield 1.0, chosen[kept].mean()


def _targets(logits: Tensor, example: Mapping[str, Tensor], labelled: bool) -> Tensor:
    """What is predicted where; without labels every position that is no padding counts, and is given class 0."""
    if labelled:
        return targets_of(example, logits)
    targets = torch.zeros(logits.shape[:-1], dtype=torch.int64, device=logits.device)
    mask = example.get("attention_mask")
    if mask is not None and mask.shape == targets.shape:
        targets[mask.to(targets.device) == 0] = IGNORED
    return targets


# Outputs that no space moves (classes, vocabularies) have a full factor up to this width (128 MB), a diagonal
# above.
WIDE = 4096


@dataclass(frozen=True)
class FisherInformation:
    """What was gathered of one model, float64, in its own coordinates."""

    fishers: Mapping[str, Tensor] = field(default_factory=dict)
    """The diagonal, in the shape of the block, by block key; a tied tensor is there once."""
    factors: Mapping[str, Tensor] = field(default_factory=dict)
    """G [out, out] of linear layers by block key; its diagonal [out] for wide outputs that nothing moves."""
    tied: Mapping[str, str] = field(default_factory=dict)
    """From tensors that are tied to the one whose Fisher stands for both, canonical names."""
    labels: str = ""
    samples: int = 0


def gather_fisher(
    model: Model,
    module: nn.Module,
    examples: Examples,
    *,
    diagonal: bool = True,
    factors: bool = True,
    labels: str | None = None,
    seed: int = 0,
    observer: Observer = quiet,
) -> FisherInformation:
    """Run a module forwards and backwards over examples, one at a time: gradients of batches cannot be told apart.

    (``torch.func.vmap`` cannot trace the attention masks of most text models of transformers 5, and position tables
    that a batch shares have no gradient per example.)

    Args:
        model: the checkpoint that the module was loaded from.
        module: see `isomerge.observe.live.modules.load_module`; float32.
        examples: every one is a sample; those with nothing to predict are left out.
        diagonal, factors: what is gathered.
        labels: see `labels_for`.
        seed: of the labels that are drawn; every example has its own, whatever comes before it.

    Raises:
        IsomergeError: no head, no distribution over classes, labels that do not fit, nothing to predict, or
            gradients that are no finite numbers.
    """
    labels = labels_for(examples, labels)
    if not isinstance(prediction_of(module, examples.tensors.get("labels")), Classes):
        raise IsomergeError(
            f"{model.ref} predicts values, or several labels at once, and Fisher information is gathered of "
            "distributions over classes or tokens only: leave fisher and kfac out of --kinds"
        )
    sums = _Sums(model, module, diagonal=diagonal, factors=factors)
    samples = 0
    for index, example in enumerate(examples.batches(1)):
        observer(f"reading gradients of {model.ref}", index, len(examples))
        with torch.enable_grad(), sums.watching() as probes:
            logits = logits_of(module, example)
            terms = list(log_likelihoods(logits, example, examples.labelled, labels, seed * 1_000_003 + index))
            for number, (share, likelihood) in enumerate(terms):
                sums.add(share, likelihood, probes, last=number == len(terms) - 1)
        samples += bool(terms)
    if samples == 0:
        raise IsomergeError("the data leave nothing to predict: give longer texts, or labels")
    return sums.information(samples, labels, model.ref)


class _Sums:
    """Sums of squared gradients over samples, float64 on the module's device."""

    def __init__(self, model: Model, module: nn.Module, *, diagonal: bool, factors: bool) -> None:
        self.model, self.module = model, module
        self.places = places_of(module, model)
        known, own = (
            {*self.places.names.values(), *self.places.fused},
            dict(module.named_parameters(remove_duplicate=False)),
        )
        floating = {name: p for name, p in own.items() if name in known and p.is_floating_point()}
        self.parameters = {name: p.requires_grad_() for name, p in floating.items()} if diagonal else {}
        self.layers = plan_linears(model, module) if factors else []
        self.squares: dict[str, Tensor] = {}
        self.factors: dict[str, Tensor] = {}
        blocks = {block.key: block for block in model.blocks}
        self.full = {
            tap.block: is_mobile(model.spec, axes[1 - axis])
            or module.get_parameter(f"{path}.weight").shape[1 - axis] <= WIDE
            for tap, path, axis in self.layers
            if (axes := blocks[tap.block].axes) is not None
        }

    @contextmanager
    def watching(self) -> Iterator[dict[str, list[Tensor]]]:
        """While it lasts, zeros are added to what every layer gives: their gradients are those of the outputs.

        (An output itself may be overwritten by what follows.)
        """
        probes: dict[str, list[Tensor]] = {}

        def add(place: Place, output: Tensor) -> Tensor:
            probe = torch.zeros_like(output, requires_grad=True)
            probes.setdefault(place[0], []).append(probe)
            return output + probe

        with ExitStack() as hooks:
            for tap, path, _ in self.layers:
                watch(hooks, self.module.get_submodule(path), (tap.block, "out"), add)
            yield probes

    def add(self, share: float, likelihood: Tensor, probes: Mapping[str, list[Tensor]], *, last: bool) -> None:
        """Add the squared gradients of one log-likelihood."""
        outputs = [(key, probe) for key, of_layer in probes.items() for probe in of_layer]
        inputs = [*self.parameters.values(), *(probe for _, probe in outputs)]
        grads = torch.autograd.grad(likelihood, inputs, retain_graph=not last, allow_unused=True)
        for name, grad in zip(self.parameters, grads, strict=False):
            if grad is not None:
                _accumulate(self.squares, name, grad.double().square_(), share)
        for (key, _), grad in zip(outputs, grads[len(self.parameters) :], strict=True):
            if grad is not None:
                g = grad.reshape(-1, grad.shape[-1]).double()
                _accumulate(self.factors, key, g.mT @ g if self.full[key] else g.square().sum(0), share)

    def information(self, samples: int, labels: str, ref: str) -> FisherInformation:
        """The means over samples, on the CPU; parameters without a gradient have zeros."""

        def mean(name: str) -> Tensor:
            total = self.squares.get(name)
            if total is None:
                return torch.zeros(self.parameters[name].shape, dtype=torch.float64)
            return total.cpu() / samples

        means, places = {name: mean(name) for name in self.parameters}, self.places
        known = {c for c, name in places.names.items() if name in means}
        known |= {c for c, parts in places.parts.items() if all(name in means for name, _ in parts)}
        fishers = {
            block.key: block.assemble(lambda canonical: places.read(means, canonical))
            for block in self.model.blocks
            if known.issuperset(block.canonical)
        }
        factors = {key: total.cpu() / samples for key, total in self.factors.items()}
        for key, x in (*fishers.items(), *factors.items()):
            if not bool(x.isfinite().all()):
                raise IsomergeError(
                    f"{ref}: gradients of {key} are not finite: this model cannot be read in float32"
                )
        return FisherInformation(fishers, factors, tied_names(self.model, self.module), labels, samples)


def _accumulate(sums: dict[str, Tensor], key: str, x: Tensor, share: float) -> None:
    if key in sums:
        sums[key].add_(x, alpha=share)
    else:
        sums[key] = x * share
