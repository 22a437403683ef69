"""Building specimens: from a real config to a tiny random model of its class, and of one's own modules: plain
torch, or classes that transformers does not build by itself."""

from __future__ import annotations

import copy
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook as on_parameter

from isomerge.config.agreement import read_by_transformers
from isomerge.config.config_parts import parts_of
from isomerge.discovery.shrinking import FALLBACKS, SCALES, Change, Scale, shrunk_whole
from isomerge.discovery.specimen import Place, Specimen, double_precision, joined_places, loaded, places_of
from isomerge.discovery.specimen_inputs import inputs_of
from isomerge.errors import IsomergeError, first_line, guide, own_code
from isomerge.evidence.outputs import returned
from isomerge.progress import silent
from isomerge.records import Json

HEADS = (
    "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING",
    "MODEL_FOR_ZERO_SHOT_IMAGE_CLASSIFICATION_MAPPING",
    "MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING",
    "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING",
    "MODEL_FOR_MASKED_LM_MAPPING",
    "MODEL_FOR_CAUSAL_LM_MAPPING",
    "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING",
    "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING",
    "MODEL_FOR_PRETRAINING_MAPPING",
    "MODEL_MAPPING",
)
"""Where the class of a config without ``architectures`` is looked up, in this order."""


CLASSIFIER, PADDING = "SequenceClassification", "pad_token_id"
"""How classes are called that may read the last token that does not pad, and take no batch without such a token."""
LARGEST = 20_000_000
"""Parameters of a specimen: tiny models have a tenth of a million; one whose sizes were not made small would take
hours."""


def real_config(config: Mapping[str, Any]) -> Any:
    """The configuration object of a ``config.json``.

    Raises:
        IsomergeError: the installed transformers does not know its class.
    """
    kind = config.get("model_type")
    try:
        with silent():
            return read_by_transformers({**config, "model_type": str(kind)})
    except Exception as error:
        import transformers

        raise IsomergeError(
            f"config.json: transformers {transformers.__version__} cannot make a model of model_type {kind!r} "
            f"({first_line(error)}): register its classes (AutoConfig, AutoModel) in the same process, or write "
            f"its spec by hand ({guide('add-an-architecture')})"
        ) from None


def class_of(config: Any) -> Any:
    """The class of a model: the one that the config names, or the first head that transformers has for it."""
    import transformers
    from transformers.models.auto import modeling_auto

    for name in getattr(config, "architectures", None) or []:
        kind = getattr(transformers, str(name), None)
        if kind is not None and hasattr(kind, "from_pretrained"):
            return kind
    for mapping in HEADS:
        table = getattr(modeling_auto, mapping)
        if type(config) in table:
            kind = table[type(config)]
            return kind[0] if isinstance(kind, (tuple, list)) else kind
    raise IsomergeError(f"config.json: transformers has no model for {type(config).__name__}")


def make_specimen(
    config: Any, scale: Scale, seed: int, *, untied: bool = True, fallbacks: Sequence[Change] = FALLBACKS
) -> Specimen:
    """A tiny random model of the class of ``config``.

    Args:
        config: the real configuration object.
        scale: how small (see `isomerge.discovery.shrinking`).
        seed: of its weights and inputs.
        untied: give heads that are tied to the embeddings weights of their own.
        fallbacks: what is tried next where the class refuses the scale.

    Raises:
        IsomergeError: transformers cannot build or run it.
    """
    kind = class_of(config)
    first: Exception | None = None
    for change in (lambda s: s, *fallbacks):
        try:
            specimen = _built(config, kind, change(scale), seed, untied)
        except IsomergeError:
            raise
        except Exception as error:  # whatever the code of a model raises for sizes that it refuses
            first = first or error
            continue
        if not all(bool(out.isfinite().all()) for out in specimen.reference):
            raise IsomergeError(f"a tiny random {kind.__name__} has outputs that are not finite: it proves nothing")
        return specimen
    assert first is not None
    raise IsomergeError(
        f"a tiny {kind.__name__} cannot be built or run ({type(first).__name__}: {first_line(first)}): "
        f"write its spec by hand ({guide('add-an-architecture')})"
    ) from first


