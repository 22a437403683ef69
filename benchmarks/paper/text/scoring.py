"""What a model says of test sentences, and how well: macro and micro F1."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.paper.text import data

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

BATCH = 32


def f1(targets: Tensor, predicted: Tensor) -> dict[str, float]:
    """Macro and micro F1 in percent of predicted classes, both int64 [n].

    Macro is the mean over the classes that occur among the targets: a class that a domain lacks has no F1 there.
    Micro counts all predictions, and is the accuracy where every item has one class.
    """
    from sklearn.metrics import f1_score

    true, found = targets.numpy(), predicted.numpy()
    classes = sorted(set(true.tolist()))
    macro = f1_score(true, found, labels=classes, average="macro", zero_division=0)  # type: ignore[arg-type]
    return {"macro": 100 * float(macro), "micro": 100 * float(f1_score(true, found, average="micro"))}


def head_of(folder: Path) -> tuple[Tensor, Tensor]:
    """The classifier of a stored model: weight [labels, width] and bias [labels]."""
    from safetensors import safe_open

    with safe_open(str(folder / "model.safetensors"), "pt") as stored:
        return stored.get_tensor("classifier.weight").float(), stored.get_tensor("classifier.bias").float()


def load_model(task: data.Task, folder: Path, device: str) -> PreTrainedModel:
    """A stored model, in float32."""
    import torch
    from transformers import BertForSequenceClassification, BertForTokenClassification

    kind = BertForTokenClassification if task.tokens else BertForSequenceClassification
    model = kind.from_pretrained(folder, dtype=torch.float32).eval()
    torch.nn.Module.to(model, device)
    return model


def features(
    task: data.Task, model: PreTrainedModel, sentences: Sequence[data.Encoded], device: str
) -> tuple[Tensor, Tensor]:
    """What the classifier reads, float32 [n, width], and the targets, int64 [n]: of sentences, or of their
    words."""
    import torch

    order = sorted(range(len(sentences)), key=lambda i: len(sentences[i].ids))
    read, targets = [], []
    with torch.no_grad():
        for start in range(0, len(order), BATCH):
            tensors = data.padded(task, [sentences[i] for i in order[start : start + BATCH]])
            labels = tensors.pop("labels")
            out = model.base_model(**{name: t.to(device) for name, t in tensors.items()})
            found = (out.last_hidden_state if task.tokens else out.pooler_output).cpu()
            kept = labels != data.IGNORED
            read.append(found[kept])
            targets.append(labels[kept])
    return torch.cat(read), torch.cat(targets)


class Tests:
    """The test sentences of a task.

    Args:
        scored: sentences per domain.
        length: word pieces per sentence.
    """

    def __init__(self, task: data.Task, *, test: int, scored: int, length: int, device: str):
        self.task, self.device = task, device
        parts = data.load(task.name, test)
        self.sentences = {d: data.encode(task, held[:scored], length) for d, (_, held) in parts.items()}

    def probabilities(
        self, folder: Path, domains: Sequence[str], heads: Mapping[str, Path]
    ) -> dict[str, dict[str, tuple[Tensor, Tensor]]]:
        """By domain and head: class probabilities [n, labels] and targets [n].

        Args:
            folder: the model; its own head is called `merged`.
            heads: further classifiers to put on the same body, by name: those of these stored models.
        """
        model = load_model(self.task, folder, self.device)
        weights = {"merged": head_of(folder), **{name: head_of(path) for name, path in heads.items()}}
        found = {}
        for domain in domains:
            read, targets = features(self.task, model, self.sentences[domain], self.device)
            found[domain] = {
                name: ((read @ weight.T + bias).softmax(-1), targets) for name, (weight, bias) in weights.items()
            }
        return found


def scores(found: tuple[Tensor, Tensor]) -> dict[str, float]:
    """The F1 of probabilities and targets."""
    probabilities, targets = found
    return f1(targets, probabilities.argmax(-1))
