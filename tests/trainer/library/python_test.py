"""Tests of the Python package (scripts/python) against the program, on the models of small_models.sh.

test_python.sh runs them in the folder of the models.
"""

import json
import os
import re
import shutil
import subprocess
import threading

import numpy as np
import pytest

import bireme
from bireme._training import _find_run_folder

ONE_THREAD = {"parallel__threads": 1}


def run(*arguments, text=None):
    """Return the standard output of the program."""
    return subprocess.run(
        [os.environ["BIREME_PROGRAM"], *arguments],
        input=text,
        capture_output=True,
        text=True,
        check=True,
    ).stdout


VERSION = run("--version")


def run_json(command, model, text):
    return json.loads(run(command, "--checkpoint", model, "--json", text=text + "\n"))


@pytest.fixture(scope="module")
def model():
    with bireme.Model("run", **ONE_THREAD) as opened:
        yield opened


def test_version_and_facts(model):
    assert run("--version").startswith(f"bireme {bireme.version()}\n")
    assert bireme.__version__ == bireme.version()
    assert model.checkpoint == "run/final"
    assert (model.positions, model.width, model.end_token) == (32, 32, None)
    assert model.parameters == json.loads(run("inspect", "run/final", "--json"))["parameters"]


def test_generate(model):
    options = ["--temperature", "0", "--max-new-tokens", "20", "--no-echo"]
    expected = run("generate", "--checkpoint", "run", "--prompt", "License", *options)[:-1]
    assert model.generate("License", temperature=0, max_new_tokens=20) == expected
    assert model.end_reason == "length"
    assert model.generate(model.encode("License"), temperature=0, max_new_tokens=20) == expected
    pieces = list(model.generate("License", temperature=0, max_new_tokens=20, stream=True))
    assert len(pieces) == 20 and "".join(pieces) == expected
    sampled = [model.generate("the", seed=seed, max_new_tokens=20) for seed in (5, 5, 6)]
    assert sampled[0] == sampled[1] != sampled[2]
    assert model.generate("the", seed=5, max_new_tokens=20, stop=sampled[0][4]) == (
        sampled[0][: sampled[0].index(sampled[0][4])]
    )
    assert model.end_reason == "stop"


def test_stream_ends_when_closed(model):
    stream = model.generate("the", max_new_tokens=100000, stream=True)
    assert next(stream)
    stream.close()
    assert model.end_reason == "stream"
    assert model.generate("the", max_new_tokens=2)  # the model is free again


def test_errors(model):
    with pytest.raises(TypeError, match="max_tokens"):
        model.generate("the", max_tokens=2)
    with pytest.raises(bireme.BiremeError, match="temperature") as error:
        model.generate("the", temperature=-1)
    assert error.value.code == 64
    with pytest.raises(bireme.BiremeError, match="temperature"):
        list(model.generate("the", temperature=-1, stream=True))
    with pytest.raises(bireme.BiremeError, match="nowhere"):
        bireme.Model("nowhere")
    with pytest.raises(bireme.BiremeError, match="objective clm"):
        model.classify("a")
    with pytest.raises(bireme.BiremeError, match="train.precision"):
        bireme.Model("run", train__precison="fp32")
    with pytest.warns(bireme.BiremeWarning, match="W-LENGTH"):
        model.generate("License", max_new_tokens=50, slide=False)


def test_probabilities(model):
    logprobs = model.logprobs("License")
    score = float(run("score", "--checkpoint", "run", text="License\n").split("\t")[0])
    assert logprobs.shape == (6,) and logprobs.dtype == np.float64
    assert logprobs.sum() == pytest.approx(score, abs=1e-5)
    ids, logits = model.encode("License"), model.logits("License")
    assert logits.shape == (7, model.vocabulary) and logits.dtype == np.float32
    log_softmax = logits - np.log(np.exp(logits.astype(np.float64)).sum(1, keepdims=True))
    assert np.allclose(log_softmax[np.arange(6), ids[1:]], logprobs, atol=1e-5)
    assert model.decode(ids) == "License"


def test_embed(model):
    vectors = model.embed(["list files", "ls"])
    rows = run("embed", "--checkpoint", "run", text="list files\nls\n").splitlines()
    assert np.allclose(vectors, [[float(x) for x in row.split()] for row in rows], atol=1e-6)
    assert np.array_equal(model.embed("ls"), vectors[1])


def test_chat():
    arguments = ["--checkpoint", "messages-run", "--temperature", "0", "--max-new-tokens", "12"]
    expected = run("chat", *arguments, text="list files\n")[:-1]
    with bireme.Model("messages-run", **ONE_THREAD) as model:
        messages = [{"role": "user", "content": "list files"}]
        assert model.chat(messages, temperature=0, max_new_tokens=12) == expected != ""
        stream = model.chat(messages, temperature=0, max_new_tokens=12, stream=True)
        assert "".join(stream) == expected
        with pytest.raises(bireme.BiremeError, match="robot"):
            model.chat([{"role": "robot", "content": "x"}])


