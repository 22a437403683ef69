"""Fine-tunes of the small models of the barrier benchmark: other text, other pictures, at the rate that they were trained with.

python -m benchmarks.fingerprints.tune    # into benchmarks/data/fingerprints; a minute or two each; what is there is kept
"""

from __future__ import annotations

import torch
import transformers as tf
from torch.nn import functional as F

from benchmarks.barrier.data import BARRIER, load_images, load_text, windows
from benchmarks.fetch import DATA

TUNED = DATA / "fingerprints"
STEPS, BATCH, RATE = 150, 16, 1e-3
TEXT, IMAGES = ("gpt2", "llama"), {"vit-digits": "digits", "vit-fashion": "fashion"}


def tune(family: str, seed: int) -> None:
    """Language models go on with Moby Dick, image models with their pictures upside down and labels counted backwards."""
    out = TUNED / f"{family}-{seed}"
    if (out / "config.json").is_file():
        return
    torch.manual_seed(seed)
    source = BARRIER / family / f"seed-{seed}"
    kind = tf.AutoModelForCausalLM if family in TEXT else tf.AutoModelForImageClassification
    model = kind.from_pretrained(source).train()
    optimizer = torch.optim.AdamW(model.parameters(), RATE, weight_decay=0.05)
    if family in TEXT:
        text = load_text("moby-dick")
    else:
        x, y = load_images(IMAGES[family], "train")
        x, y = x.flip(-2), 9 - y
    for step in range(STEPS):
        if family in TEXT:
            batch = windows(text, torch.randint(len(text) - 128, (BATCH,)))
            logits = model(batch).logits[:, :-1]
            loss = F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        else:
            rows = torch.randint(len(x), (4 * BATCH,))
            loss = F.cross_entropy(model(x[rows]).logits, y[rows])
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step in (0, STEPS - 1):
            print(f"{out.name}: step {step} loss {loss.item():.3f}", flush=True)
    model.save_pretrained(out)


if __name__ == "__main__":
    for name in (*TEXT, *IMAGES):
        for number in range(3):
            tune(name, number)
