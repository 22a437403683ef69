"""Ctrl-C: one sentence, which says whether the same command goes on where it was stopped."""

from __future__ import annotations

from typing import Any

from typer.core import TyperGroup

from isomerge.errors import RESUMABLE, Stopped


class Commands(TyperGroup):
    """The commands, of which each may be stopped; by itself typer leaves without a word."""

    def invoke(self, ctx: Any) -> object:
        """Run a command.

        Raises:
            Stopped: on Ctrl-C, with the sentence to say.
        """
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            resumable = RESUMABLE in getattr(error, "__notes__", ())
            raise Stopped("stopped; start again to go on" if resumable else "stopped") from None
