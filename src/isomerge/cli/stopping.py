"""Ctrl-C: one sentence, which says whether the same command goes on where it was stopped; and one on mergekit's
options."""

from __future__ import annotations

from typing import Any

from typer.core import TyperGroup

from isomerge.cli.console import leave_without_reader
from isomerge.cli.mergekit_options import in_place_of
from isomerge.errors import RESUMABLE, IsomergeError, Stopped


class Commands(TyperGroup):
    """The commands, of which each may be stopped; by itself typer leaves without a word."""

    def invoke(self, ctx: Any) -> object:
        """Run a command.

        Raises:
            Stopped: on Ctrl-C, with the sentence to say.
            IsomergeError: an option is mergekit's.
        """
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            resumable = RESUMABLE in getattr(error, "__notes__", ())
            raise Stopped("stopped; start again to go on" if resumable else "stopped") from None
        except BrokenPipeError:
            leave_without_reader()
        except Exception as error:  # typer's own class for an option that there is not is no public name
            option = getattr(error, "option_name", None)
            if not isinstance(option, str) or (sentence := in_place_of(option)) is None:
                raise
            raise IsomergeError(sentence) from None
