"""The one exception that users see: a sentence that says what is wrong, where, and how to mend it."""

from __future__ import annotations


class IsomergeError(Exception):
    """A problem with the user's input, told in one sentence.

    The message names the file, tensor and axis concerned, says what was expected, and how to fix it.
    The command line prints it without a traceback and exits with code 2.
    """


class DiskFullError(IsomergeError):
    """The disk is full: what has been written stays, and the same command goes on once there is room."""
