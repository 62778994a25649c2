"""The charts of a page, built from the facts about its runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from sfedhp.core.edge_sizes import edge_sizes
from sfedhp.core.formats import counted, duration, size
from sfedhp.deploy.site import client_name as site_client_name
from sfedhp.deploy.site import edge_name as site_edge_name
from sfedhp.nn.problems import KINDS, Metric
from sfedhp.report.charts import Bar, Curve, bar_chart, category_chart, line_chart, rank_chart
from sfedhp.report.drawing import Drawing, Series
from sfedhp.report.facts import Facts, Group, ReportedRun
from sfedhp.report.styles import series_style
from sfedhp.report.tree import Branch, Leaf, tree
from sfedhp.report.wording import (
    capitalized,
    class_names,
    client_name,
    edge_name,
    label_mix,
    label_texts,
    said,
    scored_kinds,
)
from sfedhp.runs.record_file import Row
from sfedhp.runs.scores import Scores
from sfedhp.wire.direction import Direction

_CLASSES_DRAWN = 25  # about as many lines as the table next to it shows
_DECADES = 30  # from this ratio of losses their axis is logarithmic
_BAND = "The bands are one standard deviation over seeds."
_DENSITIES = {
    "density_client": "client models",
    "density_edge": "edge models",
    "density_global": "global model",
}


def curves(facts: Facts) -> list[Drawing]:
    """The accuracies over rounds: one chart for one setting, of several one for each kind of model."""
    drawings = []
    metric = facts.metric
    several = any(len(group.runs) > 1 for group in facts.groups)
    note = _BAND if several else ""
    if len(facts.groups) == 1:
        columns = [(metric.column(kind), kind.upper(), KINDS.index(kind)) for kind in facts.kinds]
        drawn = _present(facts.groups[0].curve(*column) for column in columns)
        if drawn:
            title = f"{capitalized(metric.title)} on test rows{', %' if metric.percent else ''}"
            drawings.append(line_chart("curves", title, drawn, **_written(metric), note=note))
    else:
        for kind in facts.kinds:
            drawn = _each(facts, metric.column(kind))
            if drawn:
                title = f"{kind.upper()}: {metric.title} on test rows{', %' if metric.percent else ''}"
                drawings.append(line_chart(f"curves-{kind}", title, drawn, **_written(metric), note=note))
    losses = _each(facts, "train_loss")
    if losses:
        values = [value for curve in losses for value in curve.y]
        log = min(values) > 0 and max(values) > _DECADES * min(values)
        if len(facts.groups) == 1:
            losses = [replace(losses[0], name="global model" if "gm" in facts.kinds else "models in use")]
        drawings.append(line_chart("loss", "Training loss", losses, digits=4, log=log, note=note))
    return drawings


def density(facts: Facts) -> list[Drawing]:
    """The share of weights that are not zero, over rounds."""
    if len(facts.groups) == 1:
        (group,) = facts.groups
        named = enumerate(_DENSITIES.items())
        drawn = _present(group.curve(column, name, number) for number, (column, name) in named)
        title = "Density: share of weights that are not zero"
    else:
        drawn = _each(facts, "density_global")
        title = "Density of the global model"
    return [line_chart("density", title, drawn, digits=4, zero=True)] if drawn else []


def traffic(facts: Facts) -> list[Drawing]:
    """The bytes of all messages: of one setting by direction, of several in total."""
    if len(facts.groups) > 1:
        bars = [_total_bytes(group, number) for number, group in enumerate(facts.groups)]
        return [bar_chart("bytes", "Bytes of all messages", bars)]
    (group,) = facts.groups
    bars = []
    for direction, sent in _sent(group):
        filled = group.estimate(f"density_{direction}")
        said = f"; density of the last message {filled.mean:.4f}" if filled else ""
        label = f"{direction.text}: {sent:,.0f} bytes{said}"
        bars.append(Bar(direction.text, sent, size(sent), label))
    return [bar_chart("bytes", "Bytes by link and direction, all rounds", bars)] if bars else []


def times(facts: Facts) -> list[Drawing]:
    """The seconds of each round: over rounds for one setting, in total for several."""
    if len(facts.groups) == 1:
        drawn = _present([facts.groups[0].curve("seconds", "seconds", 0)])
        return [line_chart("seconds", "Seconds of a round", drawn, digits=4, zero=True)] if drawn else []
    bars = []
    for number, group in enumerate(facts.groups):
        took = group.estimate("seconds")
        if took:
            label = f"{group.name}: {took.text()} seconds of computing"
            bars.append(Bar(group.name, took.mean, duration(took.mean), label, number))
    return [bar_chart("seconds", "Time of a run", bars)] if bars else []


def clients_chart(run: ReportedRun) -> Drawing | None:
    """The main metric of each client, worst first; None if the folder does not have it."""
    scores, metric = run.record.scores, run.metric
    if scores is None:
        return None
    ranked = [row for row in scores.ranked_clients() if row[scores.used] is not None]
    if not ranked:
        return None
    kinds = [scores.used, *(kind for kind in scored_kinds(scores) if kind != scores.used)]
    figures = [
        Series(kind.upper(), [row[kind] for row in ranked], style=series_style("fill", number))
        for number, kind in enumerate(kinds)
    ]
    worst = sum(row["worst_decile"] for row in ranked)
    mean = sum(row[scores.used] for row in ranked[:worst]) / worst
    return rank_chart(
        "clients",
        f"{scores.used.upper()} of each client: {metric.heading}",
        [f"{client_name(row)}, {edge_name(row)}" for row in ranked],
        figures,
        worst,
        **_written(metric),
        note=f"The worst tenth ({counted(worst, 'client')}) has a mean of {said(metric, mean)}.",
    )


def classes_chart(run: ReportedRun) -> Drawing | None:
    """The accuracy on each class; None if the folder does not have it."""
    scores = run.record.scores
    if scores is None or not scores.classes:
        return None
    rows, note = list(scores.classes), ""
    if len(rows) > _CLASSES_DRAWN:
        rows = sorted(rows, key=lambda row: (row[scores.used] is None, row[scores.used]))[:_CLASSES_DRAWN]
        note = f"The {_CLASSES_DRAWN} classes with the lowest {scores.used.upper()}; the table has all."
    kinds = [kind for kind in KINDS if kind in scores.confusion]
    names = class_names(scores)
    return category_chart(
        "classes",
        "Accuracy on the test rows of each class, %",
        [names[row["class"]] for row in rows],
        [Series(kind.upper(), [row[kind] for row in rows]) for kind in kinds],
        [counted(row["test_rows"], "test row") for row in rows],
        unit="%",
        note=note,
    )


def run_tree(run: ReportedRun, width: float) -> Drawing:
    """The three tiers of a run."""
    last = run.evaluated[-1] if run.evaluated else {}
    gm = last.get(run.metric.column("gm"))
    cloud = f"GM {said(run.metric, gm)}" if gm is not None else "no global model" if last else ""
    edges = run.record.config["edges"]
    label = f"cloud: {counted(edges, 'edge')}, {counted(run.record.clients, 'client')}"
    label += f"; GM {said(run.metric, gm)}" if gm is not None else ""
    return tree(run.name, cloud, label, branches(run), width=width, with_edges=run.with_edges)


def branches(run: ReportedRun) -> list[Branch]:
    """The edges of a run with their clients."""
    scores, config = run.record.scores, run.record.config
    if scores is None:
        return [
            Branch(
                run.names.get(site_edge_name(edge), f"edge {edge}"),
                run.states.get(site_edge_name(edge), ""),
                f"{run.names.get(site_edge_name(edge), f'edge {edge}')}: {counted(clients, 'client')}",
                [_unscored(run, edge, seat) for seat in range(clients)],
                run.states.get(site_edge_name(edge), ""),
            )
            for edge, clients in enumerate(edge_sizes(config["edges"], config["clients_per_edge"]))
        ]
    worst = {row["client"] for row in scores.ranked_clients() if row["worst_decile"]}
    values = [abs(row[scores.used]) for row in scores.clients if row[scores.used] is not None]
    largest = 100.0 if run.metric.percent else max(values, default=0.0)
    found = []
    for edge in sorted({row["edge"] for row in scores.clients}):
        rows = [row for row in scores.clients if row["edge"] == edge]
        means = {kind: _mean(rows, kind) for kind in KINDS}
        listed = [
            f"{kind.upper()} {said(run.metric, mean)}" for kind, mean in means.items() if mean is not None
        ]
        figure = f"EM {said(run.metric, means['em'])}" if means["em"] is not None else ""
        held = sum(row["rows"] for row in rows)
        name = edge_name(rows[0])
        label = f"{name}: {counted(len(rows), 'client')}, {held:,} rows; {', '.join(listed)}"
        leaves = [_leaf(row, scores, row["client"] in worst, largest) for row in rows]
        found.append(Branch(name, figure, label, leaves))
    return found


def drawings(facts: Facts) -> list[Drawing]:
    """All charts, for files of their own."""
    first = facts.runs[0]
    own = (
        [run_tree(first, 1160.0), clients_chart(first), classes_chart(first)] if len(facts.runs) == 1 else []
    )
    return [
        *(drawing for drawing in own if drawing is not None),
        *(*curves(facts), *density(facts), *traffic(facts), *times(facts)),
    ]


def _written(metric: Metric) -> dict[str, Any]:
    """The unit and the decimals with which a chart writes a metric."""
    return {"unit": "%" if metric.percent else "", "digits": 2 if metric.percent else 4}


def _leaf(row: Row, scores: Scores, worst: bool, largest: float) -> Leaf:
    mix = label_mix(row)
    shares = [0.0] * len(scores.classes)
    for label, count in mix:
        shares[label] = count / max(row["rows"], 1)
    held = ", ".join(label_texts(row, class_names(scores)))
    metric, figure = scores.metric, row[scores.used]
    listed = [f"{kind.upper()} {said(metric, row[kind])}" for kind in KINDS if row[kind] is not None]
    listed += [f"trained alone {said(metric, row['alone'])}"] if row.get("alone") is not None else []
    labels = f"labels {held or 'none'}; " if scores.classes else ""
    sentence = (
        f"{client_name(row)} of {edge_name(row)}: {counted(row['rows'], 'row')}, "
        f"{counted(row['test_rows'], 'test row')}; {labels}"
        f"{', '.join(listed) or 'no test rows'}{'; one of the worst tenth' if worst else ''}"
    )
    return Leaf(
        client_name(row),
        row["rows"],
        shares if mix else (),
        "–" if figure is None else metric.text(figure),
        None if figure is None else figure / largest if largest else 0.0,
        worst,
        sentence,
    )


def _unscored(run: ReportedRun, edge: int, seat: int) -> Leaf:
    """A client whose figures are not known, with its state in a deployed federation."""
    name = site_client_name(edge, seat)
    state = run.states.get(name, "")
    called = run.names.get(name, f"client {edge}-{seat}")
    above = run.names.get(site_edge_name(edge), f"edge {edge}")
    label = f"{called} of {above}{f'; {state}' if state else ''}"
    return Leaf(called, None, (), f"{edge}-{seat}", None, False, label, state)


def _mean(rows: Sequence[Row], kind: str) -> float | None:
    """The mean of a kind of model over clients, weighted by their test rows."""
    known = [(row[kind], row["test_rows"]) for row in rows if row[kind] is not None]
    total = sum(weight for _, weight in known)
    return sum(value * weight for value, weight in known) / total if total else None


def _total_bytes(group: Group, number: int) -> Bar:
    sent = group.estimate("bytes_total")
    mean = sent.mean if sent else 0.0
    parts = [f"{direction.text} {size(found)}" for direction, found in _sent(group)]
    label = f"{group.name}: {', '.join(parts) or 'nothing sent'}"
    return Bar(group.name, mean, size(mean), label, number)


def _sent(group: Group) -> list[tuple[Direction, float]]:
    """The bytes of each direction, as a mean over seeds."""
    found = ((each, group.estimate(f"bytes_{each}")) for each in Direction.sent_in(group.runs[0].summary))
    return [(direction, sent.mean) for direction, sent in found if sent]


def _each(facts: Facts, column: str) -> list[Curve]:
    """The curve of a column for each setting that has it."""
    return _present(group.curve(column, group.name, number) for number, group in enumerate(facts.groups))


def _present(found: Iterator[Curve | None] | Sequence[Curve | None]) -> list[Curve]:
    return [curve for curve in found if curve is not None]
