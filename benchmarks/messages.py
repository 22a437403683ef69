"""Seventy mistakes, and the one sentence that isomerge says of each (docs/lab/messages.md).

python -m benchmarks.messages     # makes them all, on tiny models, and writes the page

Each is a command in a folder with the models and files that it names. What is said must be one sentence with exit code 2,
no traceback, nothing on standard output, and have the words that name a way out.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.harness import DOCS, quiet, reach_tests, write_whole

if TYPE_CHECKING:
    from tests.docs.stand_ins import StandIns

PAGE = DOCS / "lab" / "messages.md"
TWO = "models: [{model: org/instruct}, {model: org/code}]\n"
RUN = re.compile(r"LocalEntryNotFoundError: [^)]*|OfflineModeIsEnabled: [^)]*")
"""What the hub's client says of a machine without a network, which differs between versions."""
ABOUT = """# Seventy mistakes, and what is said

What people do who merge daily, do research, audit, or make images, and the whole answer: one sentence, exit code 2, nothing written. The commands
are run on tiny models by `python -m benchmarks.messages`, which writes this page; `r.yml` is shown where it is the mistake.
A test holds every row to the program, and to naming a way out.
"""


@dataclass(frozen=True)
class Mistake:
    """What somebody does wrong."""

    what: str
    command: str
    """A command; `isomerge` is left out."""
    way: str
    """The words that name a way out."""
    recipe: str = ""
    """The text of r.yml."""

    def check(self, code: int, said: str) -> str:
        """The sentence that was said.

        Args:
            code: the exit code.
            said: both streams together.

        Raises:
            ValueError: it is no sentence with exit code 2, or names no way out.
        """
        line = said.rstrip("\n").removeprefix("isomerge: ")
        if code != 2 or line == said.rstrip("\n") or "\n" in line or "Traceback" in line:
            raise ValueError(f"{self.command}: exit code {code}, and not one sentence:\n{said}")
        if self.way not in line:
            raise ValueError(f"{self.command}: no way out ({self.way}): {line}")
        return RUN.sub("no network", line)


def _merge(what: str, models: str, way: str, recipe: str = "") -> Mistake:
    return Mistake(what, f"merge {models} -o out", way, recipe)


def _recipe(what: str, recipe: str, way: str) -> Mistake:
    return Mistake(what, "merge r.yml -o out", way, recipe)


