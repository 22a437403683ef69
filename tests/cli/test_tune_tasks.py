"""`isomerge tune --task`: the score that the real lm-evaluation-harness gives, raised by trials in memory."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock, patch

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

import isomerge as library
from harness_at_hand import HARNESS, harness_at_hand
from isomerge.checkpoint.opening import open_checkpoint
from isomerge.errors import IsomergeError
from isomerge.evidence.report.facts import Search
from isomerge.observe.live.modules import load_module
from isomerge.tuning.harness import load_tasks, requests_of, run_tasks
from isomerge.tuning.picture import _over_trials
from isomerge.tuning.task_documents import split_tasks
from isomerge.tuning.trial_model import TrialModel
from isomerge.tuning.wanted_tasks import WantedTask, wanted_tasks

WORDS = ["[UNK]", "[PAD]", "</s>", *(f"w{k}" for k in range(40))]
AT, COUNT = 0.5, 60
TASK = """task: {name}
dataset_path: json
dataset_kwargs: {{data_files: {{test: {docs}, train: {docs}}}, cache_dir: {cache}}}
test_split: test
doc_to_text: "{{{{q}}}}"
"""
CHOICE = """output_type: multiple_choice
doc_to_choice: "{{c}}"
doc_to_target: a
metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]
"""
KINDS = {
    "chosen": CHOICE,
    "shown": CHOICE + "fewshot_split: train\nnum_fewshot: 2\n",
    "written": """output_type: generate_until
doc_to_target: "{{g}}"
generation_kwargs: {until: ["</s>"], max_gen_toks: 2, do_sample: false}
metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]
""",
    "surprise": """output_type: loglikelihood_rolling
