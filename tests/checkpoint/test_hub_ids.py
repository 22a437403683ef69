import fnmatch
from typing import Any, cast

import pytest
import torch
from huggingface_hub import errors

from isomerge.checkpoint.opening import open_checkpoint
from isomerge.errors import IsomergeError
from raw_files import config_only, one_sentence, single


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """A hub whose every repository is tmp_path/repo; the calls made are returned."""
    calls = []

    def snapshot_download(repo, **options):
        calls.append((repo, options))
        return str(tmp_path / "repo")

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    monkeypatch.chdir(tmp_path)
    return calls


def test_hub_id_and_revision(hub, tmp_path):
    single(tmp_path / "repo", {"a": torch.ones(1)})
    checkpoint = open_checkpoint("org/name.v1@refs/pr/3")
    assert checkpoint.ref == "org/name.v1@refs/pr/3"
    assert checkpoint.folder == tmp_path / "repo"
    ((repo, options),) = hub
    assert (repo, options["revision"]) == ("org/name.v1", "refs/pr/3")
    open_checkpoint("org/name")
    assert hub[1][1]["revision"] is None

    def wanted(name):
        return any(fnmatch.fnmatch(name, p) for p in options["allow_patterns"]) and not any(
            fnmatch.fnmatch(name, p) for p in options["ignore_patterns"]
        )

    for name in [
        "model.safetensors",
        "config.json",
        "spiece.model",
        "vocab.txt",
        "x.jinja",
        "README.md",
        "code.py",
    ]:
        assert wanted(name)
    assert wanted("1_Pooling/config.json")
    for name in ["pytorch_model.bin", "optimizer.pt", "onnx/model.safetensors", "training_args.bin"]:
        assert not wanted(name)


def test_existing_folder_wins_over_the_hub(hub, tmp_path):
    single(tmp_path / "org" / "name", {"a": torch.ones(1)})
    assert list(open_checkpoint("org/name").tensors) == ["a"]
    assert hub == []


def test_pickles_are_fetched_only_when_allowed_and_needed(hub, tmp_path):
    config_only(tmp_path / "repo")
    torch.save({"p": torch.ones(1)}, tmp_path / "repo" / "pytorch_model.bin")
    assert list(open_checkpoint("org/name", allow_pickle=True).tensors) == ["p"]
    assert ["pytorch_model*.bin" in options["allow_patterns"] for _, options in hub] == [False, True]
    hub.clear()
    single(tmp_path / "repo", {"s": torch.ones(1)})
    assert list(open_checkpoint("org/name", allow_pickle=True).tensors) == ["s"]
    assert len(hub) == 1


class Response:
    request = None
    status_code = 404

    def __init__(self):
        self.headers = {}


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (errors.RepositoryNotFoundError, "no such model"),
        (errors.GatedRepoError, "gated"),
        (errors.RevisionNotFoundError, "no revision 'rev'"),
        (errors.LocalEntryNotFoundError, "connection"),
        (errors.HFValidationError, "valid hub id"),
        (ConnectionError, "connection"),
        (RuntimeError, "connection"),
    ],
)
def test_hub_failures_are_sentences(monkeypatch, tmp_path, error, expected):
    def snapshot_download(repo, **options):
        if issubclass(error, errors.HfHubHTTPError):
            raise error("404 Client Error. (Request ID: x)", response=cast(Any, Response()))
        raise error("Cannot reach it.\nTry again.")

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(IsomergeError) as caught:
        open_checkpoint("org/name@rev")
    one_sentence(caught.value, "org/name@rev", expected)
    assert list(tmp_path.iterdir()) == []


def test_offline_hub_for_real(tmp_path):
    """The real client, told to stay offline, with an empty cache."""
    import os
    import subprocess
    import sys
    from pathlib import Path

    import isomerge.errors

    code = (
        "from isomerge.checkpoint.opening import open_checkpoint\n"
        "from isomerge.errors import IsomergeError\n"
        "try:\n    open_checkpoint('org/absent')\n"
        "except IsomergeError as error:\n    print(error)\n"
    )
    source = str(Path(isomerge.errors.__file__).parents[1])
    env = {**os.environ, "PYTHONPATH": source, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout.startswith("org/absent: no such folder here"), done.stderr
    assert done.stdout.count("\n") == 1
