"""What people do to a model so that it is not recognised, or so that another is taken for it, by kind."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import isomerge
from isomerge.checkpoint.in_memory import in_memory
from isomerge.cli.program import app
from isomerge.evidence.law import random_alignment
from isomerge.models.recognised import Model, recognise
from isomerge.quotient import similarity as of_similarity
from isomerge.quotient.draws import chosen, codes, salted
from isomerge.quotient.fingerprint import fingerprint
from isomerge.quotient.record import read_fingerprint
from isomerge.quotient.similarity import TAMPERED, Similarity, similarity
from isomerge.quotient.storage import shared_entries
from isomerge.symmetry.axes import Atom
from isomerge.symmetry.blocks import Block
from solve.disguises import turn, with_layers_exchanged
from toys import config_of, save_toy, tensors

Weights = dict[str, torch.Tensor]
VOCABULARY = 300
"""More rows than all public anchors and sums together."""


class Subject:
    """A toy whose vocabulary is large enough to hide in, and its fingerprint."""

    def __init__(self, name: str, folder: Path, seed: int = 0) -> None:
        where = save_toy(name, folder, seed=seed, dtype=torch.float32)
        small, self.config = tensors(where), config_of(where)
        model, rng = recognise(where), torch.Generator().manual_seed(100 + seed)
        old, self.config["vocab_size"] = self.config["vocab_size"], VOCABULARY
        self.tokens = {
            n: at
            for n, m in model.matches.items()
            for at, axis in enumerate(m.line.axes or ())
            if _is_vocabulary(axis)
        }
        self.weights = {n: t.float() if t.is_floating_point() else t for n, t in small.items()}
        for table, at in self.tokens.items():
            t = self.weights[table].movedim(at, 0)
            new = t.std() * torch.randn((VOCABULARY - old, *t.shape[1:]), generator=rng)
            self.weights[table] = torch.cat([t, new]).movedim(0, at).contiguous()
        self.print = fingerprint(self.model())

    def model(self, weights: Weights | None = None, **config: Any) -> Model:
        """The model with other weights or another config."""
        return recognise(in_memory(weights or self.weights, {**self.config, **config}))

    def inputs(self) -> list[tuple[Block, str]]:
        """The tables of tokens that feed a stream."""
        model = self.model()
        reads = {block: any(a.dual for a in block.atoms) for block in model.blocks}
        named = [(block, model.names[block.canonical[0]]) for block in model.blocks if not reads[block]]
        return [(block, name) for block, name in named if name in self.tokens]

    def rows(self, change: Callable[[torch.Tensor], torch.Tensor]) -> Weights:
        """All tensors of the vocabulary changed, tokens first."""
        return {
            n: change(t.movedim(self.tokens[n], 0)).movedim(0, self.tokens[n]).contiguous()
            if n in self.tokens
            else t
            for n, t in self.weights.items()
        }

    def compared(self, weights: Weights | None = None, salt: str = "", **config: Any) -> Similarity:
        """What fingerprints say of the subject and a changed one."""
        mine = fingerprint(self.model(), salt=salt) if salt else self.print
        return similarity(mine, fingerprint(self.model(weights, **config), salt=salt))


def _is_vocabulary(axis: object) -> bool:
    return isinstance(axis, Atom) and axis.name == "vocab"


@pytest.fixture(scope="module", params=["gpt2", "llama"])
def subject(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Subject:
    return Subject(request.param, tmp_path_factory.mktemp("subject") / "a")


def words(found: Similarity) -> str:
    """What was done, in one text."""
    return "; ".join([*found.settings, *found.sizes, *(change.words for change in found.changes)])


# ------------------------------------------------------------------- the vocabulary


def test_a_shuffled_vocabulary_is_told(subject: Subject) -> None:
    """The same function of texts with its tokenizer: derived, and what was done."""
    order = torch.randperm(VOCABULARY, generator=torch.Generator().manual_seed(1))
    found = subject.compared(subject.rows(lambda t: t[order]))
    assert found.verdict == "derived from one base"
    assert "rows in another order" in words(found)
    assert not found.hashes_equal
    assert found.witnesses["tokens"] is not None
    assert found.witnesses["tokens"] < 0.5  # what the first fingerprints had to go by


@pytest.mark.parametrize("lots", [1, 2])
def test_public_rows_that_were_exchanged_are_told(subject: Subject, lots: int) -> None:
    """One lot of the rows that fingerprints look at by themselves, or both."""
    changed, rng = dict(subject.weights), torch.Generator().manual_seed(1)
    for block, name in subject.inputs():
        t = changed[name].clone()
        at = [row for lot in range(lots) for row in chosen(block.key, len(t), lot)]
        t[at] = t.std() * torch.randn((len(at), *t.shape[1:]), generator=rng)
        changed[name] = t
    found = subject.compared(changed)
    assert found.verdict == TAMPERED
    assert "rows were exchanged" in found.conflict
    salted_ones = subject.compared(changed, salt="an auditor's own")  # he looks elsewhere, and sees a derived model
    assert salted_ones.verdict == "derived from one base"


def test_all_other_rows_shuffled_is_not_the_same(subject: Subject) -> None:
    """All that the first fingerprints looked at is as it was."""
    changed, rng = dict(subject.weights), torch.Generator().manual_seed(1)
    for block, name in subject.inputs():
        t = changed[name].clone()
        kept = {row for lot in range(2) for row in chosen(block.key, len(t), lot)}
        rest = torch.tensor([n for n in range(len(t)) if n not in kept])
        t[rest] = t[rest[torch.randperm(len(rest), generator=rng)]]
        changed[name] = t
    found = subject.compared(changed)
    assert found.witnesses["tokens"] == pytest.approx(1)
    assert not found.same
    assert found.verdict == TAMPERED
    assert not found.hashes_equal


def test_replaced_embeddings_do_not_hide_the_layers(subject: Subject) -> None:
    """Spectra know no vocabulary."""
    rng = torch.Generator().manual_seed(1)
    found = subject.compared(subject.rows(lambda t: t.std() * torch.randn(t.shape, generator=rng)))
    assert found.verdict == "derived from one base"
    assert "replaced" in words(found)
    assert found.witnesses["spectra"] == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("rows", [VOCABULARY // 2, VOCABULARY + 40])
def test_a_vocabulary_of_another_size(subject: Subject, rows: int) -> None:
    """Cut in half, or grown."""
    rng = torch.Generator().manual_seed(1)

    def resized(t: torch.Tensor) -> torch.Tensor:
        return torch.cat([t, t.std() * torch.randn((40, *t.shape[1:]), generator=rng)])[:rows]

    found = subject.compared(subject.rows(resized), vocab_size=rows)
    assert found.verdict == "derived from one base"
    assert f"has {VOCABULARY} rows and {rows}" in words(found)


@pytest.mark.parametrize("how", ["one row", "two rows change places", "the head alone"])
def test_every_row_counts(subject: Subject, how: str) -> None:
    """Rows that no draw looks at by themselves, and rows of the head, which feed nothing: mutants of a digest that
    leaves rows out."""
    changed = {n: t.clone() for n, t in subject.weights.items()}
    (block, name) = subject.inputs()[0]
    kept = {row for lot in range(2) for row in chosen(block.key, VOCABULARY, lot)}
    first, second = [n for n in range(VOCABULARY) if n not in kept][:2]
    if how == "the head alone":
        heads = [n for n in subject.tokens if n != name]
        if not heads:
            return  # the embeddings are the head
        changed[heads[0]] = changed[heads[0]][
            torch.randperm(VOCABULARY, generator=torch.Generator().manual_seed(1))
        ]
    elif how == "one row":
        changed[name][first] *= 1.2
    else:
        changed[name][[first, second]] = changed[name][[second, first]]
    found = subject.compared(changed)
    assert not found.same
    assert not found.hashes_equal


# ------------------------------------------------------------------- witnesses


def test_spectra_that_are_strange_are_told(subject: Subject, tmp_path: Path) -> None:
    """Anchors see what they saw, and circuits have other singular values: somebody changed them where no anchor
    looks."""
    other = Subject(subject.config["model_type"], tmp_path / "b", seed=5).print
    found = similarity(subject.print, replace(subject.print, spectra=other.spectra))
    assert found.equal
    assert found.verdict == TAMPERED
    assert "where no anchor looks" in found.conflict
    strangers = similarity(subject.print, other)
    assert strangers.verdict == "independent"
    assert not strangers.document()["changes"]
    alike = similarity(
        subject.print, replace(other, spectra=subject.print.spectra)
    )  # as where a vocabulary is another one
    assert alike.verdict == "derived from one base"


@pytest.mark.parametrize("how", ["attention", "vocabulary", "pruned"])
def test_equal_numbers_are_not_independent(
    how: str, subject: Subject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stranger with the subject's attention, or with its vocabulary, and what one in twenty of its numbers is left
    of: from files as well. Without a look at numbers (a mutant) one of them is independent."""
    other = Subject(subject.config["model_type"], tmp_path / "b", seed=5)
    assert similarity(subject.print, other.print).verdict == "independent"
    changed = {
        "attention": {n: t if "attn" in n else other.weights[n] for n, t in subject.weights.items()},
        "vocabulary": {n: t if n in subject.tokens else other.weights[n] for n, t in subject.weights.items()},
        "pruned": {
            n: torch.where(t.abs() < t.abs().flatten().kthvalue(int(0.95 * t.numel())).values, 0.0, t)
            if t.ndim > 1 and t.is_floating_point()
            else t
            for n, t in subject.weights.items()
        },
    }[how]
    made = fingerprint(other.model(changed))
    made.save(tmp_path / "made.json")
    for told in (
        similarity(subject.print, made),
        similarity(read_fingerprint(tmp_path / "made.json"), subject.print),
    ):
        assert told.verdict != "independent"
        assert told.shared
        assert told.derived or "hold the same numbers" in told.doubt
    monkeypatch.setattr(of_similarity, "shared_entries", lambda first, second: ())
    blind = similarity(subject.print, made).verdict
    assert blind in ("independent", "derived from one base", "cannot tell whether they have one base")
    assert (blind == "independent") == (told.verdict == "cannot tell whether they have one base")


