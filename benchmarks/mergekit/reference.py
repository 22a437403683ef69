"""Run documents through mergekit: started in an environment that has it, and imports nothing of isomerge.

    python reference.py FOLDER recipes     # every FOLDER/NAME.yml is merged into FOLDER/theirs/NAME
    python reference.py FOLDER experts     # the same of documents for mergekit-moe

A document that mergekit cannot run leaves FOLDER/NAME.error with its words. mergekit-moe runs the base model in
bfloat16 where prompts are looked at; for the comparison of formulas it is made to run it in float32, but for documents
with ``bfloat16`` in their names.
"""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"


def merge_recipe(content: dict[str, Any], name: str, out: Path) -> None:
    from mergekit.config import MergeConfiguration
    from mergekit.merge import run_merge
    from mergekit.options import MergeOptions

    options = MergeOptions(copy_tokenizer=False, write_model_card=False, random_seed=1, quiet=True)
    run_merge(MergeConfiguration.model_validate(content), str(out), options)


def make_experts(content: dict[str, Any], name: str, out: Path) -> None:
    import torch
    from mergekit.moe import router
    from mergekit.moe.config import MoEMergeConfig
    from mergekit.options import MergeOptions
    from mergekit.scripts.moe import build
    from transformers import AutoModelForCausalLM

    class InFloat32:
        @staticmethod
        def from_pretrained(*args: Any, **more: Any) -> Any:
            return AutoModelForCausalLM.from_pretrained(*args, **{**more, "torch_dtype": torch.float32})

    options = MergeOptions(write_model_card=False, random_seed=1, quiet=True)
    options.apply_global_options()
    torch.manual_seed(1)
    router.AutoModelForCausalLM = AutoModelForCausalLM if "bfloat16" in name else InFloat32
    out.mkdir(parents=True)
    build(MoEMergeConfig.model_validate(content), str(out), options, device="cpu")


def main(folder: Path, kind: str) -> None:
    import torch
    import yaml

    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    for document in sorted(folder.glob("*.yml")):
        out = folder / "theirs" / document.stem
        try:
            run = {"recipes": merge_recipe, "experts": make_experts}[kind]
            run(yaml.safe_load(document.read_text()), document.stem, out)
        except (Exception, SystemExit) as error:  # whatever it is, it is part of the comparison
            document.with_suffix(".error").write_text(f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
