"""Table 1, text, from end to end on tiny models: what is trained, merged, scored, stored, and shown."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch
from transformers import BertConfig, BertModel

from benchmarks.paper.results import Results
from benchmarks.paper.text import data, finetune, merges, page, scoring, table1
from benchmarks.paper.text.data import IGNORED, TASKS, Sentence
from benchmarks.paper.text.groups import groups
from benchmarks.paper.text.settings import Preset

TINY = Preset(
    "tiny", train=12, test=6, scored=6, epochs=1, lr=1e-2, batch=4, length=8, seeds=(0,), statistics=8, fisher=4
)
WORDS = "abcdefgh"


def tiny_tokenizer():
    """Words of letters; every letter behind the first is a piece of its own."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS, *(f"##{letter}" for letter in WORDS)]
    vocab = {name: i for i, name in enumerate(names)}
    found = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    found.pre_tokenizer = pre_tokenizers.Whitespace()
    found.post_processor = processors.BertProcessing(("[SEP]", vocab["[SEP]"]), ("[CLS]", vocab["[CLS]"]))
    return PreTrainedTokenizerFast(tokenizer_object=found, pad_token="[PAD]")


def toy_sentences(task: data.Task, domain: str) -> tuple[list[Sentence], list[Sentence]]:
    """Sentences of one to three words, drawn by the domain."""
    rng = torch.Generator().manual_seed(sum(map(ord, domain)))

    def draw(count: int) -> list[Sentence]:
        found = []
        for i in range(count):
            n = int(torch.randint(1, 4, (1,), generator=rng))
            letters = torch.randint(len(WORDS), (n, 2), generator=rng).tolist()
            words = [WORDS[a] + WORDS[b] for a, b in letters]
            if task.tokens:
                found.append(Sentence(tuple(words), tuple(a % 3 for a, _ in letters), str(i)))
            else:
                found.append(Sentence((" ".join(words),), (letters[0][0] % 3,), str(i)))
        return found

    return draw(12), draw(6)


@pytest.fixture
def toys(tmp_path, monkeypatch):
    """A base, data and a place for models, all tiny."""
    config = BertConfig(
        vocab_size=20, hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=12,
        max_position_embeddings=16,
    )  # fmt: skip
    torch.manual_seed(0)
    BertModel(config).save_pretrained(tmp_path / "base")
    monkeypatch.setattr(finetune, "BASE", tmp_path / "base")
    monkeypatch.setattr(finetune, "MODELS", tmp_path / "models")
    tokenizer = tiny_tokenizer()
    monkeypatch.setattr(data, "tokenizer", lambda: tokenizer)
    monkeypatch.setattr(
        data, "load", lambda name, test: {d: toy_sentences(TASKS[name], d) for d in (*TASKS[name].domains, *TASKS[name].held_out)}
    )  # fmt: skip
    merges.own_examples.cache_clear()
    yield tmp_path
    merges.own_examples.cache_clear()


def test_a_label_is_on_the_first_piece_of_its_word(toys):
    (found,) = data.encode(TASKS["brown"], [Sentence(("ab", "c", "def"), (4, 5, 6), "")], 7)
    assert found.labels == (IGNORED, 4, IGNORED, 5, 6, IGNORED, IGNORED)
    assert len(found.ids) == 7, "cut, with its end"
    assert data.encode(TASKS["vader"], [Sentence(("ab c",), (2,), "")], 7)[0].labels == (2,)


@pytest.mark.parametrize("name", ["vader", "brown"])
def test_scores_are_of_the_models_own_outputs(toys, name):
    task = TASKS[name]
    run = finetune.Run(TINY, task, task.domains[0], 0)
    finetune.train(run)
    tests = scoring.Tests(task, test=6, scored=5, length=8, device="cpu")
    other = finetune.Run(TINY, task, task.domains[1], 0)
    finetune.train(other)
    found = tests.probabilities(run.folder, task.domains[:1], {"other": other.folder})[task.domains[0]]
    model = scoring.load_model(task, run.folder, "cpu")
    tensors = data.padded(task, sorted(tests.sentences[task.domains[0]], key=lambda s: len(s.ids)))
    labels = tensors.pop("labels")
    assert len(labels) == 5
    expected = model(**tensors).logits.softmax(-1)[labels != IGNORED]
    assert torch.equal(found["merged"][1], labels[labels != IGNORED])
    torch.testing.assert_close(found["merged"][0], expected, atol=1e-6, rtol=1e-5)
    assert not torch.allclose(found["other"][0], expected, atol=1e-4), "another classifier on the same body"


def test_training_repeats_and_follows_its_settings(toys):
    task = TASKS["vader"]
    run = finetune.Run(TINY, task, "movie", 0)
    assert not run.done
    finetune.train(run)
    assert run.done
    assert not dataclasses.replace(run, preset=dataclasses.replace(TINY, lr=1e-3)).done, "of another learning rate"
    assert dataclasses.replace(run, preset=dataclasses.replace(TINY, fisher=3)).done
    assert {path.name for path in run.folder.parent.iterdir()} == {"movie-seed-0"}
    first = scoring.load_model(task, run.folder, "cpu").state_dict()
    again, _ = finetune.tune(run)
    assert {key for key, tensor in again.state_dict().items() if not torch.equal(tensor, first[key])} == set()
    heads = [
        finetune.build(finetune.Run(TINY, task, d, s)).get_parameter("classifier.weight").detach()
        for d, s in (("movie", 0), ("nyt", 0), ("nyt", 1))
    ]
    assert torch.equal(heads[0], heads[1]), "one initial head per seed"
    assert not torch.equal(heads[0], heads[2])


