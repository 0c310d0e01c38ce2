"""The table of what each backend does, out of the records of the tests that showed it.

The questions are in support_questions.csv. Problems count that have one of ``problems`` among the
words of their capability (see tests/conformance.py), and so do the tests in the columns ``cudnn``
and ``miopen``; ``refusal`` is the name by which a test records the error of a backend that has no
such thing; ``reference`` is the answer of the reference.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from math import prod
from typing import Any

from records import DOCS, Block, Record, shows

NOT_RECORDED = "not recorded yet"
NOT_VERIFIED = "not verified"

with (DOCS / "support_questions.csv").open(encoding="utf-8", newline="") as lines:
    QUESTIONS = list(csv.DictReader(lines))


@shows("gpu.json", "miopen.json", "vulkan.json")
def support_table(cudnn: Record, miopen: Record, vulkan: Record) -> Iterator[Block]:
    """Yield how it was verified, the answers to `QUESTIONS`, and the combinations that were run."""
    titles = {"cuDNN": cudnn, "MIOpen": miopen, "Vulkan": vulkan}
    first = {title: record.get("verified", NOT_RECORDED) for title, record in titles.items()}
    if cudnn:
        first["cuDNN"] = f"cuDNN {cudnn['cudnn']}, {cudnn['device']}"
    rows = [{"": "Verified on"} | first | {"reference": "CPU"}]
    for question in QUESTIONS:
        cells = {title: _answer(question, record) for title, record in titles.items()}
        rows.append({"": question["question"]} | cells | {"reference": question["reference"]})
    words = "Combinations of modes, types, x, layers, directions, biases"
    covered = {title: _combinations(record) for title, record in titles.items()}
    yield [*rows, {"": words} | covered | {"reference": "-"}]


def _answer(question: Mapping[str, str], record: Record) -> str:
    if "problems" not in record:
        return NOT_RECORDED
    asked = set(question["problems"].split())
    problems = sum(n for words, n in record["problems"].items() if asked & set(words.split()))
    named = f"{question['cudnn']} {question['miopen']}".split()
    passed = sum(record["tests"].get(test, 0) for test in named)
    shown = [f"{n:,} {of}" for n, of in ((problems, "problems"), (passed, "tests")) if n]
    if shown:
        return f"yes: {', '.join(shown)}"
    refusal = record["refusals"].get(question["refusal"])
    return f"no: {refusal}" if refusal else NOT_VERIFIED


def _combinations(record: Mapping[str, Any]) -> str:
    """Return the number of possible combinations of the words that occur, and of those seen."""
    if "problems" not in record:
        return NOT_RECORDED
    seen = {tuple(words.split()[:6]) for words in record["problems"]}
    possible = prod(len(set(values)) for values in zip(*seen, strict=True))
    return f"{len(seen):,} of {possible:,}"
