"""The results as tables for other programs: CSV with a line for each run, LaTeX with one for each setting."""

from __future__ import annotations

import csv
import io
import re
from typing import Final

from sfedhp.report.facts import Facts
from sfedhp.report.wording import capitalized

_LATEX: Final = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    **{character: f"\\{character}" for character in "&%$#_{}"},
}


def csv_table(facts: Facts) -> str:
    """A line for each run: setting, name, method, seed, and the keys of `Run.summary`."""
    lines = [
        {"setting": group.name, "run": run.name, **run.summary}
        for group in facts.groups
        for run in group.runs
    ]
    names = list(dict.fromkeys(name for line in lines for name in line))
    text = io.StringIO(newline="")
    table = csv.DictWriter(text, names, lineterminator="\n")
    table.writeheader()
    table.writerows(lines)
    return text.getvalue()


def latex_table(facts: Facts) -> str:
    """A table for `booktabs`: the mean over seeds, ± the standard deviation if there are several."""
    kinds = facts.kinds
    seeds = sorted({len(group.runs) for group in facts.groups})
    several = seeds[-1] > 1
    heads = [kind.upper() for kind in kinds]
    lines = []
    for group in facts.groups:
        cells = [group.estimate(f"{facts.metric.column(kind)}_last") for kind in kinds]
        texts = [
            "--" if cell is None else f"${cell.text(facts.metric).replace('±', chr(92) + 'pm')}$"
            for cell in cells
        ]
        lines.append(f"{latex(group.name)} & {' & '.join(texts)} \\\\")
    counted = f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    unit = ", in percent" if facts.metric.percent else ""
    caption = [
        latex(facts.sentence),
        f"{latex(capitalized(facts.metric.title))} on test rows after the last round{unit}",
    ]
    spread = f" (mean $\\pm$ standard deviation over {counted} seeds)." if several else "."
    return "\n".join(
        [
            "% Needs \\usepackage{booktabs}.",
            "\\begin{table}",
            "  \\centering",
            f"  \\caption{{{' '.join(caption)}{spread}}}",
            f"  \\begin{{tabular}}{{l{'r' * len(kinds)}}}",
            "    \\toprule",
            f"    setting & {' & '.join(heads)} \\\\",
            "    \\midrule",
            *(f"    {line}" for line in lines),
            "    \\bottomrule",
            "  \\end{tabular}",
            "\\end{table}",
            "",
        ]
    )


def latex(text: str) -> str:
    """The text with LaTeX's own characters escaped."""
    return re.sub(r"[\\~^&%$#_{}]", lambda found: _LATEX[found[0]], text)
