"""Models and data that are Python objects, made ready at the door: modules of one's own with their loss, batches by
the names of their forward's arguments, texts through a tokenizer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeGuard, TypeVar

from isomerge.checkpoint.in_memory import as_reference, own_checkpoint
from isomerge.checkpoint.own_class import OwnClass, is_own
from isomerge.checkpoint.reader import Checkpoint
from isomerge.errors import IsomergeError
from isomerge.models.model_inputs import BYTES, Inputs
from isomerge.models.references import open_model_ref
from isomerge.observe.data.examples import Examples
from isomerge.observe.data.live_data import as_data, examples_of_texts, texts_file
from isomerge.observe.data.rows import TEXTS
from isomerge.options.requests.adapting import Surgery
from isomerge.options.requests.measuring import Barrier, Evaluate, Stats
from isomerge.options.unused import note
from isomerge.records import Json
from isomerge.solve.match_inputs import TOKENS, data_for
from isomerge.solve.match_options import GENERATE

Loss = Callable[[Any, Any], Any]
AskedOnData = TypeVar("AskedOnData", Barrier, Evaluate, Stats, Surgery)


def own_models(models: Sequence[Any], loss: Loss | None = None) -> list[Any]:
    """Models, those of one's own as checkpoints in memory that run them, with a loss of one's own; folders and open
    checkpoints beside them are run by the class of the first of these, all others stay as they are.

    Raises:
        IsomergeError: a loss for models that transformers builds, which have theirs; or a folder that cannot be
            opened.
    """
    opened = [own_checkpoint(model, loss) if is_own(model) else model for model in models]
    own = next((own for model in opened if (own := own_of(model)) is not None), None)
    if own is None and loss is not None:
        raise IsomergeError("--loss is for modules of one's own: classes of transformers have a loss")
    return opened if own is None else [_run_by(own, model) for model in opened]


def _run_by(own: OwnClass, model: Any) -> Any:
    """A model that lies in a folder or in tensors, run by a class of one's own."""
    if hasattr(model, "save_pretrained") or own_of(model) is not None:
        return model
    opened = as_reference(model)
    return replace(opened if isinstance(opened, Checkpoint) else open_model_ref(opened), own=own)


def own_of(model: Any) -> OwnClass | None:
    """The class of one's own of a model of `own_models`; None where transformers builds it."""
    return model.own if isinstance(model, Checkpoint) else None


def with_examples(options: Mapping[str, Any], names: Sequence[str], model: Any, tokenizer: Any = None) -> Json:
    """Arguments of a function, those that are data made ready for a model.

    Args:
        options: the arguments; ``limit`` and ``length`` among them are those of texts.
        names: of those that are data; what stands under two of them is read once.
        model: the first, of `own_models`.
        tokenizer: of texts; see `isomerge.observe.data.live_data.examples_of_texts`.

    Raises:
        IsomergeError: see `as_data` and `examples_of_texts`.
    """
    read: dict[int, Any] = {}
    arguments = dict(options)
    asked = {name: options[name] for name in names if options.get(name) is not None}
    for name, data in asked.items():
        if id(data) not in read:
            how = {key: options.get(key, default) for key, default in (("limit", None), ("length", TOKENS))}
            read[id(data)] = _ready(data, name, model, tokenizer, how)
        arguments[name] = read[id(data)]
    if tokenizer is not None and not asked:
        note("tokenizer", "no data are read")
    return arguments


def with_data(asked: AskedOnData, model: Any, /, **made: Any) -> AskedOnData:
    """A request of a command that runs models, its data as examples for a model.

    Args:
        asked: with ``data``, ``examples`` and ``live``.
        model: the first, of `own_models`.
        made: what else was made ready.

    Raises:
        IsomergeError: no data, and see `with_examples`.
    """
    if asked.data is None:
        raise IsomergeError("--data is None: give examples, on which the models are run")
    given = {"data": asked.data, **asked.examples.given()}
    return replace(asked, **made, data=with_examples(given, ("data",), model, asked.live.tokenizer)["data"])


def _ready(data: Any, name: str, model: Any, tokenizer: Any, how: Mapping[str, Any]) -> Any:
    """What stands for data: a name that the models' own files open, or examples."""
    option, own = f"--{name}", own_of(model)
    data = _at_once(data)
    named, texts = isinstance(data, (str, Path)) and data != GENERATE, _is_texts(data)
    if tokenizer is None and _is_texts(data):
        return _by_own_tokenizer(data, option, model, how)
    if tokenizer is None and named and Path(data).suffix.lower() in TEXTS:
        _check_tokenizer(option, model)
    if tokenizer is not None and (named or texts):
        examples = examples_of_texts(data, tokenizer, _config_of(model), option, own=own, **how)
        if "input_ids" not in examples.tensors:
            note("tokenizer", "the data are no text")
        return examples
    if tokenizer is not None and data != GENERATE:
        note("tokenizer", "the data are tensors already")
    return as_data(data, option, None if own is None else own.module)


def _check_tokenizer(option: str, model: Any) -> None:
    """Refuse a file of text for a live module, which has no tokenizer, unless it reads bytes.

    Raises:
        IsomergeError: naming the option.
    """
    live = hasattr(model, "save_pretrained") and hasattr(model, "config")
    if own_of(model) is not None or (live and Inputs(_config_of(model)).vocabulary not in (0, BYTES)):
        raise _without_tokenizer(option, model)


def _without_tokenizer(option: str, model: Any) -> IsomergeError:
    kind = model.ref if isinstance(model, Checkpoint) else type(model).__name__
    return IsomergeError(f"{option} has texts, and {kind} in memory has no tokenizer: give --tokenizer")


def _at_once(data: Any) -> Any:
    """What a function gives, and iterators as lists."""
    called: Any = data() if callable(data) and not hasattr(data, "__iter__") else data
    return list(called) if isinstance(called, Iterator) else called


def _is_texts(data: Any) -> TypeGuard[Sequence[str]]:
    return isinstance(data, (list, tuple)) and bool(data) and all(isinstance(text, str) for text in data)


def _by_own_tokenizer(texts: Sequence[str], option: str, model: Any, how: Mapping[str, Any]) -> Examples:
    """Texts through the tokenizer that lies beside a model's weights.

    Raises:
        IsomergeError: the model is in memory, where it has none.
    """
    reference = None if hasattr(model, "save_pretrained") else as_reference(model)
    if reference is None or (isinstance(reference, Checkpoint) and not reference.has_own_files):
        raise _without_tokenizer(option, model if reference is None else reference)
    checkpoint = reference if isinstance(reference, Checkpoint) else open_model_ref(reference)
    with texts_file(texts, option) as file:
        return data_for(checkpoint, str(file), option=option, **how)


def _config_of(model: Any) -> Json:
    """The config.json of a model that was given as such, or as a live module."""
    if hasattr(model, "save_pretrained"):
        return {**model.config.to_dict(), "architectures": [type(model).__name__]}
    reference = as_reference(model)
    return (reference if isinstance(reference, Checkpoint) else open_model_ref(reference)).config
