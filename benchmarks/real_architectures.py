"""Real weights of other architectures than BERT: an ALBERT, and encoder-decoders of plain torch with a text of
their own.

    python -m benchmarks.fetch rxnmapper anarcii
    python benchmarks/real_architectures.py      # about a minute on one core; writes results/real_architectures.json

For every model: the law (outputs after a random element of every space and shift, the stream's among them), and
whether a twin in other heads, matrices, neurons and biases comes back and is proven. For two that were tuned from
one another (antibodies and sharks): the merge with the second one disguised, aligned and not, judged by how often
its next token is the parents' own on random proteins and the numbering that the first parent gives them.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import AlbertForMaskedLM

import isomerge
from isomerge.evidence.law import random_alignment
from isomerge.models.recognised import recognise

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "real_architectures.json"
TEXTS: dict[str, Path | None] = {
    "rxnmapper": None,
    **{
        f"anarcii/{name}": HERE / "anarcii.spec"
        for name in ("antibody", "shark", "tcr", "antibody-1-layer", "tcr-1-layer", "classifier")
    },
}
AMINO_ACIDS, LENGTH, STEPS, PROTEINS = 20, 40, 30, 32


class Anarcii:
    """ANARCII's function from its tensors: post-LN, ReLU, embeddings times the root of the width, as its package
    computes it."""

    def __init__(self, folder: Path) -> None:
        self.heads = json.loads((folder / "config.json").read_text())["HEADS"]
        self.w = {name: t.double() for name, t in load_file(folder / "model.safetensors").items()}
        self.depth = 1 + max(int(name.split(".")[2]) for name in self.w if ".layers." in name)

    def attend(self, place: str, x: Tensor, seen: Tensor, causal: bool = False) -> Tensor:
        """`torch.nn.MultiheadAttention`, with weights in place."""
        layer = nn.MultiheadAttention(x.shape[-1], self.heads, batch_first=True, dtype=torch.float64).eval()
        start = f"{place}.multihead_attn."
        layer.load_state_dict({n.removeprefix(start): t for n, t in self.w.items() if n.startswith(start)})
        mask = torch.ones(x.shape[1], seen.shape[1]).triu(1).bool() if causal else None
        return layer(x, seen, seen, attn_mask=mask, need_weights=False)[0]

    def norm(self, name: str, x: Tensor) -> Tensor:
        """A LayerNorm."""
        return nn.functional.layer_norm(x, x.shape[-1:], self.w[f"{name}.weight"], self.w[f"{name}.bias"])

    def neurons(self, place: str, x: Tensor) -> Tensor:
        """Two layers with a ReLU between."""
        start = f"{place}.positionwise_feedforward."
        hidden = nn.functional.linear(x, self.w[f"{start}fc_1.weight"], self.w[f"{start}fc_1.bias"]).relu()
        return nn.functional.linear(hidden, self.w[f"{start}fc_2.weight"], self.w[f"{start}fc_2.bias"])

    def embed(self, side: str, ids: Tensor) -> Tensor:
        """Tokens and places."""
        tokens, places = self.w[f"{side}.tok_embedding.weight"], self.w[f"{side}.pos_embedding.weight"]
        return tokens[ids] * tokens.shape[1] ** 0.5 + places[: ids.shape[1]]

    @torch.no_grad()
    def __call__(self, source: Tensor, target: Tensor) -> Tensor:
        """Logits [n, target, labels] of what comes next."""
        x = self.embed("encoder", source)
        for k in range(self.depth):
            at = f"encoder.layers.{k}"
            x = self.norm(f"{at}.self_attn_layer_norm", x + self.attend(f"{at}.self_attention", x, x))
            x = self.norm(f"{at}.ff_layer_norm", x + self.neurons(at, x))
        y = self.embed("decoder", target)
        for k in range(self.depth):
            at = f"decoder.layers.{k}"
            y = self.norm(f"{at}.self_attn_layer_norm", y + self.attend(f"{at}.self_attention", y, y, causal=True))
            y = self.norm(f"{at}.enc_attn_layer_norm", y + self.attend(f"{at}.encoder_attention", y, x))
            y = self.norm(f"{at}.ff_layer_norm", y + self.neurons(at, y))
        return nn.functional.linear(y, self.w["decoder.fc_out.weight"], self.w["decoder.fc_out.bias"])


def outputs(folder: Path) -> Tensor:
    """What a model says on fixed inputs, in float64."""
    rng = torch.Generator().manual_seed(0)
    if json.loads((folder / "config.json").read_text()).get("model_type") == "albert":
        model = AlbertForMaskedLM.from_pretrained(folder, dtype=torch.float64).eval()
        with torch.no_grad():
            return model(torch.randint(1, 591, (4, 32), generator=rng)).logits
    model = Anarcii(folder)
    letters, labels = (model.w[f"{side}.tok_embedding.weight"].shape[0] for side in ("encoder", "decoder"))
    ids = (torch.randint(0, n, (4, 24), generator=rng) for n in (letters, labels))
    return model(*ids)


def change(new: Tensor, old: Tensor) -> float:
    """The largest change relative to the largest output."""
    return float((new - old).abs().max() / old.abs().max())


def proven(folder: Path, text: Path | None, scratch: Path) -> dict[str, Any]:
    """The law and the recovery of one model."""
    model = recognise(folder, spec_file=text)
    spaces = [*model.spec.spaces, *(shift.name for shift in model.spec.shifts)]
    local = [name for name in spaces if name not in model.spec.residual_names]
    before, found = outputs(folder), {"tensors": len(model.matches), "spaces": len(spaces)}
    for name, chosen in (("moved", spaces), ("twin", local)):
        g = random_alignment(model.spec, model.blocks, torch.Generator().manual_seed(1), chosen)
        report = isomerge.apply(g, folder, out=scratch / name, spec=text)
        found[name] = {
            "weights": report["distance"]["after"] / report["distance"]["norm"],
            "outputs": change(outputs(scratch / name), before),
        }
    _, report = isomerge.align(scratch / "twin", onto=folder, out=scratch / "back", spec=text)
    proof = isomerge.verify(folder, scratch / "twin", spec=text)
    found["recovered"] = report["distance"]["after"] / report["distance"]["before"]
    found["verify"] = {"same": proof["same"], "residual": proof["residual"]["largest"]}
    return found


def decoded(model: Anarcii, proteins: Tensor) -> Tensor:
    """The labels that a model gives to proteins, one after the other, greedily, [n, 1 + STEPS]."""
    labels = torch.full((len(proteins), 1), 1)
    for _ in range(STEPS):
        labels = torch.cat([labels, model(proteins, labels)[:, -1:].argmax(-1)], 1)
    return labels


def merged(one: Path, two: Path, text: Path, scratch: Path) -> dict[str, Any]:
    """Two relatives merged, the second in a disguise: agreement of next tokens with the parents'."""
    model = recognise(two, spec_file=text)
    local = [n for n in model.spec.spaces if n not in model.spec.residual_names]
    g = random_alignment(model.spec, model.blocks, torch.Generator().manual_seed(2), local)
    isomerge.apply(g, two, out=scratch / "disguised", spec=text)
    proteins = torch.randint(4, 4 + AMINO_ACIDS, (PROTEINS, LENGTH), generator=torch.Generator().manual_seed(3))
    parents = [Anarcii(folder) for folder in (one, two)]
    labels = decoded(parents[0], proteins)
    said = [parent(proteins, labels).argmax(-1) for parent in parents]
    found: dict[str, Any] = {"parents_agree": float((said[0] == said[1]).double().mean())}
    for name, align in (("aligned", True), ("plain", False)):
        out = scratch / name
        isomerge.merge([one, scratch / "disguised"], out=out, spec=text, align=align)
        here = Anarcii(out)(proteins, labels).argmax(-1)
        found[name] = [float((here == other).double().mean()) for other in said]
    return found


def main() -> None:
    """All models, then the pair."""
    torch.set_num_threads(1)
    data, results = HERE / "data", {}
    for name, text in TEXTS.items():
        with tempfile.TemporaryDirectory() as scratch:
            results[name] = proven(data / name, text, Path(scratch))
        print(name, json.dumps(results[name]), flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        pair = [data / "anarcii" / name for name in ("antibody", "shark")]
        results["antibody + shark"] = merged(*pair, HERE / "anarcii.spec", Path(scratch))
    print("antibody + shark", json.dumps(results["antibody + shark"]))
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
