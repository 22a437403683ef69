"""Code of a checkpoint's own, and the files that it reads: what configs and code name is followed, and never run.

Transformers finds the code that ``auto_map`` names (in the config, the tokenizer's and the processors') beside the
weights, with what that imports relatively; sentence-transformers the same by the types in modules.json. Tokenizers
of their own name the files of their vocabulary in strings of their code.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path, PurePosixPath

Content = bytes | Path
GENERATE = "custom_generate/generate.py"
"""Where transformers looks for a ``generate`` of the checkpoint's own."""
_STRING = re.compile(r"""["']([\w.-]+(?:/[\w.-]+)*)["']""", re.ASCII)
_AUTO_MAP = re.compile(r'"auto_map"\s*:\s*\{([^{}]*)\}')
_FROM = re.compile(r"^[ \t]*from[ \t]+(\.*)([\w.]*)[ \t]+import[ \t]+(\([^)]*\)|[^\n#;]*)", re.MULTILINE | re.ASCII)
_IMPORT = re.compile(r"^[ \t]*import[ \t]+([^\n#;]*)", re.MULTILINE | re.ASCII)
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)


def named_files(documents: Iterable[Content], look: Callable[[str], Content | None]) -> set[str]:
    """The files that configs name, and those that code among them imports or names, and so on.

    Strings are compared with the names of files, so that no form of a config is missed: ``a.B`` is the module a.py,
    every other string a file.

    Args:
        documents: configs, as JSON.
        look: what a file holds, by its name with "/"; None where there is no such file, or none that may be named.
    """
    reached: set[str] = set()
    waiting = [GENERATE, *(name for document in documents for name in _of_config(_text(document)))]
    while waiting:
        name = waiting.pop()
        if name in reached or (content := look(name)) is None:
            continue
        reached.add(name)
        folder = PurePosixPath(name).parent
        waiting += [str(above / "__init__.py") for above in (folder, *folder.parents)]
        if name.endswith(".py"):
            waiting += _of_code(folder, _text(content))
    return reached


def lacking_code(documents: Iterable[Content], look: Callable[[str], Content | None]) -> list[str]:
    """The files of code that configs name by ``auto_map`` and that are not there; code of another repository
    (``org/name--module.Class``) is found on the hub."""
    maps = (table for document in documents for table in _AUTO_MAP.findall(_text(document)))
    values = {value for table in maps for value in re.findall(r'"([^"]*)"', re.sub(r'"[^"]*"\s*:', "", table))}
    files = {_module(value) for value in values if "--" not in value and "." in value}
    return sorted(file for file in files if look(file) is None)


def _text(content: Content) -> str:
    return (content.read_bytes() if isinstance(content, Path) else content).decode(errors="replace")


def _module(reference: str) -> str:
    """The file of a class's reference, ``module.Class``."""
    return reference.rpartition(".")[0].replace(".", "/") + ".py"


def _of_config(text: str) -> list[str]:
    return [name for string in _STRING.findall(text) for name in (string, _module(string))]


def _of_code(folder: PurePosixPath, text: str) -> list[str]:
    """What code may name: modules that it imports, whole or from a package, and the files of its strings."""
    names = [str(at / string) for string in _STRING.findall(text) for at in (PurePosixPath(), folder)]
    for dots, module, imported in _FROM.findall(text):
        above = [folder, *folder.parents]
        if len(dots) <= len(above):
            base = above[len(dots) - 1] if dots else PurePosixPath()
            base = base.joinpath(*filter(None, module.split(".")))
            names += _as_files(base) if module else []
            names += [file for name in _NAME.findall(imported) for file in _as_files(base / name)]
    for modules in _IMPORT.findall(text):
        names += [file for module in modules.split(",") for file in _as_files(_path(module.split()[:1]))]
    return names


def _path(module: list[str]) -> PurePosixPath:
    return PurePosixPath(*filter(None, ".".join(module).split(".")))


def _as_files(module: PurePosixPath) -> list[str]:
    return [f"{module}.py", f"{module}/__init__.py"] if module.parts else []