doc_to_target: "{{t}}"
metric_list: [{metric: bits_per_byte, aggregation: bits_per_byte, higher_is_better: false}]
""",
}
RECIPE = "merge_method: task_arithmetic\nbase_model: base\nmodels: [{model: tuned}]\nparameters: {weight: %s}\n"


@pytest.fixture
def harness() -> Iterator[None]:
    """The real one."""
    with harness_at_hand():
        yield


def config(**more: Any) -> LlamaConfig:
    kind: Any = LlamaConfig
    return kind(
        hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2, vocab_size=len(WORDS),
        max_position_embeddings=64, bos_token_id=2, eos_token_id=2, pad_token_id=1, **more,
    )  # fmt: skip


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base, a fine-tune, and tasks whose right answers the model half way between them gives."""
    folder, rng = tmp_path_factory.mktemp("tasks"), torch.Generator().manual_seed(0)
    made = Tokenizer(models.WordLevel({word: k for k, word in enumerate(WORDS)}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()  # type: ignore[assignment]
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=made, unk_token="[UNK]", pad_token="[PAD]", eos_token="</s>"
    )
    torch.manual_seed(0)
    target, base, tuned = (LlamaForCausalLM(config()).eval() for _ in range(3))
    with torch.no_grad():
        for x, low, high in zip(target.parameters(), base.parameters(), tuned.parameters(), strict=True):
            x.add_(0.5 * torch.randn(x.shape, generator=rng))
            change = 0.3 * torch.randn(x.shape, generator=rng)
            low.copy_(x - AT * change)
            high.copy_(x + (1 - AT) * change)
    for name, model in (("base", base), ("tuned", tuned)):
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    docs = []
    for _ in range(COUNT):
        asked = torch.randint(3, len(WORDS), (5,), generator=rng)
        offered = torch.randperm(len(WORDS) - 3, generator=rng)[:4] + 3
        likely = target(asked[None]).logits[0, -1, offered].argmax()
        words = [WORDS[k] for k in offered]
        text = " ".join(WORDS[k] for k in asked)
        written = target.generate(asked[None], max_new_tokens=2, do_sample=False)[0, 5:]
        docs.append(
            {
                "q": text,
                "c": words,
                "a": int(likely),
                "t": f"{text} {words[likely]}",
                "g": tokenizer.decode(written),
            }
        )
    (folder / "own").mkdir()
    (folder / "own" / "docs.jsonl").write_text("\n".join(map(json.dumps, docs)))
    for name, kind in KINDS.items():
        text = TASK.format(name=name, docs=folder / "own" / "docs.jsonl", cache=folder / "cache")
        (folder / "own" / f"{name}.yaml").write_text(text + kind)
    (folder / "own" / "both.yaml").write_text(
        "group: both\ntask: [chosen, shown]\naggregate_metric_list: [{metric: acc, weight_by_size: true}]\n"
    )
    return folder


@pytest.fixture
def here(planted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, harness: None) -> Path:
    """A folder with models and tasks, to write in."""
    for name in ("base", "tuned", "own"):
        (tmp_path / name).symlink_to(planted / name)
    monkeypatch.chdir(tmp_path)
    Path("r.yml").write_text(RECIPE % "{search: [0, 1], start: 1}")
    return tmp_path


def by_the_harness(folder: str, task: str, numbers: list[int]) -> dict[str, Any]:
    """What its own door says of a checkpoint on disk."""
    import lm_eval
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager

    model: Any = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with patch("lm_eval.evaluator.add_env_info"):  # which looks at the machine for a second
        found: Any = lm_eval.simple_evaluate(
        model=HFLM(pretrained=model, tokenizer=tokenizer_of(folder), batch_size=32), tasks=[task],
        samples={task: numbers}, bootstrap_iters=0, task_manager=TaskManager(include_path="own", include_defaults=False),
    )  # fmt: skip
    return found["results"][task]


def held_out(count: int = COUNT, seed: int = 0) -> list[int]:
    """The documents that judge: the second half of what the seed has shuffled."""
    return sorted(torch.randperm(count, generator=torch.Generator().manual_seed(seed))[round(count / 2) :].tolist())


def test_the_score_is_the_harness_own(here: Path, isomerge: Callable) -> None:
    """A merge is found that answers more documents right, also of those that were held out, and what is told of it is what
    the harness says of the written checkpoint."""
    words = ("--task", "chosen", "--task-path", "own", "--trials", 8, "--json", "r.json")
    said = isomerge("tune", "r.yml", *words, "-o", "out")
    assert (said.code, said.err) == (0, ""), said.err
    found = json.loads(Path("r.json").read_text())["tune"]
    best, start = found["best"], found["start"]
    assert best["search"] > start["search"]
    assert best["judge"]["score"] > start["judge"]["score"] + 0.1
    assert best["values"]["weight"] == pytest.approx(AT, abs=0.2)
    assert best["judge"] == {"score": by_the_harness("out", "chosen", held_out())["acc,none"], "tasks": {"chosen:acc,none": best["judge"]["score"]}}  # fmt: skip
    assert found["models"][0]["judge"]["score"] == by_the_harness("base", "chosen", held_out())["acc,none"]
    assert best["search"] == max(row["score"] for row in found["trials"])
    assert not any("loss" in row for row in found["trials"])
    assert found["tasks"] == [{"name": "chosen", "metric": "acc,none", "weight": 1.0}]
    assert "On the held-out documents the values found give a score of" in said.out
    assert "30 documents searched on" in said.out
    assert Path("out/tune.png").read_bytes().startswith(b"\x89PNG")
    assert "documents of the search; more is better" in library.report("out").html
    library.merge("out/isomerge_recipe.yml", out="again")
    assert Path("again/model.safetensors").read_bytes() == Path("out/model.safetensors").read_bytes()


def test_several_tasks_are_a_weighted_sum(here: Path) -> None:
    """Of metrics of all kinds of requests, and of a group; a negative weight lowers one."""
    tasks: list[Any] = ["written:exact_match@0.5", {"name": "surprise", "metric": "bits_per_byte,none", "weight": -2}, "both"]  # fmt: skip
    Path("r.yml").write_text(RECIPE % f"{{search: [0, 1], start: {AT}}}")
    found = library.tune("r.yml", out="out", tasks=tasks, task_path="own", trials=1, limit=20, batch_size=4)["tune"]
    metrics = found["best"]["judge"]["tasks"]
    assert list(metrics) == ["written:exact_match,none", "surprise:bits_per_byte,none", "both:acc,none"]
    wanted = 0.5 * metrics["written:exact_match,none"] - 2 * metrics["surprise:bits_per_byte,none"] + metrics["both:acc,none"]  # fmt: skip
    assert found["best"]["judge"]["score"] == pytest.approx(wanted)
    judge = held_out(20)
    assert metrics["surprise:bits_per_byte,none"] == pytest.approx(
        by_the_harness("out", "surprise", judge)["bits_per_byte,none"]
    )
    assert metrics["written:exact_match,none"] == by_the_harness("out", "written", judge)["exact_match,none"]
    assert metrics["written:exact_match,none"] > 0
    shown = by_the_harness("out", "shown", judge)["acc,none"]
    chosen = by_the_harness("out", "chosen", judge)["acc,none"]
    assert metrics["both:acc,none"] == pytest.approx((shown + chosen) / 2)
    assert found["data"]["search"]["examples"] == found["data"]["judge"]["examples"] == 4 * 10


def test_a_killed_search_goes_on(here: Path, monkeypatch: pytest.MonkeyPatch, refuses: Callable) -> None:
    """To the same files; another metric, weight or share in its place is refused."""

    class Killed(BaseException):
        pass

    how: dict[str, Any] = {"tasks": ["chosen"], "task_path": "own", "trials": 4, "limit": 20}
    library.tune("r.yml", out="whole", **how)
    measure, left = TrialModel.measure, [3]

    def dying(self: TrialModel, *a: Any) -> Any:
        if not left[0]:
            raise Killed
        left[0] -= 1
        return measure(self, *a)

    with monkeypatch.context() as dies:
        dies.setattr(TrialModel, "measure", dying)
        with pytest.raises(Killed):
            library.tune("r.yml", out="out", **how)
    words = ("tune", "r.yml", "--task-path", "own", "--limit", 20, "-o", "out", "--task")
    for other in (("chosen@2",), ("shown",), ("chosen", "--judge-share", 0.3)):
        refuses(*words, *other, words=["unfinished search with other examples or tasks"])
    calls: list[int] = []
    monkeypatch.setattr(TrialModel, "measure", lambda self, *a: calls.append(1) or measure(self, *a))
    library.tune("r.yml", out="out", **how)
    assert len(calls) == 5 - 3 + 2
    for file in Path("whole").iterdir():
        assert file.name == "README.md" or file.read_bytes() == Path("out", file.name).read_bytes()


def test_other_documents_are_another_search(here: Path, planted: Path) -> None:
    """Their fingerprint is of what is asked, and of what is right."""
    own = here / "copied"
    own.mkdir()
    documents = (planted / "own" / "docs.jsonl").read_text().splitlines()
    changed = json.loads(documents[0])
    marks = []
    for answer in (changed["a"], changed["a"], (changed["a"] + 1) % 4):
        documents[0] = json.dumps({**changed, "a": answer})
        (own / "d.jsonl").write_text("\n".join(documents))
        (own / "chosen.yaml").write_text(TASK.format(name="chosen", docs=own / "d.jsonl", cache=planted / "cache") + CHOICE)  # fmt: skip
        how: dict[str, Any] = {"path": own, "limit": None, "share": 0.5, "seed": 0}
        marks.append([x.fingerprint for x in split_tasks([WantedTask("chosen")], open_checkpoint("base"), **how)])
    assert marks[0] == marks[1]
    assert sum(one != two for one, two in zip(marks[1], marks[2], strict=True)) == 1


def test_a_head_of_its_own_stays(here: Path) -> None:
    """The harness ties weights of the models that it is given; of a head that was untied nothing would be left."""
    torch.manual_seed(1)
    tied = LlamaForCausalLM(config(tie_word_embeddings=True)).eval()
    head: Any = tied.lm_head
    head.weight = torch.nn.Parameter(torch.randn_like(head.weight))
    before, tokenizer = head.weight.detach().clone(), tokenizer_of("base")
    loaded = load_tasks([WantedTask("surprise")], "own")
    first = run_tasks(tied, tokenizer, loaded, {"surprise": [0, 1]}, 4)["surprise"]["bits_per_byte,none"]
    assert torch.equal(head.weight, before)
    tied.tie_weights()
    assert run_tasks(tied, tokenizer, loaded, {"surprise": [0, 1]}, 4)["surprise"]["bits_per_byte,none"] != first


def tokenizer_of(folder: str) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)