@pytest.mark.parametrize("numbers", ["float32", "bfloat16", "levels", "signs", "constants"])
def test_numbers_that_agree_by_chance(numbers: str) -> None:
    """Strangers in few different numbers hold many that are equal, and are told nothing of it; copies are, but for
    constants. What one kind of tensors alone has in common may be computed."""

    def drawn(seed: int) -> dict[str, torch.Tensor]:
        rng = torch.Generator().manual_seed(seed)
        normal = {f"layers.{n}.{kind}": torch.randn(64, generator=rng) for n in range(12) for kind in "abcdef"}
        change: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
            "float32": lambda x: x,
            "bfloat16": lambda x: x.bfloat16().float(),
            "levels": lambda x: (4 * x).round() / 4,
            "signs": lambda x: x.sign() * (x.abs() > 0.4),
            "constants": torch.ones_like,
        }
        return {key: change[numbers](x) for key, x in normal.items()}

    pairs = [(drawn(2 * n), drawn(2 * n + 1)) for n in range(8)]
    assert all(shared_entries(x, y) == () for x, y in pairs)
    first, other = pairs[0]
    assert len(shared_entries(first, first)) == (0 if numbers == "constants" else 6)
    assert shared_entries(first, {k: first[k] if k.endswith("a") else x for k, x in other.items()}) == ()


