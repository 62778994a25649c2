"""The sections of a page: what was run, figures, the tree, clients, classes, config."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape

from sfedhp.core.formats import counted, duration, percent, size
from sfedhp.nn.problems import KINDS, Metric
from sfedhp.privacy.options import PrivacyOptions
from sfedhp.report.content import classes_chart, clients_chart, run_tree
from sfedhp.report.drawing import svg
from sfedhp.report.facts import Facts, Group, ReportedRun
from sfedhp.report.html import Cell, Column, Line, figure, folded, paragraph, section, table, tiles
from sfedhp.report.tree import NARROW, WIDE, WITH_MIX, WITH_ROWS
from sfedhp.report.wording import class_names, client_name, edge_name, label_mix, said
from sfedhp.runs.benefit import benefit_of
from sfedhp.runs.record_file import Row

_WELL = ("up", "idle", "working", "answered", "ended")  # states of members that need no attention
NAMES = {"pm": "personal models", "em": "edge models", "gm": "global model"}
_LABELS_IN_TABLE = 3  # of a client
_CLIENTS_IN_ALL = 6000  # of all runs of a page whose clients are drawn
_MIX = "Its small bars are its rows of each label, always at the label's place. "
_LEGEND = "A box is a client. {mix}It shows its {metric}, as a bar and as a number, and its number of rows. "
_MIDDLE_LEGEND = "A box is a client. {mix}It shows its {metric}, as a bar and as a number. "
_SMALL_LEGEND = "A box is a client, filled as high as its {metric}. "
_READING = (
    "Boxes with a colored border are the worst tenth. Point at a box, or use Tab and the arrow keys, for "
    "{mix}rows and figures."
)


def figures_of_run(run: ReportedRun) -> str:
    """The final figures of a run as tiles."""
    summary = run.summary
    entries = []
    for kind in KINDS:
        column = run.metric.column(kind)
        if (last := summary.get(f"{column}_last")) is None:
            continue
        worst = summary[f"{column}_worst_last"]
        more = f"worst tenth {_unbroken(run.metric, worst)}" if worst is not None else ""
        what = "" if run.metric.name == "accuracy" else f": {run.metric.title}"
        entries.append((f"{kind.upper()}, {NAMES[kind]}{what}", _unbroken(run.metric, last), more))
    if "epsilon" in summary:
        options = PrivacyOptions.of_config(run.record.config)
        value, words = options.in_words(summary["epsilon"]).split(" and ", 1)
        entries.append(("privacy spent", value, words))
    entries.append(("sent", size(summary["bytes_total"]), "all messages, all rounds"))
    rounds = run.record.config["rounds"]
    entries.append(
        ("time", duration(summary["seconds"]), f"{run.record.rounds_done} of {counted(rounds, 'round')}")
    )
    return tiles(entries)


def benefit(run: ReportedRun) -> str | None:
    """Whether the clients' own models help them, in a sentence; None if it is not known."""
    scores = run.record.scores
    if scores is None or scores.used == "gm":
        return None
    metric = run.metric
    used = scores.used
    pairs = [(row[used], row["gm"]) for row in scores.clients if None not in (row[used], row["gm"])]
    last = run.evaluated[-1] if run.evaluated else {}
    own_figure, shared_figure = last.get(metric.column(used)), last.get(metric.column("gm"))
    if not pairs or own_figure is None or shared_figure is None:
        return None
    whose = "their own models" if used == "pm" else "the models of their edges"
    better = sum(metric.better(own, shared) for own, shared in pairs)
    worse = sum(metric.better(shared, own) for own, shared in pairs)
    alone = [(row[used], row["alone"]) for row in scores.clients if None not in (row[used], row.get("alone"))]
    lost = sum(metric.better(solitary, own) for own, solitary in alone)
    against = (
        f"Training alone would be better for {lost} of {counted(len(alone), 'client')}."
        if alone
        else "This compares models of this run only; `sfedhp compare` also compares them with training alone."
    )
    return (
        f"Does it help? On clients' test rows, {metric.title} is {said(metric, own_figure)} with {whose} and "
        f"{said(metric, shared_figure)} with the one global model. "
        f"{better} of {counted(len(pairs), 'client')} "
        f"{'is' if better == 1 else 'are'} served better by {whose}, {worse} worse. {against}"
    )


