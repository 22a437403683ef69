"""A spec text of the user's own, proven before anything is moved by it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from isomerge.archs import spec_for
from isomerge.errors import IsomergeError
from isomerge.files import unreadable


def demand_proof(spec: str | Path, ref: str, config: Mapping[str, Any], *, own: bool = False) -> None:
    """Refuse a text of the user's own that is not proven for a model; where it was not tried, it is tried now.

    Args:
        spec: the text's file.
        ref: what the user calls the model.
        config: its config.json.
        own: whether it is a module of one's own, of which no tiny one can be made.

    Raises:
        IsomergeError: the law refutes the text, or it cannot be tried.
    """
    # a text of the user's own is rare, and trying it takes all that `isomerge discover` has
    from isomerge.discovery.building import real_config, specimens
    from isomerge.discovery.proofs import recall, remember
    from isomerge.discovery.trial import try_spec

    text, spec_of = text_of(spec)
    assert text is not None
    known = recall(text, config)
    if known is None and own:
        raise IsomergeError(
            f"{spec}: this text is not proven for {ref}: prove it once, with a tiny module of the class and what "
            f"its forward takes: isomerge.prove(module, spec=..., inputs=...)"
        )
    try:
        if known is None:
            known = try_spec(spec_of, specimens(real_config(config), 0, untied=False)).document()
            remember(text, config, {"command": "prove", "model": ref, "spec": str(spec), **known})
    except IsomergeError as error:
        raise IsomergeError(
            f"{spec}: this text is not proven for {ref}, and cannot be tried here ({error}): prove it once with a "
            f"tiny module of your own (isomerge prove {ref} --spec {spec} --module FILE.py:FUNCTION)"
        ) from None
    if not known["proven"]:
        raise IsomergeError(
            f"{spec}: {known['refuted']}: correct the text (isomerge prove {ref} --spec {spec} tells all)"
        )


def text_of(spec: str | Path | None) -> tuple[str | None, Any]:
    """A spec text, and what binds it to a config."""
    file = None if spec is None else Path(os.path.expanduser(spec))

    def spec_of(config: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> Any:
        return spec_for(config, file, shapes)

    if file is None:
        return None, spec_of
    try:
        return file.read_text(encoding="utf-8"), spec_of
    except (OSError, UnicodeDecodeError) as error:
        raise unreadable(str(spec), "spec file", error) from None
