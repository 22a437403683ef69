"""``isomerge extract-lora``: a fine-tune as a LoRA adapter on its base."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from isomerge.cli import options as o
from isomerge.cli.grouped import grouped
from isomerge.options import FolderOptions, OpeningOptions, TellingOptions

if TYPE_CHECKING:
    from isomerge.cli.console import Voice


@grouped
def extract_lora(
    finetuned: Annotated[str, typer.Argument(help="The model to describe: a folder or hub id.")],
    base: Annotated[str, typer.Argument(help="The model that the adapter is for.")],
    out: o.Out,
    rank: Annotated[
        int | None,
        typer.Option(help="The largest rank of a layer; 16 where neither it nor --energy is given."),
    ] = None,
    energy: Annotated[
        float,
        typer.Option(help="Per layer, the fewest ranks that keep this share of the squared singular values."),
    ] = 1.0,
    sv_epsilon: Annotated[
        float,
        typer.Option("--sv-epsilon", help="Drop singular values below this share of a layer's largest."),
    ] = 0.0,
    include: Annotated[
        str | None,
        typer.Option(
            "--include", "--include-regex", help="Only modules whose names contain this regular expression."
        ),
    ] = None,
    exclude: Annotated[
        str | None,
        typer.Option("--exclude", "--exclude-regex", help="No modules whose names contain this one."),
    ] = None,
    embeddings: Annotated[
        bool, typer.Option("--embeddings", help="Describe tables of tokens by factors as well.")
    ] = False,
    save_modules: Annotated[
        bool,
        typer.Option("--save-modules", help="Keep whole what has no factors: norms, biases, tables, new heads."),
    ] = False,
    seed: Annotated[int, typer.Option(help="Of the randomised range finder for large matrices.")] = 0,
    *,
    opening: OpeningOptions,
    writing: FolderOptions,
    telling: TellingOptions,
) -> None:
    """Write FINETUNED minus BASE as a LoRA adapter in peft's format; BASE+OUT is then the fine-tune, as far as
    ranks go."""
    import isomerge
    from isomerge.cli.console import Voice, write_json

    report = isomerge.extract_lora(
        finetuned,
        base,
        out=out,
        rank=rank,
        energy=energy,
        sv_epsilon=sv_epsilon,
        include=include,
        exclude=exclude,
        embeddings=embeddings,
        save_modules=save_modules,
        seed=seed,
        spec=opening.spec,
        allow_pickle=opening.allow_pickle,
        overwrite=writing.overwrite,
    )
    _tell(Voice(telling.quiet, telling.verbose), report, out)
    write_json(telling.json, report)


def _tell(voice: Voice, report: dict[str, Any], out: Path) -> None:
    tensors: dict[str, dict[str, Any]] = report["tensors"]
    if voice.verbose:
        rows = [
            [name, x["kept"], str(x["rank"] or ""), f"{x['norm']:.4g}", f"{x['lost']:.4g}"]
            for name, x in tensors.items()
        ]
        voice.table("", ["tensor that differs", "kept", "rank", "norm of the difference", "lost"], rows)
    for note in report["notes"]:
        voice.warn(note)
    kept = {kind: sum(x["kept"] == kind for x in tensors.values()) for kind in ("lora", "saved", "lost")}
    parts = [f"{kept['lora']} weights by factors of rank {report['rank']} or less"]
    parts += [f"{kept['saved']} tensors whole"] if kept["saved"] else []
    voice.say(f"Wrote {out}: {', '.join(parts)}; {report['share']:.2%} of the difference is lost (Frobenius).")
    if kept["lost"]:
        names = [name for name, x in tensors.items() if x["kept"] == "lost"]
        more = f" and {len(names) - 4} more" if len(names) > 4 else ""
        voice.say(
            f"Not described: {', '.join(names[:4])}{more}. --save-modules keeps what has no factors, "
            f"--embeddings tables."
        )
