"""What an unfinished search belongs to: another one is never mixed with it, and never thrown away unasked."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from isomerge.checkpoint.output_folder import BLOBS, unfinished_root
from isomerge.errors import IsomergeError
from isomerge.files import disk_errors, write_whole

STAMP = "tune-stamp.json"
SAID = {
    "merge": "another recipe, other models, or other options of the output",
    "search": "other ranges, another sampler or another seed",
    "data": "other examples or tasks, or others of them held out",
}


@dataclass(frozen=True)
class Stamp:
    """What trials depend on, in three parts."""

    merge: str
    search: str
    data: str

    def document(self) -> dict[str, str]:
        """Digests of the parts."""
        return {name: hashlib.sha256(text.encode()).hexdigest() for name, text in asdict(self).items()}

    def write(self, path: Path) -> None:
        """Keep it with the unfinished output."""
        with disk_errors(path):
            write_whole(path, json.dumps(self.document()).encode())

    def check(self, out: Path) -> None:
        """Refuse to take the place of the unfinished search of something else.

        Args:
            out: the output folder, beside which the unfinished one lies.

        Raises:
            IsomergeError: saying what differs.
        """
        folder = unfinished_root(out)
        try:
            stamped: Any = json.loads((folder / BLOBS / STAMP).read_bytes())
        except (OSError, ValueError):
            return
        own = self.document()
        other = [
            said for name, said in SAID.items() if not isinstance(stamped, dict) or stamped.get(name) != own[name]
        ]
        if other:
            raise IsomergeError(
                f"{folder} has an unfinished search with {'; '.join(other)}: give the same command to go on with "
                f"it, choose another output folder, or remove that one"
            )
