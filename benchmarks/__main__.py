"""What there is to measure: every benchmark with the first sentence of what it says.

python -m benchmarks     # each one's commands: python -m benchmarks.NAME --help
"""

from __future__ import annotations

import ast
from pathlib import Path


def benchmarks() -> dict[str, str]:
    """The modules of this folder that are commands, by name, and what they measure."""
    here, commands = Path(__file__).parent, {}
    for file in sorted([*here.glob("*.py"), *here.glob("*/__main__.py")]):
        text = file.read_text(encoding="utf-8")
        name = file.parent.name if file.name == "__main__.py" else file.stem
        if file != Path(__file__) and '__name__ == "__main__"' in text:
            commands[name] = " ".join((ast.get_docstring(ast.parse(text)) or "").split("\n\n")[0].split())
    return commands


if __name__ == "__main__":
    for name, about in benchmarks().items():
        print(f"{name}: {about}")
