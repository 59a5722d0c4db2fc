"""Findings as a Markdown note: the recommendation first, since notes are shown cut short."""

from __future__ import annotations

from scalesearch.core.budget import Budget, Spent
from scalesearch.core.recommend import Findings
from scalesearch.report.keras_code import keras_code
from scalesearch.report.terminal import batch_size_rows, outcome_counts, recommendation_lines, spending


def note(
    findings: Findings, *, replicas: int, train_examples: int, optimizer: str, budget: Budget, spent: Spent
) -> str:
    """Recommendation, support, table per batch size, code to paste, and where the budget went."""
    first, *support = recommendation_lines(findings, replicas=replicas, train_examples=train_examples)
    parts = [f"**{first}**", "\n".join(f"- {line}" for line in support), _table(findings)]
    if findings.recommendation is not None:
        code = keras_code(findings.recommendation.parameters, optimizer=optimizer, replicas=replicas)
        parts.append(f"```python\n{code}\n```")
    parts.append(f"Trials: {outcome_counts(findings.outcomes) or 'none'}. Spent: {spending(budget, spent)}.")
    return "\n\n".join(part for part in parts if part)


def _table(findings: Findings) -> str:
    headings, *rows = batch_size_rows(findings)
    if not rows:
        return ""
    lines = [headings, ("---:",) * len(headings), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
