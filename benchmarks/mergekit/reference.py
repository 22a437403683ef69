"""Run recipes through mergekit: started by compare.py in an environment that has it, and imports nothing of
isomerge.

    python reference.py FOLDER      # every FOLDER/NAME.yml is merged into FOLDER/NAME

A recipe that mergekit cannot run leaves FOLDER/NAME.error with its words.
"""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"


def main() -> None:
    """Merge every recipe of a folder."""
    import torch
    import yaml
    from mergekit.config import MergeConfiguration
    from mergekit.merge import run_merge
    from mergekit.options import MergeOptions

    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    options = MergeOptions(copy_tokenizer=False, write_model_card=False, random_seed=1, quiet=True)
    for recipe in sorted(Path(sys.argv[1]).glob("*.yml")):
        out = recipe.with_suffix("")
        if out.exists():
            continue
        try:
            run_merge(MergeConfiguration.model_validate(yaml.safe_load(recipe.read_text())), str(out), options)
        except Exception as error:  # whatever it is, it is a result
            recipe.with_suffix(".error").write_text(f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
