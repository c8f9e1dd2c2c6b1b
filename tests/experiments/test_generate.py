"""task=generate: what it prints and writes, and whom it cannot let speak."""

import io
import json
import pathlib
import shutil

import pytest
from rich.console import Console

from blocks import generation
from experiments import api
from experiments.errors import UserError
from experiments.trained import trained
from experiments.vocabulary import Bytes, Telling, TokenizerFile, stops_of

RELEASED = pathlib.Path(__file__).parents[1] / "golden" / "released"
WORDS = [f"word{i}" for i in range(63)]


@pytest.fixture
def checkpoint(tmp_path):
    """A released model's folder: its weights are of a test, without a tokenizer."""
    folder = tmp_path / "llama3"
    folder.mkdir()
    golden = RELEASED / "llama3"
    shutil.copy(golden / "config.json", folder)
    shutil.copy(golden / "weights.safetensors", folder / "model.safetensors")
    return folder


def add_tokenizer(folder):
    """Words between spaces, behind a start token."""
    tokenizers = pytest.importorskip("tokenizers")
    vocabulary = {"<start>": 0, **{word: i + 1 for i, word in enumerate(WORDS)}}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, "word0"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.add_special_tokens(["<start>"])
    made.post_processor = tokenizers.processors.TemplateProcessing(
        single="<start> $A", special_tokens=[("<start>", 0)]
    )
    made.save(str(folder / "tokenizer.json"))


def said(tmp_path, *overrides):
    """What is written, and what is printed."""
    folder = f"runtime.output_dir={tmp_path}"
    printed = io.StringIO()
    configs = api.compose(["task=generate", folder, *overrides])
    assert api.run(configs, console=Console(file=printed, width=40)) == []
    node = json.loads((tmp_path / "generate" / "generate.json").read_text())
    return node, printed.getvalue()


def test_a_checkpoint_goes_on_with_token_ids(checkpoint, tmp_path):
    given = f"model.from_checkpoint={checkpoint}", "task.tokens=[1,2,3]"
    node, printed = said(tmp_path, *given, "task.n_tokens=6")
    assert len(node["tokens"]) == 6
    assert printed.startswith(" ".join(map(str, [1, 2, 3, *node["tokens"]])) + "\n")
    assert node["tokens_per_second"] > 0
    del node["tokens"], node["tokens_per_second"]
    assert node == {
        "schema": 1,
        "source": str(checkpoint),
        "prompt": None,
        "prompt_tokens": [1, 2, 3],
        "text": None,
        "stopped": False,
    }
    assert {path.name for path in tmp_path.iterdir()} == {"llama3", "generate"}


def test_text_goes_through_the_tokenizer_beside_the_weights(checkpoint, tmp_path):
    add_tokenizer(checkpoint)
    given = f"model.from_checkpoint={checkpoint}", "task.n_tokens=6"
    ids, _ = said(tmp_path, *given, "task.tokens=[0,5,6]")
    node, printed = said(tmp_path, *given, 'task.prompt="word4 word5"')
    assert node["prompt_tokens"] == [0, 5, 6]
    assert node["tokens"] == ids["tokens"]
    assert len(set(node["tokens"])) > 1
    assert node["prompt"] == "word4 word5"
    assert node["text"].split() == [WORDS[t - 1] for t in node["tokens"] if t]
    assert printed.startswith("word4 word5" + node["text"] + "\n")


def test_the_end_of_text_ends_it(checkpoint, tmp_path):
    given = f"model.from_checkpoint={checkpoint}", "task.tokens=[1,2,3]"
    free, _ = said(tmp_path, *given, "task.n_tokens=6")
    end = free["tokens"][2]
    (checkpoint / "generation_config.json").write_text(
        f'{{"eos_token_id": [63, {end}]}}'
    )
    node, _ = said(tmp_path, *given, "task.n_tokens=6")
    assert node["tokens"] == free["tokens"][: free["tokens"].index(end) + 1]
    assert node["stopped"]


@pytest.mark.parametrize(
    ("eos", "more", "stops"),
    [(2, None, {2}), (2, [3, 4], {2, 3, 4}), (None, 5, {5}), ([1, 2], [], {1, 2})],
)
def test_tokens_that_end_a_text(tmp_path, eos, more, stops):
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": eos}))
    generation_config = tmp_path / "generation_config.json"
    generation_config.write_text(json.dumps({"eos_token_id": more}))
    assert stops_of(tmp_path) == stops
    generation_config.unlink()
    assert stops_of(tmp_path) == set(
        eos if isinstance(eos, list) else [eos] * bool(eos)
    )


def test_a_wrong_end_of_text_is_told(tmp_path):
    (tmp_path / "config.json").write_text('{"eos_token_id": "</s>"}')
    with pytest.raises(UserError, match=r"config.json: eos_token_id: .*got </s>"):
        stops_of(tmp_path)


