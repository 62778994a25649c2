"""The names of clients, edges and classes on a page, and its format of figures in sentences."""

from __future__ import annotations

from collections.abc import Sequence

from sfedhp.nn.problems import KINDS, Metric
from sfedhp.runs.record_file import Row
from sfedhp.runs.scores import Scores


def client_name(row: Row) -> str:
    """The name of a client in the data, or its number."""
    return str(row.get("name") or f"client {row['client']}")


def edge_name(row: Row) -> str:
    """The name of a client's edge in the data, or its number."""
    return str(row.get("edge_name") or f"edge {row['edge']}")


def class_names(scores: Scores) -> list[str]:
    """The names of the classes: as the data has them, or their numbers."""
    return [str(row.get("name") or row["class"]) for row in scores.classes]


def label_mix(row: Row) -> list[tuple[int, int]]:
    """The labels of a client with their training rows; none if an earlier version wrote the folder."""
    if row["label_rows"] is None:
        return []
    labels, counts = row["labels"].split(), row["label_rows"].split()
    return list(zip(map(int, labels), map(int, counts), strict=True))


def label_texts(row: Row, names: Sequence[str]) -> list[str]:
    """The labels of a client in words, with their training rows where these are known."""
    if mix := label_mix(row):
        return [f"{names[label]} ({count})" for label, count in mix]
    return [names[int(label)] for label in row["labels"].split()]


def said(metric: Metric, value: float | None) -> str:
    """A figure with its unit, in a sentence."""
    return f"{metric.text(value)} %" if metric.percent else metric.text(value)


def capitalized(text: str) -> str:
    """The text with a capital letter first."""
    return text[:1].upper() + text[1:]


def scored_kinds(scores: Scores) -> list[str]:
    """The kinds of models for which a client has a figure."""
    return [kind for kind in KINDS if any(row[kind] is not None for row in scores.clients)]
