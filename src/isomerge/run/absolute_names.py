"""Names of models, files and data that mean the same from every working directory, for records that outlive the
run."""

from __future__ import annotations

import os
from pathlib import Path

from isomerge.checkpoint.hub import with_commit
from isomerge.checkpoint.single_file import LANGUAGE, split_part, whole_of_language
from isomerge.errors import IsomergeError
from isomerge.models.references import parse_model_ref, with_base
from isomerge.observe.data.splits import saved_split


def absolute_path(path: str | Path) -> str:
    """What is on this machine by its full path; everything else, such as a hub id with its revision, as it is."""
    text = os.path.expanduser(os.fspath(path))
    if (part := split_part(text)) is not None:
        return f"{absolute_path(part[0])}:{part[1]}"
    if not text or not os.path.exists(text):
        return os.fspath(path)
    # `x/..` behind a link is not what the names say
    return os.path.realpath(text) if ".." in Path(text).parts else os.path.abspath(text)


def absolute_ref(ref: str | Path) -> str:
    """A reference to a model: every part of ``model+adapter`` by its full path, and an adapter alone with the base
    that it names, where that is on this machine (its name there may be relative)."""
    if (whole := whole_of_language(ref)) is not None:
        return absolute_ref(whole) + LANGUAGE
    if isinstance(ref, Path) and ref.exists():
        return absolute_path(ref)
    try:
        reference = with_base(parse_model_ref(os.fspath(ref)))
    except IsomergeError:
        return os.fspath(ref)
    return "+".join(map(absolute_path, (reference.model, *reference.adapters)))


def lasting_ref(ref: str | Path) -> str:
    """The same for a recipe, which others read: what the hub's cache holds by its id and commit."""
    full = absolute_ref(ref)
    if (whole := whole_of_language(full)) is not None:
        return lasting_ref(whole) + LANGUAGE
    try:
        parts = parse_model_ref(full)
    except IsomergeError:
        return full
    return "+".join(map(with_commit, (parts.model, *parts.adapters)))


def absolute_data(ref: str | Path) -> str:
    """Data: a file or folder by its full path, with the split that is named behind it; data sets and functions as
    they are."""
    text = os.path.expanduser(os.fspath(ref))
    folder, split = ("", "") if os.path.exists(text) else saved_split(text)
    return f"{absolute_path(folder)}:{split}" if split else absolute_path(ref)
