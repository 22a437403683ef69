"""What ``isomerge --help`` says: printed without loading the command line itself, which takes five times as
long."""

from __future__ import annotations

from isomerge.doors import COMMANDS

TAGLINE = "Align transformers along their weight symmetries, merge them, and prove it."
OPTIONS = {"--version": "Print the version.", "-h, --help": "Show this message and exit."}


def overview() -> str:
    """The text of ``isomerge --help``."""
    return "\n".join(
        [
            "",
            "Usage: isomerge [OPTIONS] COMMAND [ARGS]...",
            "",
            f"  {TAGLINE}",
            "",
            "Options:",
            *_table(OPTIONS),
            "",
            "Commands:",
            *_table({name: said for name, (_, said) in COMMANDS.items()}),
            "",
            "isomerge COMMAND --help tells what a command takes.",
            "",
        ]
    )


def _table(rows: dict[str, str]) -> list[str]:
    wide = max(map(len, rows))
    return [f"  {name:<{wide}}  {said}" for name, said in rows.items()]
