"""From what the user typed to a folder on this machine, through the Hugging Face hub when need be."""

from __future__ import annotations

import os
import re
from difflib import get_close_matches
from pathlib import Path

from isomerge.checkpoint.companions import VOCABULARY_FILES
from isomerge.checkpoint.weights import gguf_error
from isomerge.errors import IsomergeError, first_line

_HUB_ID = re.compile(r"(?P<id>[\w][\w.-]*/[\w][\w.-]*)(@(?P<revision>[\w][\w./-]*))?", re.ASCII)
_COMMIT = re.compile(r"[0-9a-f]{40}")
_SIDE_FILES = ["*.json", "*.model", "*.txt", "*.jinja", "*.py", "*.tiktoken", "*.spm", "README.md"]
_SIDE_FILES += [*VOCABULARY_FILES, "bpe.codes", "LICEN[CS]E*", "NOTICE*", "*USE_POLICY*"]
_SAFETENSORS = ["*.safetensors"]
_PICKLES = ["pytorch_model*.bin", "adapter_model.bin"]
# Folders within a repository hold other exports of the same weights, and so does mistral's consolidated file.
_DUPLICATES = ["*/*.safetensors", "*/*.bin", "consolidated*.safetensors"]


def local_folder(ref: str | Path, *, allow_pickle: bool = False) -> Path:
    """The folder that ``ref`` names: itself, the one around a lone .safetensors file, or a hub ``org/name[@rev]``.

    Whatever exists on disk wins over the hub. A hub id is downloaded into the hub's cache; pickles only with
    ``allow_pickle`` and only when the repository has no safetensors.
    Raises IsomergeError when there is no such folder or repository, or the hub cannot be reached.
    """
    text = os.fspath(ref)
    path = Path(os.path.expanduser(text))
    if text and os.path.isdir(path):  # unlike Path.is_dir, never raises on what the user typed
        _check_repository(path)
        return path
    if text and os.path.exists(path):
        return _folder_of_file(path)
    match = _HUB_ID.fullmatch(text)
    if match is None or isinstance(ref, Path):
        raise IsomergeError(f"{text or 'the empty path'}: no such folder; {_meant(text)}")
    return _downloaded(match["id"], match["revision"], allow_pickle)


def _meant(text: str) -> str:
    """What to write in place of a path that is not there: the hub's id, a name spelt alike, or what a model is."""
    if page := re.match(r"(?:https?://)?(?:huggingface\.co|hf\.co)/([^/]+/[^/?#]+)", text):
        return f"write {page[1]}, as the hub's pages are named"
    folder, name = os.path.split(os.path.expanduser(text))
    there = [entry.name for entry in os.scandir(folder or ".")] if os.path.isdir(folder or ".") else []
    if near := get_close_matches(name, there, 1, 0.7):
        return f"did you mean {os.path.join(os.path.dirname(text), near[0])}?"
    return "give an existing checkpoint folder, or a hub id written org/name or org/name@revision"


def _check_repository(path: Path) -> None:
    """Refuse a repository of the hub's cache, whose models are in folders of its own."""
    name = path.resolve().name
    if not name.startswith("models--") or not (path / "snapshots").is_dir() or (path / "config.json").exists():
        return
    main = path / "refs" / "main"
    snapshots = sorted(folder.name for folder in (path / "snapshots").iterdir())
    revision = main.read_text().strip() if main.is_file() else (snapshots or ["REVISION"])[-1]
    raise IsomergeError(
        f"{path} is a repository of the hub's cache: name the model as "
        f"{name.removeprefix('models--').replace('--', '/', 1)}, or the "
        f"folder of one revision, {path / 'snapshots' / revision}"
    )


def cached(ref: str) -> list[Path]:
    """The folder of the hub's cache in which a repository is kept, whatever its revision; empty for what is no hub
    id."""
    match = _HUB_ID.fullmatch(ref)
    if match is None:
        return []
    from huggingface_hub.constants import HF_HUB_CACHE

    return [Path(HF_HUB_CACHE) / f"models--{match['id'].replace('/', '--')}"]