def test_encoder_decoder(model):
    with open("pairs.a") as file:
        sources = file.read().splitlines()[:4]
    command, text = ["--checkpoint", "pairs-run"], "\n".join(sources) + "\n"
    lines = run("translate", *command, text=text).splitlines()
    limits = ["--num-beams", "3", "--max-new-tokens", "9"]
    beams = run("translate", *command, *limits, "--length-penalty", "0.5", text=text).splitlines()
    with bireme.Model("pairs-run", **ONE_THREAD) as pairs:
        assert pairs.translate(sources) == lines and "" not in lines
        options = {"num_beams": 3, "max_new_tokens": 9, "length_penalty": 0.5}
        assert [pairs.translate(source, **options) for source in sources] == beams
        assert pairs.translate("") == "" and pairs.end_reason == "token"
        expected = run("generate", *command, "--prompt", sources[1])[:-1]
        assert pairs.generate(sources[1]) == expected
        assert pairs.generate(pairs.encode(sources[1])) == expected
        assert "".join(pairs.generate(sources[1], stream=True)) == expected
        found = pairs.generate(sources[1], num_beams=3, max_new_tokens=9)
        assert found == run("generate", *command, "--prompt", sources[1], *limits)[:-1]
        answer = run("chat", *command, "--temperature", "0", text=sources[0] + "\n")[:-1]
        assert pairs.chat([{"role": "user", "content": sources[0]}]) == answer != ""
        assert pairs.decode(pairs.encode(sources[0])) == sources[0]
        assert pairs.encode(sources[0])[-1] == pairs.end_token
        refused = {
            "embeddings": lambda: pairs.embed("a"),
            "labels": lambda: pairs.classify("a"),
            "masked words": lambda: pairs.fill_mask("a"),
            "answers": lambda: pairs.answer("a", "b"),
            "log-probabilities": lambda: pairs.logprobs("the list"),
            "logits": lambda: pairs.logits("the list"),
        }
        for name, function in refused.items():
            with pytest.raises(bireme.BiremeError, match=rf"\(t5\), which has no {name}") as error:
                function()
            assert error.value.code == 69
        with pytest.raises(TypeError, match="max_tokens"):
            pairs.translate("a", max_tokens=2)
        with pytest.raises(bireme.BiremeError, match="num_beams is 0"):
            pairs.translate("a", num_beams=0)
        with pytest.raises(bireme.BiremeError, match=">>es<<"):
            pairs.translate("a", target_lang="es")
        with pytest.raises(bireme.BiremeError, match="64 positions"):
            pairs.translate("the list " * 90)
    with pytest.raises(bireme.BiremeError, match="not an encoder-decoder") as error:
        model.translate("the")
    assert error.value.code == 65


def test_labels():
    with bireme.Model("classify-run", **ONE_THREAD) as model:
        labels = model.classify("a license of files", top_k=2)
    expected = json.loads(
        run("classify", "--checkpoint", "classify-run", "--json", "--top-k", "2",
            text="a license of files\n")
    )["labels"]  # fmt: skip
    assert [label.name for label in labels] == [label["label"] for label in expected]
    assert labels[0].score == pytest.approx(expected[0]["probability"])
    assert sum(label.score for label in labels) == pytest.approx(1)
    with bireme.Model("regress-run", **ONE_THREAD) as model:
        value = model.classify("the work", "a license")[0].score
        assert value == pytest.approx(
            run_json("classify", "regress-run", "the work\ta license")["value"], rel=1e-5
        )
    with bireme.Model("classify_tokens-run", **ONE_THREAD) as model:
        words = model.classify("the \u00f6ther  files")
    assert [word.text for word in words] == ["the", "\u00f6ther", "files"]
    expected = run_json("classify", "classify_tokens-run", "the \u00f6ther  files")["tokens"]
    assert [word.name for word in words] == [word["label"] for word in expected]


def test_fill_mask_and_answer():
    text = "the [MASK] of a [MASK]"
    with bireme.Model("mlm-run", **ONE_THREAD) as model:
        masks = model.fill_mask(text, top_k=3)
        assert model.logits(text).shape[1] == model.vocabulary
    expected = json.loads(run("fill-mask", "--checkpoint", "mlm-run", "--json", "--top-k", "3", text))
    assert [[t.text for t in m] for m in masks] == [[t["text"] for t in m] for m in expected["masks"]]
    question, context = "which files", "the \u00f6ther license, and the files of a free work"
    with bireme.Model("answer-run", **ONE_THREAD) as model:
        answer = model.answer(question, context)
    expected = run_json("answer", "answer-run", f"{question}\t{context}")
    assert answer.text == expected["answer"] == context[answer.begin : answer.end]
    assert (answer.begin, answer.end) == (expected["begin"], expected["end"])


