"""Write docs/reference from the code: ``python docs/make_reference.py``.

Commands from the program's own help, recipes from their schema, methods from the register, Python from the public names.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import typer
from typer.core import TyperArgument

import isomerge
from isomerge.cli.program import app
from isomerge.doors import ALONE, FUNCTIONS
from isomerge.fusion import registry
from isomerge.merging.recipe import schema
from isomerge.merging.recipe.schema import keys_of

FOLDER = Path(__file__).with_name("reference")
NOTE = "*Written by `python docs/make_reference.py` from {}; do not edit by hand.*\n"
ENTRIES = {
    "models": schema.ModelEntry,
    "slices": schema.SliceEntry,
    "sources": schema.SourceEntry,
    "sliced": schema.SlicedEntry,
    "tokenizer": schema.TokenizerEntry,
    "tokens": schema.TokenEntry,
    "align": schema.AlignBlock,
    "experts": schema.ExpertEntry,
}
BESIDE = {
    "Federated averaging": (
        "isomerge.research.federated",
        ["aggregate", "align_updates", "Aligned", "activations_of"],
    ),
    "Data": (
        "isomerge.observe.data",
        ["opening_data.open_data", "examples.Examples", "plug_in_readers.data_reader"],
    ),
    "Architectures": ("isomerge.archs", ["register_specs"]),
    "Laws": ("isomerge.evidence.law", ["random_alignment", "random_turn"]),
    "Merge methods": (
        "isomerge.fusion.registry",
        [
            "merge_method",
            "elementwise_method",
            "unit_method",
            "forward_method",
            "per_model",
            "methods",
        ],
    ),
}


def table(*rows: Iterable[str]) -> list[str]:
    """Rows of Markdown; the first is the head."""
    lines = ["| " + " | ".join(" ".join(cell.replace("|", r"\|").split()) for cell in row) + " |" for row in rows]
    return [lines[0], "|" + "---|" * lines[0].count(" | ") + "---|", *lines[1:], ""]


def commands() -> Mapping[str, Any]:
    """The program's commands, by name."""
    return typer.main.get_command(app).commands  # pyright: ignore[reportAttributeAccessIssue]


def command_page(name: str, command: Any) -> str:
    """A command: what it does, its arguments, its options."""
    arguments = [p for p in command.params if isinstance(p, TyperArgument)]
    kinds = get_type_hints(inspect.unwrap(command.callback))
    words = [p.name.upper() + (" ..." if p.nargs == -1 else "") for p in arguments]
    parts = [f"# isomerge {name}", "", NOTE.format("the program's own help"), inspect.cleandoc(command.help), ""]
    parts += [f"`{' '.join(['isomerge', name, *words, '[OPTIONS]'])}`", ""]
    if arguments:
        rows = [(f"`{word}`", p.help or "") for word, p in zip(words, arguments, strict=True)]
        parts += ["## Arguments", "", *table(("argument", "what"), *rows)]
    panels: dict[str, list[tuple[str, ...]]] = {}
    for option in command.params:
        if not isinstance(option, TyperArgument):
            row = option_row(option, words_of(kinds[option.name]).removeprefix("list of "))
            panels.setdefault(option.rich_help_panel or "Options", []).append(row)
    for title, rows in panels.items():
        parts += [f"## {title}", "", *table(("option", "value", "what", "default"), *rows)]
    return "\n".join(parts).rstrip() + "\n"


def option_row(option: Any, kind: str) -> tuple[str, str, str, str]:
    """How an option is written, what it takes, what it does, and its default."""
    names = [*option.opts, *option.secondary_opts]
    again = " May be repeated." if option.multiple else ""
    default = option.default
    if option.is_flag:
        kind, default = "", option.opts[0] if option.secondary_opts and default else None
    if option.required:
        default = "required"
    said = "" if default is None or default == [] else f"`{default}`"
    return ", ".join(f"`{name}`" for name in names), kind, f"{option.help or ''}{again}", said


def commands_page() -> str:
    """All commands on one page."""
    rows = [
        (f"[`{name}`](commands/{name}.md)", inspect.cleandoc(command.help).partition("\n\n")[0])
        for name, command in commands().items()
    ]
    parts = ["# Commands", "", NOTE.format("the program's own help"), *table(("command", "what it does"), *rows)]
    parts += [
        "Exit codes: 0 done (for `verify`: the same; for `prove`: proven), 1 `verify` or `prove` says no, 2 bad input (one sentence on stderr, and nothing"
    ]
    parts += ["is written), 130 interrupted. `isomerge --version` prints the version.", ""]
    parts += ["```{toctree}", ":hidden:", "", *(f"commands/{name}" for name in commands()), "```"]
    return "\n".join(parts) + "\n"


def key_table(kind: Any) -> list[str]:
    """The keys of one place of a recipe."""
    rows = []
    for name, found in zip(keys_of(kind), kind.model_fields.values(), strict=True):
        default = "required" if found.is_required() else f"`{shown(found.get_default())}`"
        rows.append((f"`{name}`", words_of(found.annotation), "" if default == "``" else default))
    return table(("key", "value", "default"), *rows)


def words_of(annotation: Any) -> str:
    """A type as those read it who write options and YAML."""
    parts = [part for part in get_args(annotation) if part is not type(None)]
    origin = get_origin(annotation)
    names = {
        str: "text",
        int: "whole number",
        float: "number",
        bool: "true or false",
        Path: "path",
        Any: "anything",
    }
    if annotation in names:
        return names[annotation]
    if origin is Annotated:
        return words_of(parts[0])
    if origin is list:
        return f"list of {words_of(parts[0])}"
    if origin is tuple:
        return "[first, last]"
    if origin is dict:
        return f"mapping to {words_of(parts[1])}"
    if origin is Literal:
        return " or ".join(map(str, parts))
    if parts:
        return " or ".join(dict.fromkeys(map(words_of, parts)))
    return next((key for key, kind in ENTRIES.items() if kind is annotation), annotation.__name__)


