"""The options that commands share, declared once."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

Out = Annotated[Path, typer.Option("--out", "-o", help="Folder to write; must not exist or be empty.")]
Spaces = Annotated[
    str | None,
    typer.Option(
        help="What may move: default (inside the layers), all (the residual stream as well), paper, paper-no-rescale, "
        "paper-joint, attention, ffn, none, or a list of roles and spaces such as qk,ov,ff or default,res:Perm (isomerge "
        "inspect shows them). Without it: default, and all when data are given.",
        show_default=False,
    ),
]
Layers = Annotated[str | None, typer.Option(help="Match these layers only: 0-4, 0,2,5, head:5 or tail:3.")]
Untie = Annotated[
    bool,
    typer.Option(
        "--untie",
        help="Give a head that is tied to the embeddings weights of its own, where that frees a symmetry.",
    ),
]
SpecFile = Annotated[
    Path | None, typer.Option("--spec", help="A spec text for an architecture that isomerge does not know.")
]
Pickle = Annotated[
    bool, typer.Option("--allow-pickle", help="Read .bin weights (with weights_only); safetensors are safer.")
]
ShardSize = Annotated[str, typer.Option("--out-shard-size", help="Largest shard, such as 5GB or 500M.")]
Dtype = Annotated[
    str | None, typer.Option(help="Write weights as float32, float16, bfloat16 or float64; as stored by default.")
]
OutFile = Annotated[Path, typer.Option("--out", "-o", help="The file to write, .safetensors.")]
ForceFile = Annotated[bool, typer.Option("--overwrite", help="Replace the file.")]
Limit = Annotated[int | None, typer.Option(help="Use no more than so many examples.")]
Length = Annotated[int, typer.Option(help="Tokens per example of text.")]
Device = Annotated[str, typer.Option(help="Where models run: cpu or cuda.")]
Force = Annotated[bool, typer.Option("--overwrite", help="Replace the output folder when the new one is complete.")]


def _writable(path: Path | None) -> Path | None:
    """A report that cannot be written is told before the work is done."""
    from isomerge.files import check_file, is_device

    if path is not None and str(path) != "-" and not is_device(path):
        check_file(Path(os.path.expanduser(path)), f"--json {path}", force=True)
    return path


Json = Annotated[
    Path | None,
    typer.Option(
        "--json", callback=_writable, help="Write the report as JSON to this file (-: print it, with -q alone)."
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Print figures per layer as well.")]
MaxMemory = Annotated[
    str | None,
    typer.Option(
        help="What the run may take, such as 8GB, by the estimate of --dry-run; refused where that is too little."
    ),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Check everything, print the plan and its cost, write nothing.")
]