def test_models_in_threads():
    texts = ["The license", "of work", "a copy", "source"]
    models = [bireme.Model("run", **ONE_THREAD) for _ in texts]
    expected = [m.generate(t, max_new_tokens=20, seed=1) for m, t in zip(models, texts)]
    results = [None] * len(texts)

    def work(i):
        for _ in range(3):
            results[i] = models[i].generate(texts[i], max_new_tokens=20, seed=1)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(texts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == expected


@pytest.mark.parametrize(
    ("line", "setting", "folder"),
    [
        ("run_dir: runs/a b  # a comment", None, "runs/a b"),
        ("run_dir: it's#1", None, "it's#1"),
        ("run_dir: 'it''s #1' # a comment", None, "it's #1"),
        ('"run_dir" : "a\\u0062 #c"', None, "ab #c"),
        ("run_dir:", None, "runs/mine.v2"),
        ("run_dir: ~ # none", None, "runs/mine.v2"),
        ("  run_dir: other", None, "runs/mine.v2"),
        ("run_dir: first", "run#2 'x'", "run#2 'x'"),
        ("run_dir: first", '"a b" # c', "a b"),
        ("run_dir: first", "null", "runs/mine.v2"),
    ],
)
def test_run_folder(tmp_path, line, setting, folder):
    recipe = tmp_path / "mine.v2.yaml"
    recipe.write_text(f"objective: clm\n{line}\nseed: 1\n")
    settings = [] if setting is None else [f"run_dir={setting}"]
    assert str(_find_run_folder(recipe, settings)) == folder


def allow_ranks(ranks, monkeypatch):
    """Let mpirun start more ranks than there are cores; skip the test without MPI."""
    if ranks > 1 and (shutil.which("mpirun") is None or not re.search("^MPI +MPI", VERSION, re.M)):
        pytest.skip("no mpirun, or built without MPI")
    for name in ("OMPI_MCA_rmaps_base_oversubscribe", "OMPI_MCA_mpi_yield_when_idle"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe")


def test_train_two_ranks(monkeypatch):
    allow_ranks(2, monkeypatch)
    rows = list(bireme.train("recipe.yaml", ranks=2, run_dir="it's #2", train__max_steps=5))
    assert rows[0]["event"] == "start" and rows[0]["ranks"] == 2 and rows[-1]["event"] == "end"
    losses = [row["loss"] for row in rows if row["event"] == "train"]
    assert bireme.metrics("it's #2")["loss"].tolist() == losses and len(losses) > 0
    one = list(bireme.train("recipe.yaml", run_dir="one rank", train__max_steps=5))
    expected = [row["loss"] for row in one if row["event"] == "train"]
    np.testing.assert_allclose(losses, expected, rtol=1e-5)


def test_train_and_metrics():
    rows = list(bireme.train("recipe.yaml", run_dir="trained", train__max_steps=5))
    assert rows[0]["event"] == "start" and rows[-1]["event"] == "end"
    losses = [row["loss"] for row in rows if row["event"] == "train"]
    metrics = bireme.metrics("trained")
    assert metrics["loss"].tolist() == losses and len(losses) > 0
    assert metrics["step"].dtype == np.float64
    assert bireme.metrics("trained", "start")["version"][0].startswith(bireme.version())
    # The run is resumed: only its new rows are returned.
    more = list(bireme.train("recipe.yaml", run_dir="trained", **{"train.max_steps": 8}))
    assert min(row["step"] for row in more if row["event"] == "train") > 5
    with pytest.raises(bireme.BiremeError, match="train.max_steps") as error:
        list(bireme.train("recipe.yaml", run_dir="other", train__max_stps=5))
    assert error.value.code == 78


@pytest.mark.parametrize("ranks", [1, 2])
def test_train_stops_when_closed(ranks, monkeypatch):
    allow_ranks(ranks, monkeypatch)
    folder = f"stopped-{ranks}"
    settings = {"run_dir": folder, "train.max_steps": 1000000, "checkpoint.every": 0}
    run_rows = bireme.train("recipe.yaml", ranks=ranks, **settings)
    for row in run_rows:
        if row["event"] == "train":
            break
    run_rows.close()
    assert bireme.metrics(folder, "start")["ranks"].tolist() == [ranks]
    assert bireme.metrics(folder, "checkpoint")["saved_step"].size == 1
    assert bireme.metrics(folder, "end")["reason"].tolist() == ["stopped"]


def test_train_requires_mpi_for_ranks(tmp_path, monkeypatch):
    program = tmp_path / "bireme"
    program.write_text("#!/bin/sh\necho 'MPI       none'\n")
    program.chmod(0o755)
    monkeypatch.setenv("BIREME_PROGRAM", str(program))
    with pytest.raises(bireme.BiremeError, match="ranks must be 1") as error:
        next(bireme.train("recipe.yaml", ranks=2))
    assert error.value.code == 69
