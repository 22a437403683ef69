"""The register of merge methods: a method is one annotated pure function, its signature the schema of its options.

    @merge_method
    def ties(tensors, base, *, weight: Sequence[float] = per_model(1.0), density: Sequence[float] = per_model(1.0),
             normalize: bool = True, rng: torch.Generator) -> Tensor: ...

``tensors`` are aligned, one per model, of one shape, float32 or float64, and never changed in place. A second
parameter ``base`` asks for a base model (``base: Tensor | None`` admits one); the others are then given without it.
Keyword parameters whose default is `per_model` have one value per model, the others one for all. A trailing
underscore is dropped (``lambda_`` is mergekit's ``lambda``). ``rng`` makes a method random: it is seeded from the
run's seed and the tensor's name, so that neither the order of tensors nor the number of workers matters.
``fishers``, ``grams`` and ``factors`` are statistics of the models (`isomerge.merging.fusion_statistics`);
``notes`` is a list to which it appends what users should know of a tensor. ``stacked`` is how many of the tensor's
leading axes number matrices (experts in one tensor), ``depth`` where its layer is in the stack, from 0 to 1.
Ranges, choices, the number of models and how large a result can be are said by
`isomerge.fusion.method_options.limited`.

Adding a method is one file in this folder, called as the method is (or see `FILES`); or a package with an entry
point of the group ``isomerge.methods`` (`isomerge.plug_ins`), whose name is the method's; or a module or file that
a command imports (``--import``).
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cache, cached_property, partial, wraps
from typing import Any

import torch
from torch import Generator, Tensor

import isomerge.fusion as package
from isomerge.errors import IsomergeError
from isomerge.fusion.bounds import Bound, Inputs, Size
from isomerge.fusion.method_options import KINDS, Option, Together, check_kind, limits_of
from isomerge.passes import Entries
from isomerge.plug_ins import entry_points
from isomerge.plug_ins.command import use
from isomerge.plug_ins.entry_points import METHODS, load, module_source, origin, package_of, plug_ins
from isomerge.plug_ins.modules import called, check_one, module_of, name_of
from isomerge.records import Json

PLACE = ("stacked", "depth")
"""What a method may ask of where its tensor stands: see ``stacked`` and ``depth``."""
STATISTICS = {"fishers": "fisher", "grams": "regmean", "factors": "kfac"}
"""From the parameter that asks for statistics to the kind that `isomerge stats` writes."""
FILES = {
    "breadcrumbs_ties": "breadcrumbs",
    "dare_linear": "dare",
    "dare_ties": "dare",
    "della_linear": "della",
    "fisher_kfac": "fisher",
    "iso_c": "isotropic",
    "iso_cts": "isotropic",
    "ramplus_tl": "ram",
    "svd_task_arithmetic": "task_singular_vectors",
    "tsv_m": "task_singular_vectors",
}
"""The files of this folder that hold methods called otherwise than they: a method is loaded when it is named."""


@dataclass(frozen=True)
class PerModel:
    """Marks a parameter that has one value per model; ``default`` None means that it must be said."""

    default: float | None


def per_model(default: float | None = None) -> Any:
    """The default of a parameter that has one value per model."""
    return PerModel(default)


@dataclass(frozen=True)
class Method:
    """A merge method and what its signature says."""

    name: str
    function: Callable[..., Any]
    options: Mapping[str, Option]
    base: str
    """``none``, ``optional`` or ``required``."""
    random: bool
    statistics: str | None
    """The parameter by which it asks for statistics."""
    unit: bool = False
    """It sees whole work units, not single tensors: see `unit_method`."""
    forward: bool = False
    """It runs the models: see `forward_method`."""
    elementwise: bool = False
    """Every entry of the result depends on that entry of the models alone, so that tensors are merged in pieces."""
    select: Callable[..., Any] | None = None
    """Of an elementwise method, what it is to know of whole tensors: see `elementwise_method`."""
    entries: Callable[..., Entries] | None = None
    """Of one that is made of single entries, what tells of these: see `entries_method`."""
    scale_free: bool = False
    """It commutes with factors of coordinates, so that the gauge of gains does not count: see `scale_free`."""
    models: tuple[int, int | None] = (1, None)
    """The least and the most models that it merges, the base not counted."""
    together: Together | None = None
    """What values of several options must fulfil together."""
    bound: Bound | None = None
    """How large a result it can explain (`isomerge.fusion.bounds`); None: as `anything_near` says."""
    noted: bool = False
    """It has sentences to tell: see ``notes``."""
    placed: tuple[str, ...] = ()
    """What it asks of where its tensor stands: of `PLACE`."""

    @property
    def compares(self) -> bool:
        """Its result depends on the gauge of gains: it compares sizes, lengths or angles, and follows no
        statistics."""
        return not (self.scale_free or self.statistics or self.forward)

    @property
    def built_in(self) -> bool:
        """It is one of isomerge's own, which may be tried on any numbers: others may take their time, or want what
        is real."""
        own = self.module.partition(".")[0] == __name__.partition(".")[0]
        return own and called(self.function) is self.function  # arguments are given by others

    @property
    def module(self) -> str:
        """The module that its function is from."""
        return module_of(self.function)

    @property
    def summary(self) -> str:
        """The first sentence of its docstring."""
        text = inspect.getdoc(called(self.function)) or self.name
        return " ".join(text.partition("\n\n")[0].split())

    def check_value(self, name: str, value: Any, place: str) -> None:
        """Refuse a parameter that the method does not have, or a value that it does not take.

        Args:
            name, value: the parameter; a scalar.
            place: where it stands, for the message: a file, then a path of keys.

        Raises:
            IsomergeError: naming the nearest one.
        """
        if name not in self.options:
            near = get_close_matches(name, self.options, 1)
            hint = f"did you mean `{near[0]}`?" if near else f"known are {', '.join(self.options) or 'none'}"
            raise IsomergeError(f"unknown key `{place}`: {hint}")
        check_kind(self.options[name], value, place)

    def values(self, parameters: Mapping[str, Any], count: int) -> Json:
        """All options by the users' names, defaults filled in, one value for each of ``count`` models where there
        is one per model."""
        values: Json = {}
        for option in self.options.values():
            value = parameters.get(option.name, option.default)
            repeated = option.per_model and not isinstance(value, Sequence)
            values[option.name] = [value] * count if repeated else value
        return values

    def fuse(
        self,
        tensors: Sequence[Tensor],
        parameters: Mapping[str, Any],
        *,
        base: Tensor | None = None,
        rng: Generator | None = None,
        statistics: Any = None,
        selection: Any = None,
        notes: list[str] | None = None,
        name: str | None = None,
    ) -> Tensor:
        """Apply the method to the tensors of one block.

        Args:
            tensors: one per model, without the base.
            parameters: by the users' names; those per model are sequences. What is missing takes its default. What
                the method asks of the tensor's place stands among them, by its own name.
            base: the base's tensor, where the method takes one.
            rng: of random methods.
            statistics: what `statistics` asks for.
            selection: what `selection` gave for the whole tensors that these are pieces of.
            notes: takes what the method has to tell.
            name: of the tensor, for errors.

        Raises:
            IsomergeError: a plug-in's function fails, or gives back what cannot stand for a model's tensor.
        """
        arguments = self._keywords(parameters, len(tensors), rng=rng, selection=selection)
        arguments |= {name: parameters[name] for name in self.placed if name in parameters}
        arguments |= {self.statistics: statistics} if self.statistics else {}
        arguments |= {"notes": notes} if self.noted else {}
        operands = self._operands(tensors, base)
        if self.built_in:
            return self.function(*operands, **arguments)
        return self._calls.tensor(operands, arguments, name)

    def fuse_unit(self, spec: Any, units: Sequence[Mapping[Any, Tensor]], options: Mapping[str, Any]) -> Any:
        """Apply a method of units: see `unit_method`.

        Args:
            spec: the spec whose spaces are used.
            units: per model, the aligned tensors by block.
            options: by the function's keywords.

        Raises:
            IsomergeError: as of `fuse`.
        """
        if self.built_in:
            return self.function(spec, units, **options)
        return self._calls.blocks(spec, units, options)

    def run_models(self, run: Any, options: Mapping[str, Any]) -> Any:
        """Apply a method that runs models: see `forward_method`.

        Raises:
            IsomergeError: as of `fuse`.
        """
        return self.function(run, **options) if self.built_in else self._calls.module(run, options)

    def explains(self, inputs: Inputs, values: Mapping[str, Any]) -> Size | None:
        """How large a result can be, by the method's own bound; None where it declares none.

        Raises:
            IsomergeError: a plug-in's bound fails, or gives back something else.
        """
        if self.bound is None:
            return None
        return self.bound(inputs, values) if self.built_in else self._calls.size(self.bound, inputs, values)

    @cached_property  # packages are looked through for words, and a method is called for every piece
    def _calls(self) -> Any:
        from isomerge.fusion.plug_in_calls import PlugInCalls

        return PlugInCalls(self.function, f"the method {self.name} of {source(self)}")

    def selection(
        self,
        tensors: Sequence[Tensor],
        parameters: Mapping[str, Any],
        base: Tensor | None = None,
        rng: Generator | None = None,
    ) -> Any:
        """What `select` tells of whole tensors as they are stored; None where there is nothing to be told."""
        if self.select is None:
            return None
        options = self._keywords(parameters, len(tensors), rng=rng)
        call = self.select if self.built_in else self._calls.selection(self.select)
        return call(*self._operands(tensors, base), **options)

    def entries_of(
        self, parameters: Mapping[str, Any], count: int, dtype: torch.dtype, selection: Any = None
    ) -> Entries | None:
        """What becomes of single entries of ``count`` tensors that are computed with in a dtype; None where it is
        told by a function of pieces alone."""
        if self.entries is None or not self.built_in:
            return None
        options = self._keywords(parameters, count, rng=None, selection=selection)
        options |= {name: parameters[name] for name in self.placed if name in parameters}
        like = torch.empty(0, dtype=dtype)
        return self.entries(*self._operands([like] * count, like), **options)

    def _keywords(self, parameters: Mapping[str, Any], count: int, **more: Any) -> Json:
        """Options by keyword, and of a generator and a selection what it takes."""
        values = self.values(parameters, count)
        taken = {"rng": self.random, "selection": self.select is not None}
        options = {option.keyword: values[option.name] for option in self.options.values()}
        return options | {name: value for name, value in more.items() if taken[name]}

    def _operands(self, tensors: Sequence[Tensor], base: Tensor | None) -> list[Any]:
        return [tensors] if self.base == "none" else [tensors, base]


ELSEWHERE = {
    **dict.fromkeys(("add_difference", "task_vector", "task_vectors", "sum"), "task_arithmetic"),
    **dict.fromkeys(
        ("average", "mean", "lerp", "weighted_sum", "weighted_average", "soup", "model_soup"), "linear"
    ),
    **dict.fromkeys(("dare", "dare_task_arithmetic"), "dare_linear"),
    **dict.fromkeys(("ties_merging", "trim_elect"), "ties"),
    "isotropic": "iso_c",
}
"""What other programs call methods, and what they are called here."""
_METHODS: dict[str, Method] = {}


def _register(method: Method) -> Callable[..., Any]:
    """Put a method into the register and return its function.

    Raises:
        IsomergeError: another module has a method of that name.
    """
    if not method.built_in:
        _load(method.name)  # a name of isomerge's own is refused where it is taken
    check_one("merge method", method.name, method.function, _METHODS.get(method.name))
    _METHODS[method.name] = method
    return method.function


def scale_free(function: Callable[..., Any]) -> Callable[..., Any]:
    """Declare, below the decorator that registers it, that a method of tensors commutes with factors of
    coordinates."""
    function.__dict__["scale_free"] = True
    return function


def merge_method(function: Callable[..., Any]) -> Callable[..., Any]:
    """Register a function of aligned tensors under its name."""
    return _register(describe(function))


def elementwise_method(
    function: Callable[..., Any] | None = None, *, select: Callable[..., Any] | None = None
) -> Callable[..., Any]:
    """Register a function of aligned tensors whose result depends, entry by entry, on that entry of the models
    alone; it is given pieces of tensors, flattened, in order.

    What it is to know of whole tensors (thresholds) comes from ``select(tensors, [base], **options)``, which is
    given them once, as they are stored, half precision too; the function takes it as the keyword parameter
    ``selection`` (None: ``tensors`` are whole). It may keep count of the pieces.
    """
    if function is None:
        return partial(elementwise_method, select=select)
    return _register(replace(describe(function), elementwise=True, select=select))


def entries_method(
    function: Callable[..., Entries] | None = None, *, select: Callable[..., Any] | None = None
) -> Callable[..., Any]:
    """Register an `elementwise_method` that is told by what becomes of single entries: one compiled loop does
    that from file to file. Of tensors it asks number and dtype alone, unless it is to ``select`` first."""
    if function is None:
        return partial(entries_method, select=select)

    @wraps(function)
    def merged(tensors: Sequence[Tensor], base: Tensor | None = None, **options: Any) -> Tensor:
        given = [] if base is None else [base]
        return function(tensors, *given, **options)(tensors, *given)

    return _register(replace(describe(merged), elementwise=True, select=select, entries=function))


def unit_method(function: Callable[..., Any]) -> Callable[..., Any]:
    """Register a function of work units: ``function(spec, units, *, options) -> {block: tensor}``, where ``units``
    are, per model, the aligned tensors by block. Blocks that it does not return are averaged by the parameter
    ``weight``."""
    return _register(describe(function, unit=True))


def forward_method(function: Callable[..., Any]) -> Callable[..., Any]:
    """Register a function that runs the aligned models on examples: ``function(run, *, options) -> (module,
    report)``, where ``run`` is an `isomerge.fusion.forward.running.Forward` and the module has the merged
    parameters."""
    return _register(describe(function, forward=True))


def describe(function: Callable[..., Any], *, unit: bool = False, forward: bool = False) -> Method:
    """What a function's signature says; of one with some arguments given, these are the defaults."""
    method_name, inner = name_of(function), called(function)
    parameters, whole = inspect.signature(function).parameters, inspect.signature(inner).parameters
    options: dict[str, Option] = {}
    limits = limits_of(inner)
    for key, parameter in parameters.items():
        if parameter.kind is not parameter.KEYWORD_ONLY or key in (
            "rng",
            "selection",
            "notes",
            *PLACE,
            *STATISTICS,
        ):
            continue
        name, default = key.rstrip("_"), parameter.default
        values = limits.values.get(name)
        if isinstance(whole[key].default, PerModel):
            default = default.default if isinstance(default, PerModel) else default
            options[name] = Option(name, key, True, default, float, default is None, values)
        else:
            kind = kind_of(inner, parameter)
            options[name] = Option(name, key, False, default, kind, default is parameter.empty, values)
        if not (options[name].required or options[name].default is None):
            check_kind(options[name], options[name].default, f"{method_name}(..., {key})")
    if strange := sorted(limits.values.keys() - options.keys()):
        raise TypeError(f"{method_name}: limits of {strange[0]}, which is no option")
    base = parameters.get("base")
    needs = "none" if base is None else ("optional" if "None" in str(base.annotation) else "required")
    statistics = next((key for key in STATISTICS if key in parameters), None)
    return Method(
        method_name,
        function,
        options,
        needs,
        "rng" in parameters,
        statistics,
        unit,
        forward,
        scale_free=getattr(inner, "scale_free", False),
        models=limits.models,
        together=limits.together,
        bound=limits.bound,
        noted="notes" in parameters,
        placed=tuple(name for name in PLACE if name in parameters),
    )