def test_trials_are_asked_the_same(here: Path) -> None:
    """Few-shot examples are drawn anew by the same seed, and what others draw is not disturbed."""
    loaded = load_tasks([WantedTask("shown")], "own")
    asked = [
        [request.arguments for _, found in requests_of(loaded, {"shown": [1, 4]}) for request in found]
        for _ in range(2)
    ]
    assert asked[0] == asked[1]
    assert len(asked[0][0][0].split()) > 2 * 6  # two examples stand before the question
    random.seed(5)
    torch.manual_seed(5)
    wanted = (random.random(), float(torch.rand(())))
    random.seed(5)
    torch.manual_seed(5)
    run_tasks(load_module("base"), tokenizer_of("base"), loaded, {"shown": [1, 4]}, 4)
    assert (random.random(), float(torch.rand(()))) == wanted


def test_logits_that_are_no_numbers_are_no_answer(here: Path) -> None:
    """The likeliest of several NaN would be the first choice."""
    module = load_module("base")
    with torch.no_grad():
        next(module.parameters()).fill_(float("nan"))
    loaded = load_tasks([WantedTask("chosen")], "own")
    with pytest.raises(IsomergeError, match="logits are no numbers"):
        run_tasks(module, tokenizer_of("base"), loaded, {"chosen": [0]}, 4)