def trees(run: ReportedRun, prefix: str = "") -> str:
    """The tree of a run, once for wide and once for narrow screens."""
    wide, narrow = run_tree(run, WIDE), run_tree(run, NARROW)
    legend = ""
    if run.record.scores is not None:
        count = run.record.clients
        mixed = any(label_mix(row) for row in run.record.scores.clients)
        what = _LEGEND if count <= WITH_ROWS else _MIDDLE_LEGEND if count <= WITH_MIX else _SMALL_LEGEND
        text = what.format(metric=run.metric.title, mix=_MIX if mixed else "")
        legend = paragraph(text + _READING.format(mix="label mix, " if mixed else ""), "legend")
    missing = run.record.missing_scores
    return (
        svg(wide, prefix=prefix, style="wide")
        + svg(narrow, prefix=f"{prefix}narrow-", style="narrow")
        + legend
        + (paragraph(missing, "note") if missing else "")
    )


def member_list(run: ReportedRun, refused: Mapping[str, int]) -> str:
    """The current members of a deployed federation, and whose messages were refused."""
    lines = []
    for name, state in run.states.items():
        times = refused.get(name, 0)
        more = f", {times} refused" if times else ""
        bad = ' class="bad"' if state not in _WELL or times else ""
        called = f"{run.names[name]} [{name}]" if name in run.names else name
        said_of = escape(f"{called}: {state}{more}")
        lines.append(f'<li data-member="{escape(name)}"{bad}>{said_of}</li>')
    others = {name: times for name, times in refused.items() if name not in run.states}
    notes = [
        paragraph(f"Refused {counted(times, 'time')}: {name}", "trouble") for name, times in others.items()
    ]
    return section("Members", f'<ul class="states">{"".join(lines)}</ul>', *notes)


def clients(run: ReportedRun, prefix: str = "") -> str:
    """The clients of a run: chart and table."""
    chart, scores = clients_chart(run), run.record.scores
    if chart is None or scores is None:
        return ""
    figures = [*KINDS, *(["alone"] if any(row.get("alone") is not None for row in scores.clients) else [])]
    heads = ["client", "edge", *(kind.upper() if kind in KINDS else kind for kind in figures)]
    heads += ["rows", "test rows", "loss", *(["main labels"] if scores.classes else [])]
    columns = [Column(head, head not in ("client", "edge", "main labels")) for head in heads]
    names = class_names(scores)
    lines = []
    for row in scores.ranked_clients():
        lines.append(
            Line(
                [
                    Cell(client_name(row)),
                    Cell(edge_name(row)),
                    *(Cell(run.metric.text(row.get(kind)), row.get(kind)) for kind in figures),
                    *(Cell(str(row[name]), row[name]) for name in ("rows", "test_rows")),
                    Cell("–" if row["loss"] is None else f"{row['loss']:.4f}", row["loss"]),
                    *([Cell(_main_labels(row, names))] if scores.classes else []),
                ],
                "worst" if row["worst_decile"] else "",
            )
        )
    return (
        f'<div class="columns uneven"><div>{figure(chart, prefix)}</div>'
        f"<div>{table(f'{prefix}clients-table', columns, lines)}</div></div>"
    )


def _main_labels(row: Row, names: Sequence[str]) -> str:
    """The labels of which a client has the most rows; the tree says all of them."""
    mix = label_mix(row)
    labels = [label for label, _ in sorted(mix, key=lambda pair: -pair[1])]
    labels = labels if mix else [int(label) for label in row["labels"].split()]
    more = ", …" if len(labels) > _LABELS_IN_TABLE else ""
    return ", ".join(names[label] for label in labels[:_LABELS_IN_TABLE]) + more


def classes(run: ReportedRun, prefix: str = "") -> str:
    """The classes of a run: chart and table."""
    chart, scores = classes_chart(run), run.record.scores
    if chart is None or scores is None:
        return ""
    columns = [Column("class", False), Column("test rows"), *(Column(kind.upper()) for kind in KINDS)]
    lines = [
        Line(
            [
                Cell(name),
                Cell(str(row["test_rows"]), row["test_rows"]),
                *(Cell(percent(row[kind]), row[kind]) for kind in KINDS),
            ]
        )
        for name, row in zip(class_names(scores), scores.classes, strict=True)
    ]
    return (
        f'<div class="columns"><div>{figure(chart, prefix)}</div>'
        f"<div>{table(f'{prefix}classes-table', columns, lines)}</div></div>"
    )


def detailed(facts: Facts) -> list[ReportedRun]:
    """The runs whose clients are drawn: as many as keep the page small, at least one."""
    chosen: list[ReportedRun] = []
    drawn = 0
    for run in facts.runs:
        drawn += run.record.clients
        if chosen and drawn > _CLIENTS_IN_ALL:
            break
        chosen.append(run)
    return chosen