def kind_of(function: Callable[..., Any], parameter: inspect.Parameter) -> type:
    """The type of an option, from its annotation."""
    said = parameter.annotation  # a text, where the module has `from __future__ import annotations`
    text = said.__name__ if isinstance(said, type) else str(said)
    words = {word.strip() for word in text.split("|")} - {"None"}
    known = next((kind for kind in KINDS if words == {kind.__name__}), None)
    if known is None:
        raise TypeError(f"{function.__name__}: {parameter.name} must be annotated as bool, int, float or str")
    return known


def _load(name: str) -> None:
    """Import the file of isomerge's own method of that name, where there is one."""
    file = FILES.get(name, name)
    if any(module.name == file for module in pkgutil.iter_modules(package.__path__)):
        importlib.import_module(f"{package.__name__}.{file}")


@cache
def _load_all() -> None:
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")


def methods() -> dict[str, Method]:
    """All methods, by name: isomerge's own, every one of them loaded, and those of modules that were imported."""
    _load_all()
    return dict(sorted(_METHODS.items()))


def is_parameter(name: str) -> bool:
    """Whether a method has a parameter of this name."""
    return any(name in method.options for method in methods().values())


def method(name: str) -> Method:
    """The method of that name: isomerge's own, a module's that was imported, or an installed package's; of a
    plug-in's the command notes that it uses it.

    Raises:
        IsomergeError: there is none, its package cannot be imported, or the name is taken twice.
    """
    chosen = _looked_up(name)
    if not chosen.built_in:
        points = plug_ins(METHODS).get(name, ())
        use("method", name, package_of(points[0]) if points else module_source(chosen.module))
    return chosen


