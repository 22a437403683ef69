"""The tokenizers of checkpoints: loading one, making the union of several, and the files that it is saved in."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from isomerge.checkpoint.companion_folder import write_companions
from isomerge.checkpoint.companions import VOCABULARY_FILES, config_bytes, is_tokenizer_file, tokenizer_files
from isomerge.checkpoint.hub import local_folder
from isomerge.checkpoint.opening import CONFIG, read_config
from isomerge.checkpoint.reader import Checkpoint
from isomerge.errors import IsomergeError
from isomerge.progress import silent
from isomerge.records import Json


def load_tokenizer(checkpoint: Checkpoint) -> Any:
    """The tokenizer of a checkpoint (or of a view), by transformers, without code from the checkpoint.

    Raises:
        IsomergeError: the checkpoint has none, or transformers cannot load it.
    """
    files = tokenizer_files(checkpoint.companions())
    if not any(name in VOCABULARY_FILES for name in files):
        where = "" if str(checkpoint.folder) == checkpoint.ref else f" ({checkpoint.folder})"
        raise IsomergeError(
            f"{checkpoint.ref}{where} has no tokenizer (tokenizer.json), so its vocabulary cannot be "
            "matched: copy the tokenizer's files there"
        )
    with tempfile.TemporaryDirectory() as folder:
        # some classes are found by model_type
        write_companions(Path(folder), {**files, CONFIG: config_bytes(checkpoint.config)})
        return _load(Path(folder), checkpoint.ref)


def token_ids(tokenizer: Any) -> dict[str, int]:
    """All tokens with their ids, added ones too, in the order of ids."""
    return dict(sorted(tokenizer.get_vocab().items(), key=lambda item: (item[1], item[0])))


def tokenizer_alone(ref: str) -> Checkpoint:
    """A folder or hub id of which only the tokenizer counts: it may have no weights.

    Raises:
        IsomergeError: there is no such folder or repository.
    """
    folder = local_folder(ref)
    config = read_config(folder) if (folder / CONFIG).is_file() else {}
    return Checkpoint(ref, folder, config, {}, {})


def extended(tokenizer: Any, others: Sequence[tuple[Any, int]], extra: Sequence[str], ref: str) -> Any:
    """A new tokenizer with the tokens of ``others`` and ``extra`` as well; the ids of its own tokens stay.

    Tokens that the others *added* (special tokens, say) are added with their settings; where two disagree, the
    first counts. Their ordinary tokens become ordinary tokens, with the others' BPE merges after its own, so that
    they are made of a text only where the own rules leave pieces to join. For other kinds of tokenizers (Unigram)
    they are added.

    Args:
        tokenizer: the one to extend, by transformers; it is left as it is.
        others: tokenizers by transformers, in order of precedence, each with the number of its model's rows: tokens
            beyond them are left out.
        extra: further tokens, added as they are.
        ref: what to call the model of ``tokenizer`` in messages.

    Raises:
        IsomergeError: it is no fast tokenizer, or transformers does not keep the ids.
    """
    own = token_ids(tokenizer)
    fast = [other for other, _ in others if other.is_fast]
    ordinary: dict[str, None] = {}
    added: Json = {}
    for other, rows in others:
        special = {token.content: token for token in other.added_tokens_decoder.values()}
        for token, at in token_ids(other).items():
            if token not in own and at < rows:
                if token in special:
                    added.setdefault(token, special[token])
                else:
                    ordinary[token] = None
    if not tokenizer.is_fast:
        raise IsomergeError(
            f"{ref}: its tokenizer has no tokenizer.json, so it cannot be extended; convert it first"
        )
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save_pretrained(folder)
        rest = _insert(Path(folder) / "tokenizer.json", own, list(ordinary), fast) if ordinary else []
        tokenizer_with_more = _load(Path(folder), ref)
    tokenizer_with_more.add_tokens([*rest, *added.values(), *(token for token in extra if token not in added)])
    now = tokenizer_with_more.get_vocab()
    wanted = [*ordinary, *added, *extra]
    taken = set(own.values())  # ids with gaps: transformers counts tokens, and gives a new one an id that is taken
    kept = all(now.get(token) == at for token, at in own.items())
    if not kept or any(now.get(token) is None or (token not in own and now[token] in taken) for token in wanted):
        raise IsomergeError(
            f"{ref}: transformers does not keep the ids of this tokenizer when tokens are added, so its rows "
            "cannot be kept; choose the vocabulary of one model instead of the union"
        )
    return tokenizer_with_more


def _insert(path: Path, own: Mapping[str, int], ordinary: list[str], others: Sequence[Any]) -> list[str]:
    """Writes ordinary tokens into a tokenizer.json after all its ids; returns those for which it has no place."""
    content = json.loads(path.read_text(encoding="utf-8"))
    model = content["model"]
    if not isinstance(model.get("vocab"), dict):
        return ordinary
    # the ids of added tokens are counted from the size of this table unless they are in it
    model["vocab"] |= own
    start = max(own.values(), default=-1) + 1
    model["vocab"] |= {token: start + at for at, token in enumerate(ordinary)}
    if isinstance(model.get("merges"), list):
        merges = [_pair(merge) for merge in model["merges"]]
        for other in others:
            rules = json.loads(other.backend_tokenizer.to_str())["model"].get("merges")
            merges += [_pair(merge) for merge in rules or []]
        vocab = model["vocab"]
        known = (m for m in dict.fromkeys(merges) if m[0] in vocab and m[1] in vocab and m[0] + m[1] in vocab)
        model["merges"] = [list(merge) for merge in known]
    path.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
    return []


def _pair(merge: str | Sequence[str]) -> tuple[str, str]:
    left, right = merge.split(" ") if isinstance(merge, str) else merge
    return left, right


def saved_files(tokenizer: Any) -> dict[str, bytes | Path]:
    """The files that transformers saves a tokenizer in: name to content."""
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save_pretrained(folder)
        files = {
            path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(Path(folder).rglob("*.*"))
        }
    return {name: content for name, content in files.items() if is_tokenizer_file(name)}


def _load(folder: Path, ref: str) -> Any:
    from transformers import AutoTokenizer

    try:
        with silent():
            return AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    except Exception as error:  # a tokenizer's files fail in as many types as there are tokenizers
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise IsomergeError(
            f"{ref}: transformers cannot load its tokenizer ({first[:160].rstrip('.')}); save it again with "
            "save_pretrained"
        ) from error
