#!/usr/bin/env python3
"""Compares `bireme evaluate --task` with lm-evaluation-harness, question by question.

    scripts/peers/check_lm_eval.py PROGRAM            compare; exit code 1 if anything differs
    scripts/peers/check_lm_eval.py PROGRAM --serve    compare lm-eval's local-completions, which
                                                      asks `bireme serve`, with expected.json
    scripts/peers/check_lm_eval.py --write            write tests/reference/tasks/expected.json

The tasks and the model are in tests/reference/tasks. lm-evaluation-harness runs the model with
transformers, in fp32 on the CPU. The test `tasks` compares with expected.json and needs no Python.
Packages: lm-eval, torch, transformers.
"""
import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "tests" / "reference" / "tasks"
SHOTS = [None, 1]  # None: num_fewshot of the file
TOLERANCE = 2e-4  # of a log-probability; errors of perplexities are relative


def run_lm_eval(url=None):
    os.chdir(FOLDER)  # the paths of the data are relative to this folder
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ["DISABLE_MULTIPROC"] = "1"
    import lm_eval
    import lm_eval.evaluator
    import lm_eval.models.huggingface
    import lm_eval.tasks
    import torch
    import transformers
    import yaml

    torch.set_num_threads(1)
    lm_eval.evaluator.add_env_info = lambda results: None  # it lists all packages, which takes long
    if url is None:
        model = lm_eval.models.huggingface.HFLM(
            pretrained=str(FOLDER / "model"), device="cpu", dtype="float32", batch_size=1)
    else:
        import lm_eval.models.openai_completions
        model = lm_eval.models.openai_completions.LocalCompletionsAPI(
            base_url=url + "/v1/completions", model="model", tokenizer=str(FOLDER / "model"),
            tokenizer_backend="huggingface", max_length=256)
    manager = lm_eval.tasks.TaskManager(include_defaults=False)
    cases = []
    for path in sorted(FOLDER.glob("*.yaml")):
        for shots in SHOTS:
            config = yaml.safe_load(path.read_text())
            is_rolling = config["output_type"] == "loglikelihood_rolling"
            # local-completions splits long texts at other places: it generates a token, too.
            if is_rolling and (shots is not None or url is not None):
                continue
            out = lm_eval.simple_evaluate(
                model=model, tasks=[config], num_fewshot=shots, log_samples=True,
                task_manager=manager, bootstrap_iters=100)
            cases.append(convert(path.name, config, shots, out))
    return {"lm_eval": lm_eval.__version__, "transformers": transformers.__version__,
            "torch": torch.__version__, "cases": cases}


def convert(name, config, shots, out):
    task = config["task"]
    results = {}
    for key, value in out["results"][task].items():
        metric, _, filter_name = key.partition(",")
        if filter_name and isinstance(value, (int, float)):
            results[metric + ("" if filter_name == "none" else "," + filter_name)] = value
    documents = {}
    for sample in out["samples"][task]:
        row = documents.setdefault(sample["doc_id"], {})
        suffix = "" if sample["filter"] == "none" else "," + sample["filter"]
        response = [r[0] for r in sample["resps"]]
        if config["output_type"] in ("multiple_choice", "loglikelihood"):
            row["resps"] = [r[0] for r in response]
        else:
            row["resps"] = response[0]
        for metric in sample["metrics"]:
            if isinstance(sample[metric], (int, float)) and metric != "perplexity":
                row[metric + suffix] = float(sample[metric])
    return {"file": name, "task": task, "shots": -1 if shots is None else shots,
            "results": results, "documents": [documents[i] for i in sorted(documents)]}


def run_bireme(program, case, folder):
    samples = folder / "samples.jsonl"
    command = [program, "evaluate", "--checkpoint", str(folder / "checkpoint"), "--task",
               str(FOLDER / case["file"]), "--log-samples", str(samples), "--json"]
    if case["shots"] >= 0:
        command += ["--shots", str(case["shots"])]
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return json.loads(out), [json.loads(line) for line in samples.read_text().splitlines()]


def differs(expected, value):
    if isinstance(expected, list):
        return len(expected) != len(value) or any(map(differs, expected, value))
    if isinstance(expected, str):
        return expected != value
    return not abs(value - expected) <= TOLERANCE * max(1, abs(expected))


def compare(program, expected):
    faults = questions = 0
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        subprocess.run([program, "import", str(FOLDER / "model"), "--output",
                        str(folder / "checkpoint")], check=True, capture_output=True)
        for case in expected["cases"]:
            results, samples = run_bireme(program, case, folder)
            for index, row in enumerate(case["documents"]):
                questions += 1
                wrong = [k for k in row if differs(row[k], samples[index].get(k, math.nan))]
                if wrong:
                    faults += 1
                    print(case["task"], case["shots"], index, wrong, row, samples[index])
            for metric, value in case["results"].items():
                mine = results[f"{case['task']}/{metric}"]
                is_bootstrap = metric == "perplexity_stderr"
                if not is_bootstrap and differs(value, mine):
                    faults += 1
                    print(case["task"], case["shots"], metric, value, mine)
    print(f"{len(expected['cases'])} cases, {questions} questions, {faults} differences from "
          f"lm-eval {expected['lm_eval']} with transformers {expected['transformers']}")
    return faults


def compare_served(program):
    expected = json.loads((FOLDER / "expected.json").read_text())
    faults = questions = 0
    with tempfile.TemporaryDirectory() as name:
        checkpoint = pathlib.Path(name) / "checkpoint"
        subprocess.run([program, "import", str(FOLDER / "model"), "--output", str(checkpoint)],
                       check=True, capture_output=True)
        server = subprocess.Popen([program, "serve", "--checkpoint", str(checkpoint), "--port",
                                   "0"], stdout=subprocess.PIPE, text=True)
        try:
            url = server.stdout.readline().split()[-1]
            served = run_lm_eval(url)
        finally:
            server.terminate()
            server.wait()
    own_cases = {(c["file"], c["shots"]): c for c in served["cases"]}
    for case in expected["cases"]:
        own = own_cases.get((case["file"], case["shots"]))
        if own is None:
            continue
        for index, row in enumerate(case["documents"]):
            questions += 1
            wrong = [k for k in row if differs(row[k], own["documents"][index][k])]
            if wrong:
                faults += 1
                print(case["task"], case["shots"], index, wrong, row, own["documents"][index])
    print(f"{len(served['cases'])} cases, {questions} questions, {faults} differences between "
          f"local-completions and transformers")
    return faults


def main():
    if sys.argv[2:] == ["--serve"]:
        return 1 if compare_served(sys.argv[1]) else 0
    expected = run_lm_eval()
    if sys.argv[1:] == ["--write"]:
        (FOLDER / "expected.json").write_text(json.dumps(expected, indent=0) + "\n")
        return 0
    return 1 if compare(sys.argv[1], expected) else 0


if __name__ == "__main__":
    sys.exit(main())