MISTAKES = {
    "Names, paths, files": [
        Mistake("the command is left out", "org/instruct org/code -o out", "isomerge merge org/instruct"),
        Mistake("a command is mistyped", "mrege org/instruct org/code -o out", "did you mean merge?"),
        Mistake("no -o", "merge org/instruct org/code", "add -o OUT"),
        Mistake("one model is forgotten", "merge org/instruct -o out", "name another one"),
        Mistake("one of two is forgotten", "verify A", "isomerge verify -h"),
        _merge("a folder that is not there", "./instruct org/code", "org/name@revision"),
        _merge("a hub id, or a folder, mistyped", "org/instruct org/insruct", "did you mean org/instruct?"),
        _merge("an address of the hub", "https://huggingface.co/org/x/tree/main A", "write org/x"),
        _merge("the folder of a training run", "run-1 A", "such as run-1/checkpoint-1000"),
        _merge("an empty folder", "empty A", "save_pretrained"),
        _merge("its config instead of the folder", "A/config.json B", "give the folder"),
        _merge("a download that broke off", "cut A", "download or save it again"),
        _merge("a clone without git lfs", "lfs A", "git lfs pull"),
        _merge("GGUF", "gguf A", "name the folder of the model that it was made from"),
        _merge("GPTQ", "gptq A", "dequantize()"),
        _merge("ONNX alone", "onnx A", "name a folder written by save_pretrained"),
        _merge("a pickle", "old.ckpt A", "--allow-pickle"),
        Mistake("an output that is there", "merge A B -o r.yml", "--overwrite", "mine\n"),
        Mistake("an output over an input", "merge A B -o B --overwrite", "choose another output folder"),
        Mistake("a recipe that is not there", "merge recipe.yaml -o out", "give the path of a recipe"),
    ],
    "Models that do not fit": [
        _merge("another architecture", "A gpt2", "isomerge inspect MODEL"),
        _merge("another depth", "A deep", "`slices` of a recipe"),
        _merge("another width", "A wide", "isomerge widen"),
        _merge("other labels", "spam mood", "--heads copy"),
        Mistake("a word for heads that there is not", "merge spam spam -o out --heads first", "keep:MODEL"),
        _merge("an adapter of another model", "wide+org/lora-a A", "check that the adapter is for this model"),
        Mistake("an adapter's base is forgotten", "extract-lora org/instruct -o out", "needs BASE"),
        Mistake("no adapter", "merge-lora org/lora-a org/instruct -o out", "what peft's save_pretrained writes"),
        Mistake("two equal models", "extract-lora A A -o out", "nothing to extract"),
        Mistake("kinds mixed", "merge-lora org/lora-a film.safetensors -o out", "give those of one kind"),
    ],
    "Methods and options": [
        _merge("a method mistyped", "A B --method dare-ties", "did you mean dare_ties?"),
        _merge("no base", "A B --method ties", "--base-model"),
        _merge("an option by half", "A B --method ties --base A", "did you mean --base-model?"),
        _merge("an option in the singular", "A B --weight 1,2", "did you mean --weights?"),
        _merge("mergekit's --multi-gpu", "A B --multi-gpu", "--device cuda"),
        _merge("a density in percent", "A B --method ties --base-model A -p density=50", "from 0 to 1"),
        _merge("a density with its sign", "A B --method ties --base-model A -p density=50%", "from 0 to 1"),
        _merge("weights apart", "A B --weights 0.5 0.5", "--weights 0.5,0.5"),
        _merge("too many weights", "A B --weights 1,1,1", "2 finite numbers"),
        _merge("slerp of three", "A B C --method slerp", "multislerp and linear"),
        _merge("a method without its statistics", "A B --method regmean", "--data DATA"),
        _merge("a dtype by its short name", "A B --dtype bf16", "did you mean bfloat16?"),
        _merge("memory without a unit", "A B --max-memory 8", "give that"),
        _merge("spaces mistyped", "A B --spaces qk,vo", "choose from default"),
        _merge("layers that there are not", "A B --layers 5", "layers 0 to 0"),
        _merge("a vocabulary mistyped", "A B --tokenizer-source unoin", "choose base, union or a model"),
        _merge("a place on the hub without its owner", "A B --push-to-hub mine", "write ORG/NAME"),
    ],
    "Recipes": [
        _recipe("a key mistyped", TWO + "merge_methd: linear\n", "did you mean `merge_method`?"),
        _recipe("no method", TWO, "write `merge_method: linear`"),
        _recipe("`base`", TWO + "merge_method: ties\nbase: A\n", "did you mean `base_model`?"),
        _recipe("a recipe without its base", TWO + "merge_method: ties\n", "name it as `base_model`"),
        _recipe("models by name alone", "models: [A, B]\nmerge_method: linear\n", "write `model: A`"),
        _recipe("a parameter in the wrong place", "models: [{model: A, weight: 1}, {model: B}]\nmerge_method: linear\n", "under `parameters`"),
        _recipe("tabs", "models:\n\t- model: A\n", "indent with spaces"),
        _recipe("a decimal comma", "models: [{model: A, parameters: {weight: '0,5'}}, {model: B}]\nmerge_method: linear\n", "give a finite number"),
        _recipe("layers as a range of words", "slices: [{sources: [{model: A, layer_range: 0-1}]}]\nmerge_method: passthrough\n", "such as [0, 4]"),
        _recipe("more layers than there are", "slices: [{sources: [{model: A, layer_range: [0, 32]}]}]\nmerge_method: passthrough\n", "ends at 1 at most"),
        _recipe("braces of JSON", '{"models": [{"model": "A"}],}}\n', "correct that line"),
        _recipe("a dtype mistyped", TWO + "merge_method: linear\ndtype: float61\n", "did you mean float64?"),
        Mistake("an option beside a recipe", "merge r.yml -o out --weights 1,1", "change the recipe", TWO + "merge_method: linear\n"),
        Mistake("nothing to tune on", "tune r.yml -o out", "add --data DATA", TWO + "merge_method: linear\n"),
    ],
    "Data, audits, images": [
        Mistake("data that are not there", "barrier A B --data lost.jsonl", "give images, text, JSON lines"),
        Mistake("a model in the place of data", "eval A --data B", "examples are wanted"),
        Mistake("texts for a model of images", "barrier vit-a vit-b --data texts.jsonl", "give pixel_values, or an image"),
        Mistake("an even number of points", "barrier A B --data texts.jsonl --points 10", "give an odd number"),
        Mistake("--onto is forgotten", "align B A -o out", "needs --onto"),
        Mistake("no alignment", "apply B A -o out", "--save-alignment"),
        Mistake("nothing that isomerge wrote", "fsck A", "give a folder that isomerge merge"),
        Mistake("a pipeline and a model", "verify A sd/photo", "compare two pipelines, or two models"),
        _merge("a LoRA as a model", "photo.safetensors film.safetensors", "photo.safetensors+film.safetensors"),
        _merge("a LoRA of language models", "sd/photo+org/lora-a sd/anime", "sd/photo/unet+org/lora-a"),
        _merge("a part that a LoRA has not", "sd/photo+film.safetensors:two sd/anime", "text_encoder"),
        _merge("pipelines without the base", "sd/photo sd/anime --method ties", "--base-model"),
    ],
}  # fmt: skip
"""By kind."""