def test_a_run_of_ours_goes_on_with_bytes(compose, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("the quick brown fox " * 50)
    data = "data=bytes", f"data.path={text}"
    (member,) = api.run(compose("steps=2", "task.eval_every=null", *data))
    run = str(member.directory.path)
    prompt = 'task.prompt="été"'
    node, printed = said(tmp_path, f"task.run='{run}'", prompt, "task.n_tokens=7")
    assert node["prompt"] == "été"
    assert node["prompt_tokens"] == list("été".encode())
    model, _ = trained(run)
    assert node["tokens"] == list(generation.generate(model, node["prompt_tokens"], 7))
    assert node["text"] == bytes(node["tokens"]).decode(errors="replace")
    assert printed.startswith("été")
    as_checkpoint = f"model.from_checkpoint='{run}'"
    assert said(tmp_path, as_checkpoint, prompt, "task.n_tokens=7")[0] == {
        **node,
        "tokens_per_second": pytest.approx(node["tokens_per_second"], rel=1e3),
    }


def test_a_run_on_other_data_has_no_text(compose, tmp_path):
    (config,) = compose()
    (tmp_path / "config.json").write_text(json.dumps(config.to_config()))
    run = f"task.run={tmp_path}"
    with pytest.raises(
        UserError, match=r"task.prompt: data=markov holds no text; .*ids"
    ):
        said(tmp_path, run, "task.prompt=a")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["task.tokens=[1]"], "a model, model.from_checkpoint=DIR or .*got neither"),
        (["task.run=nowhere", "{it}", "task.tokens=[1]"], "got both"),
        (
            ["task.run=nowhere", "task.tokens=[1]"],
            "nowhere: expected the folder of a run",
        ),
        (["{it}"], r"task.prompt: .*tokens=\[1,2,3\], got neither"),
        (["{it}", "task.tokens=[1]", "task.prompt=a"], "task.prompt: .*got both"),
        (
            ["{it}", "task.prompt=a"],
            r"task.prompt: .*tokenizer.json: No such file.*ids",
        ),
        (
            ["{it}", "task.tokens=[1,64]"],
            "task.tokens: expected tokens in 0 .. 63, .*64",
        ),
        (["{it}", "task.tokens=[]"], "task.tokens: expected at least one token"),
        (["{it}", "task.tokens=[1]", "task.n_tokens=0"], "n_tokens must be at least 1"),
        (
            ["{it}", "task.tokens=[1]", "model.attention.causal=false"],
            "model: .*attn/branch: GroupedQueryAttention sees later tokens",
        ),
    ],
    ids=lambda given: " ".join(given) if isinstance(given, list) else "",
)
def test_what_cannot_be_is_told_and_nothing_is_written(
    checkpoint, tmp_path, overrides, message
):
    it = f"model.from_checkpoint={checkpoint}"
    with pytest.raises(UserError, match=message):
        said(tmp_path, *(o.format(it=it) for o in overrides))
    assert not (tmp_path / "generate").exists()


def test_a_file_that_is_no_tokenizer_is_told(checkpoint, tmp_path):
    pytest.importorskip("tokenizers")
    (checkpoint / "tokenizer.json").write_text("{}")
    it = f"model.from_checkpoint={checkpoint}"
    with pytest.raises(UserError, match="tokenizer.json: expected a tokenizer.json"):
        said(tmp_path, it, "task.prompt=a")


def test_without_the_package_token_ids_are_left(checkpoint, tmp_path, monkeypatch):
    import sys

    (checkpoint / "tokenizer.json").write_text('{"never": "parsed"}')
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    it = f"model.from_checkpoint={checkpoint}"
    with pytest.raises(UserError, match=r"pip install 'blocklab\[data\]'; .*tokens="):
        said(tmp_path, it, "task.prompt=a")
    node, _ = said(tmp_path, it, "task.tokens=[1,2,3]", "task.n_tokens=2")
    assert node["text"] is None
    assert node["tokens_per_second"] is None  # both came with a compilation


def test_half_a_character_is_held_back():
    telling = Telling(Bytes(), b"a")
    assert [telling.add(byte) for byte in "é b".encode()] == ["", "é", " ", "b"]
    assert telling.add("é".encode()[0]) == ""
    assert telling.rest() == "\ufffd"
    assert telling.text() == "é b\ufffd"


def test_a_space_in_front_of_a_word_is_of_the_text(tmp_path):
    add_tokenizer(tmp_path)
    vocabulary = TokenizerFile(tmp_path / "tokenizer.json")
    telling = Telling(vocabulary, vocabulary.encode("word1"))
    assert [telling.add(3), telling.add(4)] == [" word2", " word3"]
