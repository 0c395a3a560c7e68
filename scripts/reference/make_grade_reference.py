#!/usr/bin/env python3
"""Makes tests/reference/grade.json, the reference of tests/trainer/evaluation/test_scores.c.

    python3 scripts/reference/make_grade_reference.py

Needs scikit-learn and scipy. The tests need only the file.

Classes       accuracy, and precision_recall_fscore_support of scikit-learn for each class and with
              the averages macro, micro and weighted, at the default zero_division
Correlations  pearsonr and spearmanr of SciPy, with ties
Answers       exact match and F1 as in evaluate-v2.0.py of SQuAD, the best over several answers
"""
import collections
import json
import pathlib
import random
import re
import string
import warnings

from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import accuracy_score, precision_recall_fscore_support


def class_case(classes, labels, predictions):
    counted = [(l, p) for l, p in zip(labels, predictions) if l >= 0]
    y, z = [l for l, _ in counted], [p for _, p in counted]
    each = precision_recall_fscore_support(y, z, labels=list(range(classes)))
    case = {
        "classes": classes, "labels": labels, "predictions": predictions,
        "accuracy": accuracy_score(y, z), "precision": each[0].tolist(), "recall": each[1].tolist(),
        "f1": each[2].tolist(), "support": each[3].tolist()
    }
    for average in ("macro", "micro", "weighted"):
        case[average] = [
            float(v) for v in precision_recall_fscore_support(y, z, average=average)[:3]
        ]
    return case


def class_cases(r):
    yield class_case(2, [1, 0, 1, 1, 0], [1, 0, 0, 1, 1])
    yield class_case(1, [0, 0], [0, 0])
    yield class_case(4, [0, 1, 2, 2], [0, 0, 0, 0])  # no class 3; 1 and 2 never predicted
    # ignored labels; class 4 is only predicted, classes 1 and 2 are absent
    yield class_case(5, [-100, 0, 3, -100, 3], [4, 0, 4, 1, 3])
    for classes, count in ((3, 101), (9, 1000)):
        labels = [r.randrange(classes) for _ in range(count)]
        yield class_case(
            classes, labels, [l if r.random() < 0.6 else r.randrange(classes) for l in labels]
        )


def correlation_cases(r):
    pairs = [([1.0, 2.0, 3.0], [2.0, 4.0, 6.5]), ([1.0, 2.0], [5.0, -1.0]),
             ([0.0, 1.0, 1.0, 2.0, 5.0, 5.0, 5.0], [3.0, 1.0, 4.0, 1.0, 5.0, 9.0, 2.0])]
    x = [r.gauss(0, 1) for _ in range(257)]
    pairs.append((x, [1e6 + 0.3 * v + r.gauss(0, 1) for v in x]))
    pairs.append(
        (
            [round(5 * r.random()) / 1.0 for _ in range(100)],
            [round(5 * r.random(), 1) for _ in range(100)]
        )
    )
    for x, y in pairs:
        yield {
            "x": x, "y": y, "pearson": float(pearsonr(x, y)[0]),
            "spearman": float(spearmanr(x, y)[0])
        }


def normalize(text):
    text = "".join(c for c in text.lower() if c not in set(string.punctuation))
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


def f1_score(answer, prediction):
    gold, predicted = normalize(answer).split(), normalize(prediction).split()
    same = sum((collections.Counter(gold) & collections.Counter(predicted)).values())
    if not gold or not predicted:
        return float(gold == predicted)
    if same == 0:
        return 0.0
    precision, recall = same / len(predicted), same / len(gold)
    return 2 * precision * recall / (precision + recall)


def answer_cases():
    cases = [
        ("the Cat, sat.", ["cat sat"]), ("a cat sat on the mat", ["the cat", "mat sat cat on"]),
        ("", []), ("something", []), ("the", [""]), ("", ["an"]),
        ("theatre an-d a.b", ["theatre and ab"]), ("a\u2013b the\u00a0end", ["\u2013b end"]),
        ("\u0130stanbul \u00c9COLE", ["\u0130STANBUL \u00e9cole"]), ("x x y", ["x y y", "x"]),
        (" tab\tand\u2003space\n", ["tab and space"]), ("an a the", ["the a"]),
        ("--all, -a: do not ignore", ["do not ignore entries starting with .", "-a"]),
        ("a\u0301b", ["\u0301b"]), ("the_end", ["theend"]), ("42a the 7", ["42a 7"]),
        ("\u6d4b\u8bd5 a", ["\u6d4b\u8bd5"]),
    ]
    for prediction, answers in cases:
        gold = answers or [""]
        yield {"prediction": prediction, "answers": answers, "normal": normalize(prediction),
               "exact": float(max(normalize(a) == normalize(prediction) for a in gold)),
               "f1": max(f1_score(a, prediction) for a in gold)}


def main():
    warnings.simplefilter("ignore")  # scikit-learn warns of each division by zero
    r = random.Random(7)
    document = {
        "classes": list(class_cases(r)), "correlations": list(correlation_cases(r)),
        "answers": list(answer_cases())
    }
    path = pathlib.Path(__file__).parent.parent.parent / "tests/reference/grade.json"
    path.write_text(json.dumps(document, separators=(",", ":")) + "\n")
    print(path, path.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