def hub_name(ref: str) -> str | None:
    """The id that a reference of the form ``org/name[@revision]`` has on the hub; None for what exists on disk, as
    that wins over the hub, and for what has another form."""
    match = _HUB_ID.fullmatch(ref)
    return None if match is None or os.path.exists(ref) else match["id"]


def snapshot_of(folder: str | Path) -> tuple[str, str] | None:
    """The repository and the commit whose files a folder of a hub's cache holds,
    ``models--ORG--NAME/snapshots/COMMIT``; None for every other folder."""
    path = Path(os.path.abspath(os.path.expanduser(folder)))
    repository = path.parent.parent.name
    if path.parent.name != "snapshots" or not repository.startswith("models--") or not _COMMIT.fullmatch(path.name):
        return None
    return repository.removeprefix("models--").replace("--", "/", 1), path.name


def with_commit(ref: str) -> str:
    """A part of a reference by its id and commit, ``org/name@commit``, where it names a folder of the hub's cache,
    or a hub id of which the cache holds what its revision is today; every other as it is."""
    if (snapshot := snapshot_of(ref)) is not None and "/" in snapshot[0]:
        return "@".join(snapshot)
    match = _HUB_ID.fullmatch(ref)
    if match is None or os.path.exists(ref):
        return ref
    file = cached(ref)[0] / "refs" / (match["revision"] or "main")
    commit = file.read_text().strip() if file.is_file() else ""
    return f"{match['id']}@{commit}" if _COMMIT.fullmatch(commit) else ref


def _folder_of_file(path: Path) -> Path:
    if path.suffix == ".gguf":
        raise gguf_error(path)
    if path.suffix != ".safetensors":
        raise IsomergeError(
            f"{path} is no checkpoint folder; give the folder that holds config.json and the weights"
        )
    folder = path.parent
    others = [
        file for pattern in (*_SAFETENSORS, *_PICKLES) for file in folder.glob(pattern) if file.name != path.name
    ]
    if others:
        raise IsomergeError(
            f"{path} is only one of the weights files in its folder ({others[0].name} is there too); "
            f"give the folder {folder} instead"
        )
    return folder


def _downloaded(repo: str, revision: str | None, allow_pickle: bool) -> Path:
    folder = _snapshot(repo, revision, _SIDE_FILES + _SAFETENSORS)
    if allow_pickle and not any(folder.glob("*.safetensors")):
        folder = _snapshot(repo, revision, _SIDE_FILES + _PICKLES)
    return folder


def _snapshot(repo: str, revision: str | None, patterns: list[str]) -> Path:
    import huggingface_hub
    from huggingface_hub import errors

    ref = repo if revision is None else f"{repo}@{revision}"
    beside = "" if "?" not in (meant := _meant(repo)) else f"; {meant}"
    try:
        folder = huggingface_hub.snapshot_download(
            repo, revision=revision, allow_patterns=patterns, ignore_patterns=_DUPLICATES
        )
    except errors.GatedRepoError as error:
        raise IsomergeError(
            f"{ref} is gated on the Hugging Face hub; accept its terms there and log in with `hf auth login`"
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise IsomergeError(
            f"{ref}: no such folder here and no such model on the Hugging Face hub; check the spelling, "
            f"or log in with `hf auth login` if it is private{beside}"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise IsomergeError(
            f"{ref}: the model has no revision {revision!r} on the Hugging Face hub; "
            "give a branch, tag or commit of it"
        ) from error
    except errors.HFValidationError as error:
        raise IsomergeError(f"{ref}: no such folder, nor a valid hub id; write a path, or org/name") from error
    except Exception as error:  # the network fails in many types, which differ between versions of the hub client
        raise IsomergeError(
            f"{ref}: no such folder here, and it could not be fetched from the Hugging Face hub "
            f"({type(error).__name__}: {first_line(error)}); check the path, or the connection, and try "
            f"again{beside}"
        ) from error
    return Path(folder)
