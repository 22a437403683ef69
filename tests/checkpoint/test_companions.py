import json
import re
from collections import OrderedDict
from pathlib import Path

import pytest
import transformers

from isomerge.checkpoint.companions import COMPANIONS, companion_files, config_bytes
from isomerge.checkpoint.opening import read_config
from isomerge.errors import IsomergeError
from raw_files import one_sentence

WANTED = [
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "added_tokens.json",
    "spiece.model",
    "sentencepiece.bpe.model",
    "tokenizer.model",
    "chat_template.jinja",
    "chat_template.json",
    "preprocessor_config.json",
    "processor_config.json",
    "modules.json",
    "sentence_bert_config.json",
    "config_sentence_transformers.json",
    "1_Pooling/config.json",
    "2_Normalize/config.json",
    "3_Dense/config.json",
    "3_Dense/model.safetensors",
    "additional_chat_templates/tool_use.jinja",
    "source.spm",
    "target.spm",
    "entity_vocab.json",
    "tekken.json",
    "qformer_tokenizer/tokenizer.json",
    "qformer_tokenizer/special_tokens_map.json",
]
UNWANTED = [
    "config.json",
    "README.md",
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "modeling_custom.py",
    "tokenization_custom.py",
    "optimizer.pt",
    "training_args.bin",
    "scheduler.pt",
    "rng_state.pth",
    "trainer_state.json",
    "3_Dense/pytorch_model.bin",
    "1_Pooling/pooling.py",
    "onnx/config.json",
    "checkpoint-500/config.json",
    "additional_chat_templates/run.py",
    "qformer_tokenizer/tokenization.py",
    "other/tokenizer.json",
]


def test_companions_and_nothing_else(tmp_path):
    for name in WANTED + UNWANTED:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    found = companion_files(tmp_path)
    assert sorted(found) == sorted(WANTED)
    assert all(path.read_text() == name for name, path in found.items())


def test_all_that_the_tokenizers_of_transformers_are_saved_in():
    """No class of the installed version keeps its vocabulary in a file that would be left behind."""
    root = Path(transformers.__file__).parent / "models"
    named = re.compile(r"^VOCAB_FILES_NAMES\b.*?= *\{(.*?)\}", re.DOTALL | re.MULTILINE)
    every = "".join(part for path in root.glob("*/tokenization_*.py") for part in named.findall(path.read_text()))
    found = set(re.findall(r': *"([^"]+)"', every))
    assert {"source.spm", "vocab.txt", "bpe.codes"} <= found
    assert found <= set(COMPANIONS)


def test_folders_named_like_companions_do_not_count(tmp_path):
    (tmp_path / "tokenizer.json").mkdir()
    assert companion_files(str(tmp_path)) == {}
    with pytest.raises(IsomergeError) as caught:
        companion_files(tmp_path / "absent")
    one_sentence(caught.value, tmp_path / "absent", "no such folder")


def test_config_bytes_keep_the_order_and_apply_changes():
    config = {"z": 1, "model_type": "bert", "a": [1, {"b": None}], "name": "ü"}
    raw = config_bytes(config, dtype="bfloat16", z=2)
    assert raw == config_bytes(config, dtype="bfloat16", z=2)
    assert raw.endswith(b"}\n")
    assert b'\n  "model_type": "bert",\n' in raw
    read = json.loads(raw)
    assert list(read) == ["z", "model_type", "a", "name", "dtype"]
    assert read == {**config, "z": 2, "dtype": "bfloat16"}
    assert config["z"] == 1


@pytest.mark.parametrize(
    "value",
    [
        {}, {"none": {}, "nothing": [], "pair": (1, 2)}, {"a": [1, 2.5, {"c": None}], "d": {"x": "y,\n  {z}", "q": "ü"}},
        {"a": {2: 2, True: [3], None: float("nan"), 1.5: {}}, "e": [[1], [2, [3]], {}]}, {"d": OrderedDict(a=OrderedDict(b=[1]))},
    ],
)  # fmt: skip
def test_configs_are_written_as_json_indents(value: dict):
    """Flat parts are written in another way, which is quick for names of many classes."""
    assert config_bytes(value).decode() == json.dumps(value, indent=2) + "\n"


def test_a_config_that_was_read_may_be_changed(tmp_path: Path):
    """The next reading of the same bytes does not see it."""
    written = {"part": {"deep": [1, {"x": 2}], "id2label": {"0": "a"}}, "architectures": ["A"]}
    (tmp_path / "config.json").write_text(json.dumps(written))
    config = read_config(tmp_path)
    config["part"]["deep"][1]["x"], config["part"]["id2label"]["0"] = 3, "b"
    config["part"]["deep"].append(4)
    config["architectures"].clear()
    assert read_config(tmp_path) == written


def test_config_with_values_json_lacks():
    with pytest.raises(IsomergeError) as caught:
        config_bytes({"model_type": "bert"}, dtype=object())
    one_sentence(caught.value, "config.json")