def test_one_draw_that_sees_nothing_is_not_enough(subject: Subject, tmp_path: Path) -> None:
    """Strangers are strange to all draws: a score that no stranger has leaves it open, whatever another one says."""
    other = similarity(subject.print, Subject(subject.config["model_type"], tmp_path / "b", seed=5).print)
    assert other.verdict == "independent"
    seen = replace(other, score=0.2, witnesses={**other.witnesses, "tokens": 0.1, "all rows": 0.2})
    assert seen.verdict == "cannot tell whether they have one base"
    assert seen.kin is None


# ------------------------------------------------------------------- layers and numbers


def test_layers_in_another_order(subject: Subject) -> None:
    """Two layers change places."""
    found = subject.compared(with_layers_exchanged(subject.weights))
    assert found.verdict == "derived from one base"
    assert "in another order (0, 1)" in words(found)
    assert not found.same


def test_a_layer_that_was_put_in(tmp_path: Path) -> None:
    """A copy of a layer that writes nothing is the same function in more layers: nothing tells that the other was not
    made by taking it out."""
    a = save_toy("llama", tmp_path / "a", dtype=torch.float32)
    weights, config = tensors(a), config_of(a)
    depth = config["num_hidden_layers"]
    more = {
        n.replace(f".{depth - 1}.", f".{depth}."): t.clone().zero_() if "o_proj" in n or "down_proj" in n else t
        for n, t in weights.items()
        if f"layers.{depth - 1}." in n
    }
    deeper = fingerprint(recognise(in_memory({**weights, **more}, {**config, "num_hidden_layers": depth + 1})))
    mine = fingerprint(recognise(a))
    for found in (similarity(mine, deeper), similarity(deeper, mine)):
        assert found.verdict == "derived from one base"
        assert "that the deeper model has and the other lacks" in words(found)
        assert found.source is None


