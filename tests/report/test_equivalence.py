from __future__ import annotations

import json
from dataclasses import replace

import pytest

from scalesearch.core.equivalence import Difference, Part, Verdict
from scalesearch.report.equivalence import verdict_json, verdict_lines

SAME, OTHER = Difference(weights=2e-7, loss=1e-8), Difference(weights=0.21, loss=0.03)
AGREES = Verdict(replicas=2, global_batch_size=16, learning_rate=0.02, steps=3, difference=SAME)
DIFFERS = replace(
    AGREES,
    difference=OTHER,
    repeated=SAME,
    accumulated=SAME,
    without_any=SAME,
    with_one={Part.LOSS: SAME, Part.STATISTICS: OTHER},
    parts={Part.LOSS: "the loss", Part.STATISTICS: "norm_1"},
)


def said(verdict: Verdict) -> str:
    return "\n".join(verdict_lines(verdict))


def test_agreement() -> None:
    assert said(AGREES).startswith("2 replicas train as 1 does (global batch 16 on 1 and on 2 replicas")
    assert "weights differ by 2e-07 of their update" in said(AGREES)


def test_a_cause_with_its_evidence() -> None:
    text = said(DIFFERS)
    assert text.startswith("2 replicas do not train as 1 does")
    assert "batch normalisation (norm_1) takes its statistics over each replica's share" in text
    assert "evidence: all else neutralised, weights differ by 21.0% of their update" in text
    assert "ruled out by experiment: the loss" in text
    assert "it is how the batch is divided" in text


@pytest.mark.parametrize("part", Part, ids=str)
def test_every_part_has_words(part: Part) -> None:
    text = said(replace(DIFFERS, with_one={part: OTHER}, parts={part: "its name"}))
    assert "because" in text
    assert "{" not in text


@pytest.mark.parametrize(
    ("verdict", "expected"),
    [
        (replace(AGREES, same_data=False), "load_data returns other examples, or another order"),
        (replace(AGREES, same_start=False), "build_model does not follow the seed"),
        (replace(DIFFERS, repeated=OTHER), "not even repeatable"),
        (replace(DIFFERS, without_any=OTHER), "The cause was not found"),
        (replace(DIFFERS, with_one={Part.LOSS: SAME, Part.STATISTICS: SAME}), "they do so together"),
    ],
)
def test_other_verdicts(verdict: Verdict, expected: str) -> None:
    assert expected in said(verdict)


def test_json() -> None:
    found = json.loads(json.dumps(verdict_json(DIFFERS), allow_nan=False))
    assert found["agrees"] is False
    assert found["causes"] == ["statistics"]
    assert found["experiments"]["with_one"]["statistics"]["weights"] == 0.21
    unknown = verdict_json(replace(AGREES, difference=Difference(weights=float("nan"), loss=float("inf"))))
    assert unknown["difference"] == {"weights": None, "loss": None}
