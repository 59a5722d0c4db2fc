"""What a study has established, read from its storage and said in the ways that commands need."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

import click
from rich.console import Console

from scalesearch.core.budget import Budget, Spent, spent
from scalesearch.core.recommend import Findings, findings
from scalesearch.core.results import Objective
from scalesearch.report.as_json import study_json
from scalesearch.report.markdown import note
from scalesearch.report.terminal import outcome_counts, print_findings, spending
from scalesearch.search.storage import StudyStore


@dataclass(frozen=True, kw_only=True)
class Summary:
    """What a study established, with what is needed to say it in words."""

    name: str
    workload: str
    optimizer: str
    replicas: int
    train_examples: int
    budget: Budget
    spent: Spent
    findings: Findings

    @staticmethod
    def exists(store: StudyStore) -> bool:
        """Whether the study was made by scalesearch and has been started."""
        return store.attribute("context") is not None

    @staticmethod
    def of(store: StudyStore) -> Summary:
        context = store.attribute("context")
        results = store.results()
        objective = replace(Objective(**context["objective"]), target=store.attribute("target"))
        return Summary(
            name=store.name,
            workload=context["workload"],
            optimizer=context["optimizer"],
            replicas=context["replicas"],
            train_examples=context["train_examples"],
            budget=Budget(**context["budget"]),
            spent=spent(
                results, wall_clock_seconds=store.wall_clock_seconds(), train_examples=context["train_examples"]
            ),
            findings=findings(results, objective, leader=store.leader()),
        )

    def show(self, *, as_json: bool) -> None:
        """Print it on stdout."""
        if as_json:
            click.echo(json.dumps(self.as_json(), allow_nan=False))
            return
        console = Console()
        print_findings(
            console,
            self.findings,
            replicas=self.replicas,
            train_examples=self.train_examples,
            optimizer=self.optimizer,
        )
        console.print(f"Trials: {outcome_counts(self.findings.outcomes) or 'none'}", highlight=False, soft_wrap=True)
        console.print(f"Spent:  {spending(self.budget, self.spent)}", highlight=False, soft_wrap=True)

    def as_json(self) -> dict[str, Any]:
        """It as one JSON object."""
        return study_json(
            self.findings,
            name=self.name,
            workload=self.workload,
            replicas=self.replicas,
            budget=self.budget,
            spent=self.spent,
        )

    def note(self) -> str:
        """It as a Markdown note."""
        return note(
            self.findings,
            replicas=self.replicas,
            train_examples=self.train_examples,
            optimizer=self.optimizer,
            budget=self.budget,
            spent=self.spent,
        )