def _built(config: Any, kind: Any, scale: Scale, seed: int, untied: bool) -> Specimen:
    small = _settled(shrunk_whole(config.to_dict(), scale), untied)
    if scale.labels:
        small["num_labels"] = scale.labels
    if CLASSIFIER in kind.__name__ and small.get(PADDING, 0) is None:
        small[PADDING] = 0
    with silent(), torch.random.fork_rng(devices=[]), double_precision():
        torch.manual_seed(seed)
        made = type(config)(**{k: v for k, v in small.items() if k != "model_type"})
        made.architectures = [kind.__name__]
        made._attn_implementation = "eager"
        made._experts_implementation = "eager"
        with _bounded(kind):
            module = kind(made).double().eval()
        randomise(module, seed)
        module.tie_weights()
        stored, on_disk = saved(module)
        frozen = {name for name, p in module.named_parameters() if not p.requires_grad}
        # what a checkpoint does not bring stays as its class makes it
        module = loaded(kind, module.config, stored)
        for name, p in module.named_parameters():
            p.requires_grad_(name not in frozen)
    parameters = dict(module.named_parameters(remove_duplicate=False))
    places = places_of(stored, parameters)
    joined = joined_places(stored, places, parameters)
    specimen = Specimen(module, on_disk, stored, places, inputs_of(module, made, scale, seed), joined=joined)
    specimen.reference = specimen.outputs()
    return specimen


def _settled(small: Json, untied: bool) -> Json:
    """A config without caches and without a precision of its own, its parts likewise; with heads of its own if so
    wanted."""
    plain = {key: value for key, value in small.items() if key not in ("dtype", "torch_dtype")}
    settled = {"use_cache": False, **({"tie_word_embeddings": False} if untied else {})}
    return {**plain, **settled, **{key: _settled(dict(part), untied) for key, part in parts_of(plain).items()}}


@contextmanager
def _bounded(kind: Any) -> Iterator[None]:
    """Refuse a model of more than LARGEST parameters, while it is built."""
    total = 0

    def count(module: nn.Module, name: str, parameter: Tensor | None) -> None:
        nonlocal total
        if parameter is not None and (total := total + parameter.numel()) > LARGEST:
            raise IsomergeError(
                f"config.json: a {kind.__name__} with all sizes made small that discovery knows has more than "
                f"{LARGEST:,} parameters ({type(module).__name__} has {' by '.join(map(str, parameter.shape))}), "
                f"which is no tiny model: write its spec by hand ({guide('add-an-architecture')})"
            )

    handle = on_parameter(count)
    try:
        yield
    finally:
        handle.remove()


def saved(module: Any) -> tuple[dict[str, Tensor], Json]:
    """The tensors that ``save_pretrained`` writes, by their names on disk, and the config beside them."""
    with tempfile.TemporaryDirectory(prefix="isomerge-") as folder, silent():
        module.save_pretrained(folder)
        tensors = {}
        for file in sorted(Path(folder).glob("*.safetensors")):
            tensors |= load_file(file)
        return tensors, json.loads((Path(folder) / "config.json").read_text())


def randomise(module: nn.Module, seed: int) -> None:
    """Fill every parameter that is trained: matrices 0.15 N, vectors 0.3 N, gains around one, so that no term is
    vacuous. Sinusoids that are stored stay what they are."""
    rng = torch.Generator().manual_seed(seed)
    for name, p in module.named_parameters():
        if not p.requires_grad:
            continue
        gain = p.ndim == 1 and "bias" not in name
        scale = 0.3 if p.ndim == 1 else 0.15
        p.data = torch.randn(p.shape, generator=rng, dtype=torch.float64) * scale + float(gain)


def specimens(config: Any, seed: int, *, untied: bool = True) -> tuple[Specimen, Specimen]:
    """One specimen of each of the `SCALES`."""
    first, second = (make_specimen(config, scale, seed + n, untied=untied) for n, scale in enumerate(SCALES))
    return first, second


Forward = Callable[[Any, Any], Any]
"""From a module and an input to what it computes."""