@pytest.mark.parametrize("how", ["neurons", "heads"])
def test_parts_that_do_nothing_are_no_tampering(how: str, tmp_path: Path) -> None:
    """What `widen` makes has all the relations of its model, and spectra of more values: whether it is one function
    is left open, and nobody is accused."""
    a = save_toy("llama-mha", tmp_path / "a", dtype=torch.float32)
    config = config_of(a)
    wide = {"neurons": {"intermediate_size": 8}, "heads": {"num_attention_heads": 2, "num_key_value_heads": 2}}[how]
    like = {**config, **{key: config[key] + more for key, more in wide.items()}}
    (tmp_path / "like").mkdir()
    (tmp_path / "like" / "config.json").write_text(json.dumps(like))
    isomerge.widen(a, like=tmp_path / "like", out=tmp_path / "wide")
    mine, theirs = (fingerprint(recognise(tmp_path / name)) for name in ("a", "wide"))
    for found in (similarity(mine, theirs), similarity(theirs, mine)):
        assert found.equal
        assert found.conflict == ""
        assert found.verdict == "cannot tell: equal relations, other sizes"
        assert "compare what both give" in found.doubt
        assert any("size" in said for said in found.said)


@pytest.mark.parametrize(
    ("name", "moved"),
    [
        ("llama", {"o_proj.weight": ("kv", "g")}),
        ("llama", {"gate_proj.weight": ("ff",)}),
        ("gpt2", {"attn.c_proj.weight": ("h",), "attn.c_attn.weight": ("h",), "attn.c_attn.bias": ("h",)}),
    ],
)
def test_heads_and_neurons_are_pairs(name: str, moved: dict[str, tuple[str, ...]], tmp_path: Path) -> None:
    """Heads (neurons) in another order in one of two products alone: all sums over heads are equal, and it is
    another function."""
    a = save_toy(name, tmp_path / "a", dtype=torch.float32)
    model, rng = recognise(a), torch.Generator().manual_seed(2)
    changed = {n: t.float() for n, t in tensors(a).items()}
    names = [n for spaces in moved.values() for n in spaces]
    blocks = [b for b in model.blocks if b.scope and any(b.key.endswith(end) for end in moved)]
    element = random_alignment(model.spec, blocks, rng, [n for n in names if n != "kv"])
    for block in blocks:
        before = model.assemble(block, torch.float64)
        tensor = {block: before.clone()}
        element.act(tensor)
        if block.key.endswith(("c_attn.weight", "c_attn.bias")):  # values alone; queries and keys stay
            kept = 2 * before.shape[-1] // 3
            tensor[block][..., :kept] = before[..., :kept]
        changed |= {model.names[c]: part.float() for c, part in block.split(tensor[block])}
    assert any(not torch.equal(t, tensors(a)[n].float()) for n, t in changed.items())
    first, other = fingerprint(model), fingerprint(recognise(in_memory(changed, config_of(a))))
    sums = {(r.block, r.kind): r.data for r in other.relations if r.draw == "all rows" and r.kind != "joint"}
    assert all(
        torch.allclose(r.data, sums[r.block, r.kind], rtol=1e-3, atol=1e-4)
        for r in first.relations
        if (r.block, r.kind) in sums and r.draw == "all rows"
    )
    found = similarity(first, other)
    assert found.verdict == "derived from one base"
    assert not found.hashes_equal


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        ("llama-tied", "model.embed_tokens.weight"),
        ("t5-relu", "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"),
    ],
)
def test_signs_are_told(name: str, tensor: str, tmp_path: Path) -> None:
    """Products see a stream twice: a table that is negated, in a model without biases, has the same ones."""
    a = save_toy(name, tmp_path / "a", dtype=torch.float32)
    weights = tensors(a)
    changed = in_memory({**weights, tensor: -weights[tensor]}, config_of(a))
    found = similarity(fingerprint(recognise(a)), fingerprint(recognise(changed)))
    assert not found.same
    assert not found.hashes_equal