def _looked_up(name: str) -> Method:
    _load(name)
    points = plug_ins(METHODS)
    takers = [origin(point) for point in points.get(name, ())]
    if name in _METHODS and _METHODS[name].built_in:
        takers.insert(0, "isomerge itself")
    if len(takers) > 1:
        raise IsomergeError(
            f"merge method {name}: {' and '.join(takers)} both have that name; uninstall or rename one"
        )
    if name in points:
        load(points[name][0])
        if name not in _METHODS:
            raise IsomergeError(
                f"merge method {name}: the plug-in of {takers[0]} registers no method of that name; decorate a "
                f"function {name} with isomerge.fusion.registry.merge_method"
            )
    if name not in _METHODS:
        there = sorted({*methods(), *points})
        near = [ELSEWHERE[name]] if name in ELSEWHERE else get_close_matches(str(name).lower(), there, 1)
        hint = f" (did you mean {near[0]}?)" if near else ""
        raise IsomergeError(f"--method {name}: no such merge method{hint}; there are {', '.join(there)}")
    return _METHODS[name]


def source(method: Method) -> str:
    """Where a method comes from: isomerge, an installed package, or a module that was imported."""
    if method.built_in:
        return "isomerge"
    points = plug_ins(METHODS).get(method.name)
    return origin(points[0]) if points else module_source(method.module)


def described() -> list[Json]:
    """All methods, a row of plain values for each: see `isomerge.methods`."""
    return [
        {
            "method": method.name,
            "summary": method.summary,
            "base_model": method.base,
            "parameters": {
                name: {
                    "per_model": option.per_model,
                    "default": None if option.required else option.default,
                    "required": option.required,
                    "type": option.kind.__name__,
                }
                for name, option in method.options.items()
            },
            "source": source(method),
        }
        for method in map(_looked_up, sorted({*methods(), *plug_ins(METHODS)}))
    ]


def code_of(method: Method) -> list[str]:
    """What a run's key has of a method's code: nothing of isomerge's own, of others their source and digests of
    their modules' code."""
    points = plug_ins(METHODS).get(method.name, [])
    return [] if method.built_in else [source(method), *entry_points.code_of(method.function, points)]