def shown(default: Any) -> str:
    """A default in YAML."""
    if default is None or default == {}:
        return ""
    return "false" if isinstance(default, schema.AlignBlock) or default is False else str(default).lower()


def recipes_page() -> str:
    """The keys of a recipe, place by place."""
    parts = ["# Recipes", "", NOTE.format("the schema in `isomerge.merging.recipe.schema`")]
    parts += [
        "A recipe is mergekit's YAML with one block more, `align`. How to write one: [how to merge](../lab/merging.md#a-mergekit-recipe);"
    ]
    parts += [
        "examples that run in the tests: [linear](../../examples/recipes/linear.yml), [TIES](../../examples/recipes/ties.yml),"
    ]
    parts += [
        "[models trained from scratch](../../examples/recipes/from-scratch-pair.yml). Unknown keys are refused.",
        "",
    ]
    parts += ["## The recipe", "", *key_table(schema.Recipe)]
    experts = inspect.cleandoc(schema.ExpertsRecipe.__doc__ or "").replace("``", "`")
    parts += ["## A recipe of experts", "", experts, "", *key_table(schema.ExpertsRecipe)]
    for name, kind in ENTRIES.items():
        text = inspect.cleandoc(kind.__doc__ or "").replace("``", "`")
        parts += [f"## {name}", "", text, "", *key_table(kind)]
    return "\n".join(parts).rstrip() + "\n"


def methods_page() -> str:
    """The registered merge methods."""
    parts = ["# Merge methods", "", NOTE.format("the register, `isomerge methods`")]
    parts += [
        "Formulas, sources, and which symmetries a method commutes with: [merge methods](../guide/which-method.md).",
        "",
    ]
    needs = {"none": "no", "optional": "may", "required": "yes"}
    for name, method in registry.methods().items():
        evidence = "examples (`--data`)" if method.forward else ""
        if method.statistics:
            evidence = f"statistics (`{registry.STATISTICS[method.statistics]}`, see [stats](commands/stats.md))"
        facts = [f"base model: {needs[method.base]}"]
        facts += [f"needs {evidence}"] if evidence else []
        facts += [f"{found}, the base not counted" for found in models_of(method)]
        facts += ["random"] if method.random else []
        parts += [f"## {name}", "", method.summary.replace("``", "`"), "", f"{'; '.join(facts)}.".capitalize(), ""]
        rows = [
            (
                f"`{option.name}`" + (" (per model)" if option.per_model else ""),
                option.kind.__name__ if option.values is None else values_of(option),
                "required" if option.required else f"`{option.default}`",
            )
            for option in method.options.values()
        ]
        parts += table(("parameter", "type", "default"), *rows) if rows else []
    return "\n".join(parts).rstrip() + "\n"


def values_of(option: Any) -> str:
    """Which values of its kind an option takes."""
    if isinstance(option.values, tuple):
        return " or ".join(option.values)
    return f"{option.kind.__name__} {option.values}"


def models_of(method: Any) -> list[str]:
    """How many models a method merges, where it does not take any number."""
    least, most = method.models
    if (least, most) == (1, None):
        return []
    return [f"merges {least} or more models" if most is None else f"merges {least} model{'s' if least > 1 else ''}"]


def python_page() -> str:
    """The public names, whose docstrings Sphinx puts here."""
    parts = ["# Python", "", NOTE.format("`isomerge.__all__` and the docstrings")]
    parts += [
        "Models are folders, hub ids (`org/name@revision+adapter`), open checkpoints, or live modules: of transformers, "
        "or [your own](../guide/python.md). Every command is a function of its name, but for these:",
        "",
        *table(
            ("command", "Python"),
            *[(f"`{name}`", f"`isomerge.{other}`") for name, other in FUNCTIONS.items()]
            + [(f"`{name}`", f"none: {why}") for name, why in ALONE.items()],
        ),
        "",
    ]
    for name in sorted(isomerge.__all__, key=lambda n: (inspect.isclass(getattr(isomerge, n)), n)):
        parts += documented(f"isomerge.{name}", getattr(isomerge, name), 2)
    for title, (module, names) in BESIDE.items():
        parts += [f"## {title}", ""]
        for name in names:
            home, _, last = f"{module}.{name}".rpartition(".")
            parts += documented(f"{home}.{last}", getattr(__import__(home, fromlist=[last]), last), 3)
    return "\n".join(parts).rstrip() + "\n"


def documented(path: str, found: Any, level: int) -> list[str]:
    """A heading and the directive that puts the docstring below it."""
    kind = "autofunction"
    members = []
    if inspect.isclass(found):
        kind = "autoexception" if issubclass(found, Exception) else "autoclass"
        members = ["   :members:"] if kind == "autoclass" else []
    return [
        f"{'#' * level} {path.rpartition('.')[2]}",
        "",
        "```{eval-rst}",
        f".. {kind}:: {path}",
        *members,
        "```",
        "",
    ]


def every_page() -> dict[Path, str]:
    """All pages of the reference, by their files."""
    found = {FOLDER / "commands" / f"{name}.md": command_page(name, c) for name, c in commands().items()}
    found |= {FOLDER / "commands.md": commands_page(), FOLDER / "recipes.md": recipes_page()}
    return found | {FOLDER / "methods.md": methods_page(), FOLDER / "python.md": python_page()}


if __name__ == "__main__":
    made = every_page()
    for stale in set(FOLDER.rglob("*.md")) - {*made, FOLDER / "architectures.md"}:
        stale.unlink()
    for file, content in made.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content, encoding="utf-8")
