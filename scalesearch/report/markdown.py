"""Findings as a Markdown note: the recommendation first, since notes are shown cut short."""

from __future__ import annotations

from scalesearch.core.budget import Budget, Spent
from scalesearch.core.recommend import Findings
from scalesearch.report import words
from scalesearch.report.keras_code import keras_code
from scalesearch.report.terminal import outcome_counts, recommendation_lines, spending


def note(
    findings: Findings, *, replicas: int, train_examples: int, optimizer: str, budget: Budget, spent: Spent
) -> str:
    """Recommendation, support, table per batch size, code to paste, and where the budget went."""
    first, *support = recommendation_lines(findings, replicas=replicas, train_examples=train_examples)
    parts = [f"**{first}**", "\n".join(f"- {line}" for line in support), _table(findings)]
    if findings.recommendation is not None:
        code = keras_code(findings.recommendation.parameters, optimizer=optimizer, replicas=replicas)
        parts.append(f"```python\n{code}\n```")
    parts.append(f"{outcome_counts(findings.outcomes)}. Spent: {spending(budget, spent)}.")
    return "\n\n".join(parts)


def _table(findings: Findings) -> str:
    lines = [
        "| global batch | learning rate | steps | examples | seconds | reached / trials |",
        "|---:|---:|---:|---:|---:|---:|",
    ]
    for row in findings.batch_sizes:
        rate = f"{row.best.parameters.learning_rate:.4g}" if row.best else "–"
        reached = row.best.reached if row.best else None
        cells = (
            (f"{reached.steps:,.0f}", words.count(reached.examples), words.duration(reached.seconds))
            if reached
            else ("–",) * 3
        )
        lines.append(f"| {row.global_batch_size:,} | {rate} | {' | '.join(cells)} | {row.reached} / {row.trials} |")
    return "\n".join(lines)