def test_the_table_goes_on_where_it_was(toys, monkeypatch):
    task = TASKS["brown"]
    for domain in task.domains:
        finetune.train(finetune.Run(TINY, task, domain, 0))
    results, path = Results(toys / "table1.json", {}), toys / "table1.json"
    tests = table1.tests_of(task, TINY)
    pair, everyone = next(groups(task)), list(groups(task))[-1]
    columns = []
    monkeypatch.setattr(
        table1, "match", lambda runs, how, work: columns.append(how) or merges.match(runs, how, work)
    )
    table1.measure_ends(results, task, TINY, 0, tests)
    monkeypatch.setattr(table1, "COLUMNS", ("none", "ours"))
    table1.measure_group(results, pair, TINY, 0, tests)
    monkeypatch.setattr(table1, "METHODS", ("simple",))
    monkeypatch.setattr(table1, "COLUMNS", ("paper",))
    table1.measure_group(results, everyone, TINY, 0, tests)
    assert columns == ["none", "ours", "paper"]

    key = table1.cell("brown", 0, pair.name, "simple", "ours")
    found = results.get(key)
    assert found["scores"].keys() == found["own_head"].keys() == set(pair.inside)
    before, after = found["distances"][0]
    assert 0 < after < before
    regmean = results.get(table1.cell("brown", 0, pair.name, "regmean", "ours"))
    assert regmean["distances"] == found["distances"]
    assert all(regmean["seconds"].values())
    three = results.get(table1.cell("brown", 0, everyone.name, "simple", "paper"))
    assert three["scores"].keys() == set(everyone.outside)
    assert three["own_head"] == {}
    assert len(three["distances"]) == 2

    stored = json.loads(path.read_text())
    del stored["cells"][key]
    path.write_text(json.dumps(stored))
    columns.clear()
    monkeypatch.setattr(table1, "COLUMNS", ("none", "ours"))
    again = Results(path, {})
    table1.measure_ends(again, task, TINY, 0, None)  # type: ignore[arg-type]  # nothing is tested
    table1.measure_group(again, pair, TINY, 0, tests)
    assert columns == ["ours"], "only what lacks is measured"
    assert again.get(key)["scores"] == found["scores"], "and it is the same"


def synthetic(tmp_path) -> Results:
    """Cells of seeds 0 and 1 for Brown: matching adds one point to the seed's hundredfold, and seed 1 lacks a
    cell."""
    results = Results(tmp_path / "table1.json", {})
    task = TASKS["brown"]
    for seed in (0, 1):
        for domain in task.domains:
            f = {"macro": 10.0, "micro": 20.0 + (domain == "news")}
            results.put(
                table1.cell("brown", seed, "end", domain), dict.fromkeys((*task.domains, *task.held_out), f)
            )
        for group in groups(task):
            tested = (*group.inside, *group.outside)
            results.put(
                table1.cell("brown", seed, "ensemble", group.name),
                {d: {"macro": 1.0, "micro": 2.0} for d in tested},
            )
            for method in merges.METHODS:
                for column in merges.COLUMNS:
                    f = {"macro": 30.0, "micro": 40.0 + seed + (column == "paper") * (1 + seed / 100)}
                    value = {
                        "scores": dict.fromkeys(tested, f), "own_head": dict.fromkeys(group.inside, f),
                        "distances": [] if column == "none" else [[4.0, 3.0]],
                        "seconds": {"matching": 1, "statistics": 2, "merging": 3},
                    }  # fmt: skip
                    if (seed, group.name, method, column) != (1, "news+learned+adventure", "fisher", "ours"):
                        results.put(table1.cell("brown", seed, group.name, method, column), value)
    return results


def test_the_page_says_what_the_cells_say(tmp_path):
    results = synthetic(tmp_path)
    preset = dataclasses.replace(TINY, seeds=(0, 1))
    vader, _, inside, outside = page.sections()
    assert page.seeds_done(results, inside, preset) == [0, 1]
    assert page.seeds_done(results, outside, preset) == [0], "a seed counts when it is complete"
    text = page.page(results, preset)
    assert page.section_lines(results, vader, preset)[-2] == "Not measured yet."
    assert "| Simple | 30.00 ± 0.00 / 40.50 ± 0.71 | 30.00 ± 0.00 / 41.50 ± 0.71 |" in text
    assert "the paper's matching: Simple +1.00 ± 0.01" in page.outcome(results, inside, [0, 1])
    assert "(distance -25.00 %)" in page.outcome(results, inside, [0, 1])
    assert "better: Simple with the paper's matching" in page.verdict(results, inside, [0, 1])
    assert "ours" not in page.verdict(results, inside, [0, 1])
    assert "| ensemble of the members | 1.00 ± 0.00 / 2.00 ± 0.00 | | | |" in text
    assert page.verdict(results, outside, [0]) == "One seed says nothing of chance."
    assert page.ends(results, inside, 0, "micro") == pytest.approx((20 + 2 / 6, 20 + 2 / 6))
    assert page.ends(results, outside, 0, "micro") == pytest.approx((21, 20 + 1 / 3)), "the best member, and all"