def test_what_was_done_and_which_way(subject: Subject) -> None:
    """Pruned, quantised and rounded numbers tell which model was there first, in both orders."""

    def matrices(change: Callable[[torch.Tensor], torch.Tensor]) -> Weights:
        return {n: change(t) if t.ndim > 1 and t.is_floating_point() else t for n, t in subject.weights.items()}

    def levels(t: torch.Tensor) -> torch.Tensor:
        step = t.abs().amax(-1, keepdim=True).clamp_min(1e-9) / 7
        return (t / step).round() * step

    done = {
        "pruned": matrices(lambda t: torch.where(t.abs() < t.abs().flatten().median(), 0.0, t)),
        "quantised to 4 bits": matrices(levels),
        "rounded to bfloat16": matrices(lambda t: t.bfloat16().float()),
    }
    for what, weights in done.items():
        other = fingerprint(subject.model(weights))
        for one, two, source in ((subject.print, other, 0), (other, subject.print, 1)):
            found = similarity(one, two)
            assert found.verdict == "derived from one base"
            assert what in words(found)
            assert found.source == source, what


def test_a_body_is_no_fine_tune(tmp_path: Path) -> None:
    """Of a language model and its own body nothing says how far relations differ: these are of other forms."""
    import transformers as tf

    torch.manual_seed(0)
    model = tf.GPT2LMHeadModel(tf.GPT2Config(n_embd=32, n_head=2, n_layer=2, vocab_size=200, n_positions=16))
    for weight in model.parameters():
        if weight.ndim == 1:
            weight.data += 0.05 * torch.randn_like(weight)
    model.save_pretrained(tmp_path / "model")
    model.transformer.save_pretrained(tmp_path / "body")
    mine, theirs = (fingerprint(recognise(tmp_path / name)) for name in ("model", "body"))
    for found in (similarity(mine, theirs), similarity(theirs, mine)):
        assert found.verdict == "derived from one base"
        assert "relations between weights" not in words(found)
        assert "one of them returns a stream as it is" in words(found)


def test_neurons_that_were_taken_away(subject: Subject) -> None:
    """Fewer neurons are told as a size and as relations that differ, and no row of the vocabulary is accused."""
    model = subject.model()
    ff, kept = model.spec.sizes["ff"], model.spec.sizes["ff"] - 8
    weights = {
        n: t[tuple(slice(kept if size == ff else None) for size in t.shape)].contiguous() if ".mlp." in n else t
        for n, t in subject.weights.items()
    }
    fewer: dict[str, Any] = {"n_inner" if "n_inner" in subject.config else "intermediate_size": kept}
    found = subject.compared(weights, **fewer)
    assert found.verdict == "derived from one base"
    assert f"size ff is {ff} and {kept}" in words(found)
    assert "rows changed" not in words(found)
    assert "relations between weights differ" in words(found)


def test_the_order_of_two_models_does_not_matter(subject: Subject, tmp_path: Path) -> None:
    """Scores and verdicts are the same numbers in both orders: of layers in another order, and of strangers."""
    stranger = Subject(subject.config["model_type"], tmp_path / "b", seed=5).print
    for other in (fingerprint(subject.model(with_layers_exchanged(subject.weights))), stranger):
        one, two = similarity(subject.print, other), similarity(other, subject.print)
        assert one.score == two.score
        assert one.witnesses == two.witnesses
        assert one.verdict == two.verdict


def test_noise_has_no_direction(subject: Subject) -> None:
    """Weights that moved say that they did, and not which were there first."""
    rng = torch.Generator().manual_seed(1)
    found = subject.compared(
        {
            n: t + 0.02 * t.std() * torch.randn(t.shape, generator=rng) if t.ndim > 1 else t
            for n, t in subject.weights.items()
        }
    )
    assert found.verdict == "derived from one base"
    assert "relations between weights differ, half of" in words(found)
    assert found.source is None


