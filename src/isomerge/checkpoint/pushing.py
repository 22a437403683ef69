"""Pushing a finished checkpoint to the Hub: checked before the work begins, done when the folder is complete."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

from isomerge.errors import IsomergeError

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*")
REPLACED = ("*.safetensors", "*.safetensors.index.json", "alignment*", "isomerge*")
"""What an earlier push has left and a new one may not have: shards of another number."""


def check_push(repo: str | None) -> None:
    """Refuse what could not be pushed, before anything is computed: a name that is none, no login, no network.

    Raises:
        IsomergeError: naming the option, and how to log in.
    """
    if repo is None:
        return
    if not NAME.fullmatch(repo):
        raise IsomergeError(f"--push-to-hub {repo}: write ORG/NAME, such as my-team/merged-model")
    try:
        _api().whoami()
    except Exception as error:
        raise IsomergeError(
            f"--push-to-hub {repo}: the hub does not know who you are ({_reason(error)}); log in with hf auth "
            f"login, or set HF_TOKEN"
        ) from error


def push(folder: Path, repo: str, *, private: bool, message: str) -> str:
    """Upload a folder as a model, in one commit; returns the model's address.

    Args:
        folder: the complete checkpoint.
        repo: ``ORG/NAME``, made where it is not there.
        private: whether it is made private.
        message: of the commit.

    Raises:
        IsomergeError: the upload failed; the folder stays, and how to push it again is said.
    """
    api = _api()
    try:
        made = api.create_repo(repo, private=private, exist_ok=True, repo_type="model")
        api.upload_folder(repo_id=repo, folder_path=folder, commit_message=message, delete_patterns=list(REPLACED))
    except Exception as error:
        again = shlex.join(["hf", "upload", repo, str(folder), "."])
        raise IsomergeError(
            f"{folder} is complete, but could not be pushed to {repo} ({_reason(error)}); push it again with: "
            f"{again}"
        ) from error
    return str(made)


def _api() -> Any:
    from huggingface_hub import HfApi

    return HfApi(library_name="isomerge")


def _reason(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:160].rstrip(". ") if lines else type(error).__name__
