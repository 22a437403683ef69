"""An output checked against its own report."""

from __future__ import annotations

from isomerge.options.requests import checking as asked_for
from isomerge.progress import Observer
from isomerge.run.arguments import checked
from isomerge.run.fsck import Checkup
from isomerge.run.fsck import fsck as check


@checked(asked_for.Fsck)
def fsck(asked: asked_for.Fsck, observer: Observer) -> Checkup:
    """Whether the folder that `isomerge.merge`, `align`, `apply` or `canon` wrote is still what was written.

    Returns:
        ``sound``, ``problems`` (of the output), ``files``, ``strangers`` and ``inputs`` with their states; see
        `isomerge.run.fsck.Checkup`.

    Raises:
        IsomergeError: no such folder, or no report with checksums in it.
    """
    return check(asked.out, spec=asked.opening.spec, observer=observer)