def more(stand_ins: StandIns) -> dict[str, Callable[[Path], object]]:
    """What stands for the names that only mistakes need."""
    import torch

    from fusion.test_example_recipes import llama
    from solve.disguises import single

    def copied(path: Path, *left_out: str) -> Path:
        return Path(shutil.copytree(stand_ins["A"], path, ignore=shutil.ignore_patterns(*left_out)))

    def run(path: Path) -> None:
        for name in ("checkpoint-500", "checkpoint-1000"):
            copied(path / name)

    def weights(path: Path, content: bytes, name: str = "model.safetensors") -> None:
        (copied(path, "*.safetensors") / name).write_bytes(content)

    def packed(path: Path) -> None:
        from safetensors.torch import save_file

        config = json.loads((stand_ins["A"] / "config.json").read_text())
        config["quantization_config"] = {"quant_method": "gptq", "bits": 4}
        (copied(path, "*.safetensors") / "config.json").write_text(json.dumps(config))
        save_file({"model.layers.0.mlp.up_proj.qweight": torch.zeros(3, 20, dtype=torch.int32)}, path / "model.safetensors")  # fmt: skip

    def labelled(path: Path, *labels: str) -> None:
        import transformers as tf

        sizes: dict[str, Any] = {"vocab_size": 9, "hidden_size": 8, "num_hidden_layers": 1, "intermediate_size": 8}
        config = tf.BertConfig(**sizes, num_attention_heads=2, id2label=dict(enumerate(labels)))
        tf.BertForSequenceClassification(config).save_pretrained(path)

    return {
        "run-1": run,
        "empty": lambda path: path.mkdir(),
        "cut": lambda path: weights(path, (stand_ins["A"] / "model.safetensors").read_bytes()[:-50]),
        "lfs": lambda path: weights(path, b"version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 9\n"),
        "gguf": lambda path: weights(path, b"GGUF", "model-q4_k_m.gguf"),
        "onnx": lambda path: weights(path, b"onnx", "model.onnx"),
        "gptq": packed,
        "old.ckpt": lambda path: torch.save({"w": torch.zeros(2)}, path),
        "gpt2": lambda path: single("gpt2", path),
        "deep": lambda path: llama(path, 5, num_hidden_layers=2),
        "wide": lambda path: llama(path, 5, num_hidden_layers=1, hidden_size=32, head_dim=8),
        "spam": lambda path: labelled(path, "ham", "spam"),
        "mood": lambda path: labelled(path, "bad", "fine", "good"),
    }


def stand_ins(root: Path) -> StandIns:
    """The stand-ins of the documentation, and `more`."""
    reach_tests()
    from docs.stand_ins import StandIns

    made = StandIns(root)
    made.makers |= more(made)
    return made


def lay(mistake: Mistake, models: StandIns, folder: Path) -> None:
    """Put what a mistake names into an empty folder."""
    models.lay(f"{mistake.command} {mistake.recipe}", folder)
    if mistake.recipe:
        (folder / "r.yml").write_text(mistake.recipe)


def sentence(mistake: Mistake, folder: Path) -> str:
    """What is said of a mistake in the current folder; raises ValueError as `Mistake.check`."""
    from docs.session import Session

    code, said = Session(folder).command(f"isomerge {mistake.command}")
    return mistake.check(code, said).replace(f"{folder}/", "")


def page(said: Callable[[Mistake], str]) -> str:
    """The page, of what is said of a mistake."""
    text = ABOUT
    for kind, mistakes in MISTAKES.items():
        text += f"\n## {kind}\n\n| mistake | sentence |\n|---|---|\n"
        text += "".join(row(mistake, said(mistake)) for mistake in mistakes)
    return text


def row(mistake: Mistake, sentence: str) -> str:
    """A mistake and what is said of it, in a table."""
    shown = f"`isomerge {mistake.command}`"
    if mistake.command == "merge r.yml -o out":
        shown = f"`{' ⏎ '.join(mistake.recipe.strip().expandtabs(2).splitlines())}`"
    shown_sentence = sentence.replace("<", "\\<")  # no tag
    return f"| {mistake.what}: {shown} | {shown_sentence} |\n"


def main() -> None:
    """Makes every mistake, and writes the page."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    quiet()
    with tempfile.TemporaryDirectory() as root:
        models, home = stand_ins(Path(root) / "models"), Path.cwd()
        (Path(root) / "models").mkdir()

        def said(mistake: Mistake) -> str:
            folder = Path(tempfile.mkdtemp(dir=root))
            lay(mistake, models, folder)
            os.chdir(folder)
            try:
                return sentence(mistake, folder)
            finally:
                os.chdir(home)

        write_whole(PAGE, page(said))


if __name__ == "__main__":
    sys.exit(main())