# ------------------------------------------------------------------- the config


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("gpt2", "layer_norm_epsilon", 1e-3),
        ("gpt2", "activation_function", "relu6"),
        ("gpt2", "n_head", 2),
        ("llama", "rms_norm_eps", 1e-3),
        ("llama", "rope_theta", 500.0),
        ("mistral", "sliding_window", 3),
        ("bert", "layer_norm_eps", 1e-3),
    ],
)
def test_a_config_that_changes_the_function_changes_the_hash(
    name: str, key: str, value: Any, tmp_path: Path
) -> None:
    """Equal weights, another function: derived, with the key; `verify` refuses to compare."""
    a = save_toy(name, tmp_path / "a", dtype=torch.float32)
    weights, config = tensors(a), config_of(a)
    if key == "rope_theta" and "rope_parameters" in config:
        config["rope_parameters"] = {**config["rope_parameters"], key: value}
    assert config.get(key) != value
    first = fingerprint(recognise(a))
    changed = fingerprint(recognise(in_memory(weights, config if "rope" in key else {**config, key: value})))
    found = similarity(first, changed)
    assert first.hash != changed.hash
    assert found.verdict == "derived from one base"
    assert any(key in said or "rope" in said or "size" in said for said in found.said)


def test_what_changes_no_output_changes_no_hash(tmp_path: Path) -> None:
    """Names, dates and labels; numbers in another form."""
    a = save_toy("llama", tmp_path / "a", dtype=torch.float32)
    weights, config = tensors(a), config_of(a)
    other = {**config, "_name_or_path": "somewhere", "transformers_version": "4.0.0", "use_cache": False}
    found = fingerprint(recognise(in_memory(weights, other)))
    assert found.hash == fingerprint(recognise(a)).hash
    assert similarity(found, fingerprint(recognise(a))).verdict == "same function"


# ------------------------------------------------------------------- agreement with verify


