"""What stands for the names that the pages use: tiny models, adapters, texts and recipes, made when a page names
them."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

from safetensors.torch import save_file

from docs.markdown import ROOT
from fusion.test_example_recipes import llama, texts, tuned, with_word
from image_loras import lora
from isomerge.cli.showing import leave_for_guides
from isomerge.evidence.digits import example_models
from pipeline_models import inpainting, save, stable_diffusion, styled
from single_file_models import single_file

BASE, NEW_BASE, UNRELATED = 0, 20, 21
"""Seeds of models that have nothing in common."""
RECIPE = "models: [{model: org/instruct}, {model: org/code}]\nmerge_method: linear\n"


def _copied(source: str) -> Callable[[Path], object]:
    return lambda path: shutil.copytree(ROOT / source, path)


class StandIns:
    """Stand-ins, made once in ``root``; a page gets those that it names, at these names."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.makers: dict[str, Callable[[Path], object]] = {
            "A": lambda path: llama(path, UNRELATED, num_hidden_layers=1),
            "B": lambda path: disguised(self["A"], path),
            "C": lambda path: tuned(self["A"], path, 5),
            "org/base": lambda path: llama(path, BASE, num_hidden_layers=1),
            "org/new-base": lambda path: llama(path, NEW_BASE, num_hidden_layers=1),
            "org/instruct": lambda path: tuned(self["org/base"], path, 1),
            "org/code": lambda path: tuned(self["org/base"], path, 2),
            "org/english": lambda path: with_word(path, 3, ["hello"]),
            "org/german": lambda path: with_word(path, 4, ["hallo", "welt"]),
            "org/lora-a": lambda path: self._adapter("org/instruct", path),
            "org/lora-b": lambda path: self._adapter("org/code", path),
            "sd/base": lambda path: save(stable_diffusion(0), path),
            "sd/photo": lambda path: styled(self["sd/base"], path, 1),
            "sd/anime": lambda path: styled(self["sd/base"], path, 2),
            "sd/inpaint": lambda path: save(inpainting(0), path),
            "film.safetensors": lambda path: _image_lora(path, 1),
            "ink.safetensors": lambda path: _image_lora(path, 2),
            "photo.safetensors": lambda path: single_file("sd1", path, 1),
            "anime.safetensors": lambda path: single_file("sd1", path, 1, 0.01),
            "a.jsonl": texts,
            "examples.jsonl": texts,
            "texts.jsonl": texts,
            "labelled.jsonl": texts,
            "DATA": _texts_folder,
            "TEST": _texts_folder,
            "examples/digits": _copied("examples/digits"),
            "vit-a": _copied("examples/digits/vit-a"),
            "vit-b": _copied("examples/digits/vit-b"),
            "demo-out": _left_by_demo,
            "recipe.yml": lambda path: path.write_text(RECIPE),
        }  # fmt: skip

    def __getitem__(self, name: str) -> Path:
        path = self.root / name
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            self.makers[name](path)
        return path

    def _adapter(self, name: str, path: Path) -> None:
        import isomerge

        isomerge.extract_lora(self[name], self["org/base"], out=path, rank=2)

    def lay(self, code: str, folder: Path) -> None:
        """Put what ``code`` names into a folder, but what it copies there itself (links: a page only reads
        these)."""
        copied = {Path(word).name for line in re.findall("cp -r (.*) [.]", code) for word in line.split()}
        for name in self.makers:
            if name not in copied and re.search(rf"(?<![\w/.-]){re.escape(name)}(?![\w-]|\.\w)", code):
                place = folder / name
                place.parent.mkdir(parents=True, exist_ok=True)
                place.symlink_to(self[name], target_is_directory=self[name].is_dir())


def disguised(source: Path, path: Path) -> None:
    """The same function in other weights."""
    import torch

    import isomerge
    from isomerge.evidence.law import random_alignment
    from isomerge.matching.selection import select_spaces
    from isomerge.models.recognised import recognise

    model = recognise(source)
    spec = select_spaces(model.spec, "default").spec
    isomerge.apply(random_alignment(spec, model.blocks, torch.Generator().manual_seed(6)), source, out=path)


def _left_by_demo(path: Path) -> None:
    """What the guides use of it."""
    path.mkdir()
    leave_for_guides(*example_models(), path)


def _texts_folder(path: Path) -> None:
    """Plain text, for the data whose form a page leaves open."""
    path.mkdir()
    lines = texts(path / "all.jsonl").read_text().splitlines()
    (path / "all.txt").write_text("\n".join(json.loads(line)["text"] for line in lines))
    (path / "all.jsonl").unlink()


def _image_lora(path: Path, seed: int) -> Path:
    """A LoRA of Stable Diffusion in kohya's form."""
    save_file(lora("sd-kohya", stable_diffusion(0), seed=seed, size=0.02)[0], path)
    return path