def test_a_dry_run_writes_nothing(here: Path, isomerge: Callable) -> None:
    """It has read the tasks, and says how many documents there are."""
    before = sorted(here.iterdir())
    words = ("--task", "chosen", "--task", "shown", "--task-path", "own", "--judge-share", 0.25)
    said = isomerge("tune", "r.yml", *words, "-o", "out", "--dry-run")
    assert (said.code, said.err) == (0, "")
    assert "searched on 90 documents, judged on 30." in said.out
    assert sorted(here.iterdir()) == before


REFUSED: dict[str, tuple[list[Any], list[str]]] = {
    "no such task": (["--task", "chosn"], ["--task chosn", "no such task"]),
    "no such metric": (["--task", "chosen:f1"], ["no metric f1,none", "acc,none"]),
    "the wrong way": (["--task", "surprise:bits_per_byte"], ["less of bits_per_byte,none is better", "@-1"]),
    "a weight": (["--task", "chosen@much"], ["chosen@much", "the weight is a number"]),
    "no weight": (["--task", "chosen@0"], ["the weight is a number other than 0"]),
    "twice": (["--task", "chosen", "--task", "chosen@2"], ["said twice"]),
    "a gradient": (["--task", "chosen", "--sampler", "gradient"], ["--sampler gradient", "no gradient"]),
    "entropy": (["--task", "chosen", "--objective", "entropy"], ["--objective entropy"]),
    "both": (["--task", "chosen", "--data", "d.jsonl"], ["--data and --task"]),
    "judged by examples": (["--task", "chosen", "--judge-data", "d.jsonl"], ["--judge-data"]),
    "nothing": ([], ["add --data DATA, or --task TASK"]),
    "one document": (["--task", "chosen", "--limit", 1], ["1 documents cannot be split"]),
    "no folder": (["--task", "chosen", "--task-path", "elsewhere"], ["--task-path elsewhere", "no such folder"]),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(here: Path, refuses: Callable, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one sentence, and nothing is written."""
    from lm_eval.tasks import TaskManager

    made = TaskManager.__init__
    monkeypatch.setattr(  # thousands of files, which say nothing here
        TaskManager, "__init__", lambda self, **how: made(self, **{**how, "include_defaults": False})
    )
    words, said = REFUSED[case]
    own = () if "--task-path" in words else ("--task-path", "own")
    refuses("tune", "r.yml", *words, *own, "-o", "out", words=said)


def test_tasks_that_cannot_be_read_are_refused(here: Path, planted: Path, refuses: Callable) -> None:
    """Documents that are not there, a template that does not fit them, a classifier in the place of a language model."""
    own = here / "broken"
    own.mkdir()
    told = {"docs": own / "none.jsonl", "cache": planted / "cache"}
    (own / "a.yaml").write_text(TASK.format(name="lost", **told) + CHOICE)
    told["docs"] = planted / "own" / "docs.jsonl"
    (own / "b.yaml").write_text(TASK.format(name="crooked", **told) + CHOICE.replace("{{c}}", "{{c | nothing}}"))
    words = ("tune", "r.yml", "--task-path", "broken", "-o", "out", "--task")
    refuses(*words, "lost", words=["--task lost", "cannot load it"])
    refuses(*words, "crooked", words=["--task crooked"])


def test_a_classifier_writes_nothing(here: Path, stored: Callable, refuses: Callable) -> None:
    """No task can be given to it."""
    vit = stored("vit", 0)
    Path("v.yml").write_text(f"merge_method: linear\nmodels: [{{model: {vit}}}, {{model: {vit}}}]\n")
    refuses("tune", "v.yml", "--task", "chosen", "--task-path", "own", "-o", "out", words=["writes no text"])


def test_without_the_harness(
    planted: Path,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    refuses: Callable,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What to install is said, also where the harness lacks what runs models."""
    text = (RECIPE % 1).replace(": base", f": {planted / 'base'}").replace(": tuned", f": {planted / 'tuned'}")
    (tmp_path / "r.yml").write_text(text)
    words = ("tune", tmp_path / "r.yml", "--task", "chosen", "-o", tmp_path / "out")
    assert "(" not in refuses(*words, words=["pip install 'lm-eval[hf]'"])
    plain = tmp_path_factory.mktemp("plain")
    for path in HARNESS.iterdir():
        if not path.name.startswith("accelerate"):
            (plain / path.name).symlink_to(path)
    monkeypatch.syspath_prepend(plain)
    try:
        refuses(*words, words=["pip install 'lm-eval[hf]'", "No module named 'accelerate'"])
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] == "lm_eval"]:
            del sys.modules[name]


