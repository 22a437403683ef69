"""Every command that aligns says what it leaves fixed."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from safetensors.torch import load_file

import isomerge as api
from solve.disguises import disguise
from toys import overwrite, tensors


def test_every_command_that_aligns_says_so(isomerge: Callable, stored: Callable, tmp_path: Path) -> None:
    """One line on stderr, however often layers repeat; none where nothing is aligned, and none for other models."""
    a = stored("olmo_hybrid-unturned", 0)
    b = disguise("olmo_hybrid-unturned", a, tmp_path / "b", 3)
    warning = "warning: left fixed, not aligned: layers.{l}.linear_attn.(A_log|a_proj.weight|b_proj.weight|dt_bias|"
    commands = {
        "inspect": ("inspect", a),
        "align": ("align", b, "--onto", a, "-o", tmp_path / "aligned"),
        "dry-run": ("merge", a, b, "-o", tmp_path / "none", "--dry-run"),
        "merge": ("merge", a, b, "-o", tmp_path / "merged"),
        "diff": ("diff", a, b),
        "canon": ("canon", a, "-o", tmp_path / "canon"),
    }
    for name, command in commands.items():
        said = isomerge(*command)
        assert (said.code, said.err.count("\n")) == (0, 1), name
        assert said.err.startswith(warning), name
        assert "(13 tensors: the inside of a gated delta rule" in said.err, name
    tuned = shutil.copytree(a, tmp_path / "tuned")
    overwrite(tuned, {name: tensor * 1.001 for name, tensor in tensors(a).items()})
    left = isomerge("merge", a, tuned, "-o", tmp_path / "left")  # aligned already
    assert ("nothing is matched" in left.out, left.code, left.err) == (True, 0, "")
    plain = isomerge("merge", a, a, "-o", tmp_path / "plain", "--no-align")
    assert (plain.code, plain.err) == (0, "")
    assert isomerge("inspect", stored("gpt2", 0)).err == ""
    report = api.inspect(a)
    assert [part["tensors"] for part in report["fixed"]] == [13]
    aligned, source = load_file(tmp_path / "aligned" / "model.safetensors"), load_file(b / "model.safetensors")
    inside = [name for name in source if ".linear_attn." in name]
    assert len(inside) == 13
    assert all(aligned[name].equal(source[name]) for name in inside)
    assert not aligned["model.layers.1.self_attn.q_proj.weight"].equal(
        source["model.layers.1.self_attn.q_proj.weight"]
    )
