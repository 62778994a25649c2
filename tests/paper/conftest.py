from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from sfedhp.config import EvaluationOptions, to_dict
from sfedhp.paper.records import Record
from sfedhp.paper.studies import Point, Study


@pytest.fixture
def study() -> Callable[..., Study]:
    """A study of these variants, each a list of experiments."""

    def make(
        name: str = "table2",
        *,
        table: str = "table2",
        reading: str = "balanced",
        paper: bool = True,
        **variants: Any,
    ) -> Study:
        points = {
            variant: tuple(Point(f"{variant} {turn}", each) for turn, each in enumerate(experiments))
            for variant, experiments in variants.items()
        }
        return Study(
            name=name,
            table=table,
            reading=reading,
            paper=paper,
            seeds=3,
            choice_rounds=200,
            choice_seeds=3,
            variants=points,
        )

    return make


@pytest.fixture
def made() -> Callable[..., Record]:
    """A record as a run of this experiment would have left it."""

    def make(
        study: Study,
        variant: str,
        seed: int,
        *,
        point: int = 0,
        rounds: int | None = None,
        trouble: str | None = None,
        statistics: str = "averaged",
        **curve: list[float | None],
    ) -> Record:
        chosen = study.variants[variant][point]
        own = replace(
            chosen.experiment,
            seed=seed,
            evaluation=EvaluationOptions(norm_statistics=statistics),  # type: ignore[arg-type]
        )
        rounds_measured = [20 * (turn + 1) for turn in range(len(next(iter(curve.values()))))]
        columns: dict[str, list[Any]] = {"round": rounds_measured, **curve}
        return Record(
            study.name,
            variant,
            chosen.words,
            seed,
            rounds or own.rounds,
            trouble,
            "c0ffee",
            {},
            to_dict(own),
            1.0,
            columns,
        )

    return make