@pytest.mark.parametrize(("objective", "best"), [("tasks", [0.2, 0.2, 0.6, 0.6]), ("loss", [0.2, 0.1, 0.1, 0.1])])
def test_the_picture_follows_the_best(objective: str, best: list[float]) -> None:
    """Which is the highest score, or the lowest loss."""
    figures, axes = (0.2, 0.1, 0.6, None, 0.3), MagicMock()
    _over_trials(axes, Search(({},) * 5, figures, objective == "tasks", "score", 9, ""))
    assert axes.step.call_args.kwargs["where"] == "post"
    places, steps = axes.step.call_args.args
    so_far = [[y for x, y in zip(places, steps, strict=True) if x <= trial][-1] for trial in (0, 1, 2, 4)]
    assert so_far == best
    assert places[-1] == 4


def test_words_of_a_task() -> None:
    """Name, metric and weight; a filter stands behind a comma, as the harness writes it."""
    texts = ["a", "a:f1", "a:exact_match,strict-match@0.5", "a:acc_norm,none@-1e-1"]
    assert wanted_tasks(texts) == (
        WantedTask("a"), WantedTask("a", "f1,none"), WantedTask("a", "exact_match,strict-match", 0.5), WantedTask("a", "acc_norm,none", -0.1),
    )  # fmt: skip
    assert wanted_tasks([{"name": "a"}]) == (WantedTask("a", "acc,none", 1.0),)
    for wrong in (
        "",
        ":acc",
        "a:",
        "@1",
        {"name": "a", "wieght": 1},
        {"metric": "acc"},
        {"name": "a", "weight": True},
    ):
        with pytest.raises(IsomergeError, match=r"--task|tasks"):
            wanted_tasks([wrong])