@dataclass(eq=False)
class ModuleSpecimen(Specimen):
    """A module of one's own with random weights, in float64, and how it is run."""

    forward: Forward | None = None

    @property
    def many(self) -> list[Any]:
        """All inputs that the user gives."""
        return self.inputs

    def outputs(self) -> list[Tensor]:
        """Every tensor that the module returns for each input, float64."""
        with double_precision(), torch.no_grad():
            every = [self._returned(each) for each in self.inputs]
        floats = [[t.double() for t in tensors.values() if t.is_floating_point()] for tensors in every]
        if not all(floats):
            raise IsomergeError(f"{type(self.module).__name__} gives no floating-point numbers for these inputs")
        return [tensor for tensors in floats for tensor in tensors]

    def _returned(self, inputs: Any) -> dict[str, Tensor]:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)  # modules that draw at random
            return returned((self.forward or called)(self.module, inputs))

    @contextmanager
    def holding(self, moved: Mapping[str, Tensor], *, disk: bool = False) -> Iterator[None]:
        """As `Specimen.holding`; by way of the disk is by ``load_state_dict``, which is how such modules are
        read."""
        if not disk:
            with super().holding(moved):
                yield
            return
        before, self.module = self.module, copy.deepcopy(self.module)
        try:
            self.module.load_state_dict({**self.stored, **moved})
            yield
        finally:
            self.module = before


def module_specimens(
    module: Any, config: Mapping[str, Any], inputs: Any, forward: Forward | None = None, seed: int = 0
) -> tuple[ModuleSpecimen, ModuleSpecimen]:
    """Two copies of a module with random weights.

    Args:
        module: a ``torch.nn.Module``, best a tiny one: symmetries do not depend on size.
        config: what its checkpoints have as config.json.
        inputs: one input or a list of them: keywords as a dict, arguments as a tuple, or the only argument.
        forward: called with module and input, where the module itself is not what is called.
        seed: of the weights.

    Raises:
        IsomergeError: the module is large, does not run on the inputs, or gives no finite numbers.
    """
    pair = [_specimen(module, config, inputs, forward, seed + n) for n in range(2)]
    return pair[0], pair[1]


def _specimen(
    module: Any, config: Mapping[str, Any], inputs: Any, forward: Forward | None, seed: int
) -> ModuleSpecimen:
    name, size = type(module).__name__, sum(p.numel() for p in module.parameters())
    if size > LARGEST:
        raise IsomergeError(
            f"{name} has {size:,} parameters: give a tiny one of the same class (symmetries do not depend on size)"
        )
    own = copy.deepcopy(module).cpu().double().eval()
    randomise(own, seed)
    stored = {n: t.detach().clone() for n, t in own.state_dict().items()}
    places = {n: Place(n) for n, _ in own.named_parameters(remove_duplicate=False)}
    each = inputs if isinstance(inputs, list) else [inputs]
    specimen = ModuleSpecimen(own, dict(config), stored, places, [_double(x) for x in each], forward=forward)
    takes = "a dict of keywords, a tuple of arguments, or the only argument"
    with own_code(f"{name} does not run on the inputs", f"give inputs= as its forward takes them ({takes})"):
        specimen.reference = specimen.outputs()
    if not all(bool(out.isfinite().all()) for out in specimen.reference):
        raise IsomergeError(f"{name} with random weights gives numbers that are not finite: it proves nothing")
    return specimen


def called(module: Any, inputs: Any) -> Any:
    """What a module computes from keywords (a dict), arguments (a tuple), or one argument."""
    if isinstance(inputs, Mapping):
        return module(**inputs)
    return module(*inputs) if isinstance(inputs, tuple) else module(inputs)


def _double(value: Any) -> Any:
    """Inputs of any structure in float64 where they are of floating point."""
    if isinstance(value, torch.Tensor):
        return value.double() if value.is_floating_point() else value
    if isinstance(value, Mapping):
        return {key: _double(part) for key, part in value.items()}
    if isinstance(value, (tuple, list)):
        return type(value)(map(_double, value))
    return value
