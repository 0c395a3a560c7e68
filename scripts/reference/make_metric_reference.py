#!/usr/bin/env python3
"""Makes tests/reference/text_metrics.jsonl.xz and text_metrics.json, the reference of
tests/trainer/evaluation/test_text_scores.c.

    python3 scripts/reference/make_metric_reference.py

Needs sacrebleu and rouge-score. The tests need only the files. The references are lines of the
pages of this project, and sentences of other languages and scripts; some rows have several lines.
The predictions are the references with words that are left out, repeated, exchanged or changed.
sacreBLEU with each tokenizer and rouge-score without stemmer compute the values, for all rows and
for some prefixes of few rows, where n-grams of high orders do not match.
"""
import json
import lzma
import pathlib
import random

from rouge_score.rouge_scorer import RougeScorer
from sacrebleu.metrics import BLEU, CHRF

TOP = pathlib.Path(__file__).resolve().parent.parent.parent
ROWS, SEED = 2000, 7
OTHERS = [
    "El programa imprime 1.234,5 líneas; ¿cuántas quedan? ¡Ninguna!",
    "Die Größe beträgt 3,5 GiB – „zu viel“, sagte er (Seite 12).",
    "Программа не может открыть файл «данные.txt»: нет такого файла.",
    "このファイルは存在しません。もう一度試してください。",
    "无法打开文件：权限不够（错误 13）。价格是￥25.80元。",
    "Le coût est de 12,50 € ou 15 $, n'est-ce pas ? L'été, c'est l'été…",
    "a &lt;b&gt; &amp;amp; &quot;c&quot; <skipped> well-known 10-20 x-y 3.14, .5 5. \t end",
    "İstanbul'da 300 K\u2014yani 300 \u212a\u2014ölçüldü; ①②③ ½ ± 2 × 3 = 6 ✓ 👍🏽",
    "ประโยคภาษาไทยไม่มีช่องว่าง ๑๒๓ และ ॐ ३४५।",
    "tabs\tand\u00a0no-break\u2003spaces, a/b, c_d, e~f, `g`, [h], {i}, ^j, \\k, |l|",
    "...", "?", "0", "A.", "",
]


def read_lines():
    paths = sorted(TOP.glob("docs/**/*.md")) + [TOP / "README.md", TOP / "CONTRIBUTING.md"]
    lines = [line.strip() for path in paths for line in path.read_text().splitlines()]
    return [line for line in lines if len(line) > 20]


def change_words(draw, text):
    words, out = text.split(" "), []
    for word in words:
        kind = draw.random()
        if kind < 0.06:
            continue
        out += [word, word] if kind < 0.09 else [word.upper()] if kind < 0.12 else \
            [draw.choice(words)] if kind < 0.18 else [word[1:] + "."] if kind < 0.21 else [word]
    if draw.random() < 0.2:
        i = draw.randrange(len(out) + 1)
        out = out[i:] + out[:i]
    return " ".join(out)


def make_rows(draw):
    lines, rows = read_lines(), []
    for i in range(ROWS):
        if i % 10 == 3:
            reference = draw.choice(OTHERS)
        elif i % 10 == 7:
            reference = "\n".join(draw.sample(lines, draw.randint(2, 4)))
        else:
            reference = draw.choice(lines)
        kind = draw.random()
        prediction = reference if kind < 0.1 else draw.choice(lines) if kind < 0.15 else \
            "\n".join(change_words(draw, line) for line in reference.split("\n"))
        rows.append({"prediction": prediction, "reference": reference})
    return rows


def score(rows):
    predictions = [row["prediction"] for row in rows]
    references = [row["reference"] for row in rows]
    values = {"rows": len(rows), "bleu": {}}
    for tokenizer in ("13a", "intl", "char", "none"):
        # `force` only suppresses a warning about tokenized periods
        metric = BLEU(tokenize=tokenizer, force=True)
        values["bleu"][tokenizer] = metric.corpus_score(predictions, [references]).score
        values["bleu_signature"] = str(metric.get_signature())
    metric = CHRF()
    values["chrf"] = metric.corpus_score(predictions, [references]).score
    values["chrf_signature"] = str(metric.get_signature())
    names = ["rouge1", "rouge2", "rougeL", "rougeLsum"]
    scorer = RougeScorer(names)
    each = [scorer.score(r, p) for p, r in zip(predictions, references)]
    for name in names:
        values[name] = sum(scores[name].fmeasure for scores in each) / len(each)
    values["exact_match"] = sum(p == r for p, r in zip(predictions, references)) / len(rows)
    return values


def main():
    rows = make_rows(random.Random(SEED))
    folder = TOP / "tests/reference"
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    (folder / "text_metrics.jsonl.xz").write_bytes(lzma.compress(text.encode(), preset=9))
    cases = [score(rows[first:first + count])
             for first, count in ((0, ROWS), (3, 1), (13, 1), (0, 2), (23, 1), (7, 1), (100, 50))]
    for case, first in zip(cases, (0, 3, 13, 0, 23, 7, 100)):
        case["first"] = first
    (folder / "text_metrics.json").write_text(json.dumps(cases, indent=1) + "\n")


if __name__ == "__main__":
    main()