def chosen_first(facts: Facts) -> int:
    """The place, among `detailed`, of the run whose clients are shown until the reader chooses another.

    It has the best personal models. If each method ran once, training alone is left out; else only runs with
    the metric of the page are compared.
    """
    best = benefit_of([run.record for run in facts.runs]).best("pm")
    if places := [place for place, run in enumerate(detailed(facts)) if run.method == best]:
        return places[0]
    column, sign = f"{facts.metric.column('pm')}_last", 1 if facts.metric.higher_is_better else -1
    found = {
        place: sign * value
        for place, run in enumerate(detailed(facts))
        if run.metric == facts.metric and (value := run.summary.get(column)) is not None
    }
    return max(found, key=found.__getitem__, default=0)


def runs_table(facts: Facts) -> str:
    """A line for each setting, or each run if every setting has one seed."""
    seeds = any(len(group.runs) > 1 for group in facts.groups)
    heads = ["setting", *(["seeds"] if seeds else []), "rounds"]
    unit = ", %" if facts.metric.percent else f" {facts.metric.title}"
    heads += [f"{kind.upper()}{unit}" for kind in facts.kinds]
    heads += [f"{_used(facts).upper()} worst tenth{unit}"] if facts.kinds else []
    heads += ["density", "sent", "time", "state"]
    columns = [Column(head, head not in ("setting", "state")) for head in heads]
    note = "± is the standard deviation over seeds." if seeds else ""
    lines = [Line(list(_cells(facts, group, seeds=seeds))) for group in facts.groups]
    return table("runs-table", columns, lines) + (paragraph(note, "note") if note else "")


def hints(facts: Facts) -> str:
    """The hints on the results."""
    several = len(facts.runs) > 1
    lines = []
    for run in facts.runs:
        name = f"{run.name}: " if several else ""
        if run.record.error:
            lines.append(paragraph(f"{name}{run.record.error}", "trouble"))
        lines += [paragraph(f"{name}{hint}", "hint") for hint in run.record.hints]
    if len(lines) > 4:
        return folded("hints", f"{counted(len(lines), 'hint')} on the results", "".join(lines))
    return "".join(lines)


def details(facts: Facts, first: int) -> Iterator[str]:
    """Clients and classes, of one run at a time: at first of this one."""
    shown = detailed(facts)
    for number, run in enumerate(shown):
        prefix = f"run{number}-" if len(facts.runs) > 1 else ""
        parts = [
            section("Clients", clients(run, prefix)),
            section("Classes", classes(run, prefix)),
        ]
        inner = "".join(parts)
        hidden = "" if number == first else " hidden"
        yield f'<div data-run="{number}"{hidden}>{inner}</div>' if prefix else inner


def _cells(facts: Facts, group: Group, *, seeds: bool) -> Iterator[Cell]:
    yield Cell(group.name, style="long")
    if seeds:
        yield Cell(str(len(group.runs)), len(group.runs))
    done = min(run.record.rounds_done for run in group.runs)
    yield Cell(str(done), done)
    keys = [f"{facts.metric.column(kind)}_last" for kind in facts.kinds]
    keys += [f"{facts.metric.column(_used(facts))}_worst_last"] if facts.kinds else []
    for key in keys:
        found = group.estimate(key)
        yield Cell(found.text(facts.metric) if found else "–", found.mean if found else None)
    filled = group.estimate("density_global") or group.estimate("density_client")
    yield Cell(f"{filled.mean:.3f}" if filled else "–", filled.mean if filled else None)
    sent, took = group.estimate("bytes_total"), group.estimate("seconds")
    yield Cell(size(sent.mean) if sent else "–", sent.mean if sent else None)
    yield Cell(duration(took.mean) if took else "–", took.mean if took else None)
    diverged = sum(run.record.error is not None for run in group.runs)
    finished = sum(run.record.finished for run in group.runs)
    if diverged:
        yield Cell("diverged" if len(group.runs) == 1 else f"{diverged} diverged", style="badge")
    else:
        yield Cell("finished" if finished == len(group.runs) else f"round {done}")


def _unbroken(metric: Metric, value: float) -> str:
    """A figure whose unit stays in the same line."""
    return said(metric, value).replace(" ", "\N{NO-BREAK SPACE}")


def _used(facts: Facts) -> str:
    """The kind of model that clients would use, of those that were evaluated."""
    return facts.kinds[0]
