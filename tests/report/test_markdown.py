from __future__ import annotations

from scalesearch.core.budget import Budget, Spent
from scalesearch.core.recommend import Findings
from scalesearch.core.results import Outcome
from scalesearch.report.markdown import note

from .trials import TRAIN_EXAMPLES, found, trial


def written(findings: Findings) -> str:
    return note(
        findings,
        replicas=2,
        train_examples=TRAIN_EXAMPLES,
        optimizer="momentum",
        budget=Budget(trials=40),
        spent=Spent(examples=131_920, epochs=2.4, device_seconds=8, wall_clock_seconds=5, trials=3),
    )


def test_the_recommendation_comes_first() -> None:
    parts = written(found(trial(0), trial(1, Outcome.CAPPED, batch=16))).split("\n\n")
    assert parts[0] == (
        "**global batch 64 (32 per replica), learning rate 0.25, momentum 0.9, "
        "× 0.1 after 2.4 epochs (132,000 examples, step 2,063)**"
    )
    support = parts[1].splitlines()
    assert all(line.startswith("- ") for line in support)
    assert support[0] == "- reaches val/classification_error < 0.1 in 1.9 s, 19 steps, 1,209 examples (1 run)"
    assert parts[2].splitlines() == [
        "| global batch | learning rate | steps | examples | seconds | reached / trials |",
        "| ---: | ---: | ---: | ---: | ---: | ---: |",
        "| 16 | – | – | – | – | 0 / 1 |",
        "| 64 | 0.25 | 19 | 1,209 | 1.9 s | 1 / 1 |",
    ]
    assert parts[3].startswith("```python\nstrategy = tf.distribute.MirroredStrategy()")
    assert parts[3].endswith("\n```")
    assert parts[4:] == [
        "Trials: 1 reached, 1 capped. Spent: 3 of 40 trials; 132k examples; 8.0 s device time; 5.0 s wall clock."
    ]


def test_nothing_reached() -> None:
    text = written(found(trial(0, Outcome.EXHAUSTED)))
    assert text.startswith("**none: no trial reached val/classification_error < 0.1**\n\n- the closest was trial 0 ")
    assert "```" not in text


def test_no_trials_yet() -> None:
    text = written(found())
    assert text == (
        "**none: no trial reached val/classification_error < 0.1**\n\n"
        "Trials: none. Spent: 3 of 40 trials; 132k examples; 8.0 s device time; 5.0 s wall clock."
    )