@given(seed=st.integers(0, 10_000), name=st.sampled_from(["gpt2", "llama", "bert"]))
@settings(max_examples=3, deadline=None, database=None, derandomize=True)
def test_any_disguise_has_the_hash_and_a_tiny_change_has_not(
    seed: int, name: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A random element of all spaces; then one tensor of a layer two hundredths larger in half of its rows.
    `verify` says the same."""
    folder = tmp_path_factory.mktemp("twins")
    a = save_toy(name, folder / "a", dtype=torch.float32)
    twin = turn(name, a, folder / "twin", seed)
    first, second = (fingerprint(recognise(p)) for p in (a, twin))
    assert first.hash == second.hash
    assert similarity(first, second).verdict == "same function"
    changed, rng = dict(tensors(twin)), torch.Generator().manual_seed(seed)
    inside = [n for n, t in changed.items() if ".1." in n and t.ndim > 1]
    hit = inside[int(torch.randint(len(inside), (), generator=rng))]
    rows = torch.randint(0, 2, (len(changed[hit]), 1), generator=rng)
    changed[hit] = changed[hit] * (1 + 0.02 * rows)
    assert bool(rows.any())
    other = in_memory(changed, config_of(twin))
    found = similarity(first, fingerprint(recognise(other)))
    assert not found.same
    assert not found.hashes_equal, hit
    assert isomerge.verify(a, twin)["same"]
    assert isomerge.verify(twin, other)["same"] is False


# ------------------------------------------------------------------- draws and salts


def test_draws_are_the_same_everywhere_and_for_larger_tables() -> None:
    """Numbers that are written down: another machine, or another release of torch, has to find them."""
    assert codes("wte.weight", 3).tolist() == codes("wte.weight", 5)[:3].tolist()
    assert codes("a name", 2, "a salt").tolist() == [REFERENCE(0), REFERENCE(1)]
    assert len(set(codes("wte.weight", 10_000).tolist())) == 10_000
    assert codes("wte.weight", 3, "a salt").tolist() != codes("wte.weight", 3).tolist()
    first, second = chosen("wte.weight", 1000), chosen("wte.weight", 1000, 1)
    assert len(first) == len(second) == 32
    assert not set(first) & set(second)
    assert salted("") == ""
    assert salted("a salt") != salted("another")


def REFERENCE(number: int) -> int:  # noqa: N802
    """splitmix64 in plain Python."""
    import hashlib

    key = hashlib.blake2b(b"a salt").digest()[:32]
    seed = int.from_bytes(hashlib.blake2b(b"a name", key=key, digest_size=8).digest(), "big")
    mask = (1 << 64) - 1
    x = (seed + (number + 1) * 0x9E3779B97F4A7C15) & mask
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & mask
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & mask
    x ^= x >> 31
    return x - (1 << 64) if x >> 63 else x


def test_salts_must_match(subject: Subject, tmp_path: Path) -> None:
    """With one salt twins are twins; with two nothing compares, and files say which they need."""
    one, two = (fingerprint(subject.model(), salt=salt) for salt in ("one", "one"))
    assert one.hash == two.hash != subject.print.hash
    assert similarity(one, two).verdict == "same function"
    with pytest.raises(isomerge.IsomergeError, match="different salts"):
        similarity(one, subject.print)
    one.save(tmp_path / "one.json")
    assert "one" not in json.loads((tmp_path / "one.json").read_text())["salt"]
    assert read_fingerprint(tmp_path / "one.json", salt="one").hash == one.hash
    with pytest.raises(isomerge.IsomergeError, match="with another salt"):
        read_fingerprint(tmp_path / "one.json", salt="two")


# ------------------------------------------------------------------- audits


def test_an_audit_goes_on_past_bad_files(tmp_path: Path) -> None:
    """What cannot be read is listed, the rest is compared, and the exit code is 2."""
    a = save_toy("gpt2", tmp_path / "a", dtype=torch.float32)
    b = save_toy("gpt2", tmp_path / "b", seed=5, dtype=torch.float32)
    damaged = save_toy("gpt2", tmp_path / "damaged", dtype=torch.float32)
    next(damaged.glob("*.safetensors")).write_bytes(b"no header")
    (tmp_path / "old.json").write_text(json.dumps({"format": "isomerge-fingerprint-1"}))
    report, call = (
        tmp_path / "r.json",
        ["fingerprint", *map(str, (a, tmp_path / "old.json", damaged, tmp_path / "nowhere", b))],
    )
    result = CliRunner().invoke(app, [*call, "--json", str(report)])
    assert isinstance(result.exception, isomerge.IsomergeError)
    assert str(result.exception).startswith("3 of 5 models could not be compared: ")
    told = json.loads(report.read_text())
    assert [found["verdict"] for found in told["compared"]] == ["independent"]
    assert [Path(left["model"]).name for left in told["unread"]] == ["old.json", "damaged", "nowhere"]
    assert len(told["hashes"]) == 2
    assert all(left["error"] in result.output.replace("\n", " ") for left in told["unread"])


def test_an_audit_says_where_somebody_must_look(subject: Subject, tmp_path: Path) -> None:
    """Witnesses that disagree end with 3."""
    block, name = subject.inputs()[0]
    changed = dict(subject.weights)
    t = changed[name].clone()
    t[chosen(block.key, len(t))] = t.std() * torch.randn(
        (32, t.shape[1]), generator=torch.Generator().manual_seed(1)
    )
    changed[name] = t
    fingerprint(subject.model(changed)).save(tmp_path / "b.json")
    subject.print.save(tmp_path / "a.json")
    result = CliRunner().invoke(
        app, ["fingerprint", str(tmp_path / "a.json"), str(tmp_path / "b.json"), "--json", str(tmp_path / "r.json")]
    )
    assert result.exit_code == 3, result.output
    told = json.loads((tmp_path / "r.json").read_text())
    assert told["compared"][0]["verdict"] == TAMPERED
    assert "rows were exchanged" in told["notes"][0]


def test_nothing_is_told_of_no_tensors(tmp_path: Path) -> None:
    """A checkpoint without tensors has no fingerprint: one sentence."""
    from safetensors.torch import save_file

    a = save_toy("gpt2", tmp_path / "a", dtype=torch.float32)
    save_file({}, next(a.glob("*.safetensors")))
    with pytest.raises(isomerge.IsomergeError, match="no tensor"):
        isomerge.fingerprint(a)


def test_gains_that_are_huge(tmp_path: Path) -> None:
    """A finite number of bfloat16 whose square is not: computed in float64, with its own twin as proof, and no
    traceback."""
    a = save_toy("llama", tmp_path / "a", dtype=torch.float32)
    weights = {n: t.bfloat16() for n, t in tensors(a).items()}
    name = next(n for n in weights if n.endswith("layers.0.input_layernorm.weight"))
    weights[name] = weights[name].clone()
    weights[name][0] = 1e30
    made = fingerprint(recognise(in_memory(weights, config_of(a))))
    made.save(tmp_path / "made.json")
    assert similarity(made, read_fingerprint(tmp_path / "made.json")).same
