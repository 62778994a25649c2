"""`sfedhp personalize`: train a model for a client that was not in the training."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click
from safetensors import SafetensorError, safe_open

from sfedhp.cli.execution import write_page
from sfedhp.cli.options import output_options, report_option
from sfedhp.cli.output.console import print_json, print_notes, results
from sfedhp.config import Experiment
from sfedhp.core.errors import InputError
from sfedhp.core.formats import counted
from sfedhp.data.registry import is_file
from sfedhp.runs.config_keys import option_of
from sfedhp.runs.folder import read_experiment, read_schema
from sfedhp.runs.model_card import ModelCard, has_card
from sfedhp.runs.models import save_model
from sfedhp.runs.newcomer_records import FOLDER, write_newcomer
from sfedhp.runs.newcomers import Personalized, newcomer_of
from sfedhp.runs.newcomers import personalize as train_own_model
from sfedhp.runs.provenance import METHOD, SOURCE
from sfedhp.runs.settings import Settings, read_settings, split_words
from sfedhp.runs.tensor_files import read_metadata

_OUT = "choose another file with --out"
_WIDTH = 10  # of the names before the lines of a result; longer names of edges make it larger
_KEYS = (SOURCE, "data.test_share", "batch_size", "seed", "model.weight_decay")


@click.command()
@click.argument("folder", type=click.Path(path_type=Path), metavar="RUNDIR")
@click.argument("words", nargs=-1, metavar="data.source=FILE [KEY=VALUE]...")
@click.option(
    "--start",
    default="best",
    show_default=True,
    metavar="NAME",
    help="best (lowest loss on the newcomer's training rows), edge (the best edge's), global, or edge-0….",
)
@output_options(
    out="The model to write; by default RUNDIR/newcomers/NAME.safetensors, where NAME is the data file's.",
    json="Print the result as one JSON object.",
    metavar="FILE",
)
@report_option
def personalize(
    folder: Path, words: tuple[str, ...], start: str, out: Path | None, as_json: bool, no_report: bool
) -> None:
    """Train a model for a client that was not in the training.

    Uses the models of the run in RUNDIR and the newcomer's own rows: an npz with `inputs`, `labels` (what the
    run predicts), and optionally `test`, which marks the rows to test on, or a table with the columns of the
    run's. They are scaled like the run's rows. The command chooses the global or an edge model by its loss on
    the newcomer's training rows, then takes the steps of the method's client: for sFedHP K steps of the inner
    problem, on all rows of the newcomer. It prints the run's main metric before and after; if the metric got
    worse, it keeps the model that it started from. No other client takes part. The run's settings apply;
    KEY=VALUE changes those of the method (`algorithm.…`), batch_size, seed, model.weight_decay or
    data.test_share.

    \b
    Examples:
      sfedhp personalize runs/mine data.source=newcomer.npz
      sfedhp personalize runs/hospitals data.source=new-ward.csv
      sfedhp personalize runs/mine data.source=newcomer.npz algorithm.personal_steps=50
      sfedhp personalize runs/mine data.source=newcomer.npz --start global --out own.safetensors --json
    """
    run = read_experiment(folder)
    if files := split_words(words).files:
        raise InputError(
            f"{files[0]} is not of the form KEY=VALUE: give the newcomer's rows as {SOURCE}=FILE."
        )
    settings = read_settings(words)
    source = _source(settings)
    _check_method(settings, run, folder)
    path = folder / FOLDER / f"{source.stem}.safetensors" if out is None else out
    _check_out(path)
    newcomer = newcomer_of(_with_test_share(run, settings), source, read_schema(folder))
    experiment = read_settings([str(folder / "config.toml"), *words]).experiment()
    print_notes(settings.ignored_keys([run.algorithm_name]))
    if not settings.sets("batch_size"):
        experiment = replace(experiment, batch_size=0)
    own = train_own_model(folder, newcomer, start=start, experiment=experiment)
    if path.exists():
        keep = _OUT if out else "name the newcomers' files differently, or use --out"
        print_notes([f"{path} held a model already, which is replaced: to keep both, {keep}."])
    _save(own, path, _card(folder, own, path.stem))
    if as_json:
        _print_json(own, path)
    else:
        _print(own, path, _rates_changed(settings, run), _is_sparse(experiment))
    if out is None:
        write_newcomer(path, own.to_dict())
        if not no_report:
            write_page(folder, as_json=as_json)


def _source(settings: Settings) -> Path:
    """The file of the newcomer's rows.

    Raises:
        InputError: none is given, or a key is set that has no effect here.
    """
    for entry in settings.entries:
        if entry.key not in _KEYS and entry.key != METHOD and not entry.key.startswith("algorithm."):
            raise InputError(f"{entry.key} has no effect here: set only {', '.join(_KEYS)} and algorithm.….")
    files = [entry.value for entry in settings.entries if entry.key == SOURCE]
    if not files or not is_file(files[-1]):
        raise InputError(
            "The newcomer's rows are missing: give them as data.source=FILE, like the run's data."
        )
    return Path(files[-1])


def _check_method(settings: Settings, run: Experiment, folder: Path) -> None:
    if settings.sets(METHOD) and settings.method != run.algorithm_name:
        raise InputError(
            f"The run in {folder} used {run.algorithm_name}, and a newcomer takes the steps of that method: "
            f"leave algorithm={settings.method} out."
        )


def _with_test_share(run: Experiment, settings: Settings) -> Experiment:
    """The run's experiment, with the share of test rows that the command line sets."""
    if not settings.sets("data.test_share"):
        return run
    return replace(run, data=replace(run.data, test_share=settings.experiment().data.test_share))


def _rates_changed(settings: Settings, run: Experiment) -> bool:
    """Whether the command line sets a rate of the run's method."""
    rates = {rule.rate.name for rule in run.algorithm.step_rules()}
    keys = [entry.key for entry in settings.entries if entry.key.rpartition(".")[2] in rates]
    return any(option_of(run.algorithm_name, key) for key in keys)


def _is_sparse(experiment: Experiment) -> bool:
    """Whether a client's steps have a sparsity penalty."""
    rules = [rule for rule in experiment.algorithm.step_rules() if rule.uses_data]
    return any(rule.sparsity is not None and rule.sparsity.value > 0 for rule in rules)


def _check_out(path: Path) -> None:
    """Refuse a file that no model may be written to, before one is trained."""
    if not path.name or path.is_dir():
        raise InputError(f"The model cannot be written to '{path}', a folder: {_OUT}.")
    parent = path.resolve().parent
    if parent.name in ("models", "checkpoint") and (parent.parent / "config.toml").exists():
        raise InputError(f"{path} is where the run keeps its own models, which must not change: {_OUT}.")
    if not path.exists():
        return
    try:
        with safe_open(path, "pt"):
            pass
    except (OSError, SafetensorError):
        raise InputError(f"{path} exists and is not a model, so it is not replaced: {_OUT}.") from None


def _card(folder: Path, own: Personalized, name: str) -> ModelCard | None:
    """What the file says of the newcomer's model; None if the model it starts from has no card."""
    start = folder / "models" / f"{own.start}.safetensors"
    metadata = read_metadata(start)
    if not has_card(metadata):
        return None
    figure = own.before if own.worse else own.after
    metrics = {own.metric.name: figure, "test_rows": float(own.test_rows)}
    return replace(ModelCard.from_metadata(str(start), metadata), tier="client", name=name, metrics=metrics)


def _save(own: Personalized, path: Path, card: ModelCard | None) -> None:
    try:
        save_model(path, own.model, own.classes, card)
    except OSError as error:
        reason = error.strerror or error
        raise InputError(f"The model cannot be written to {path} ({reason}): {_OUT}.") from None


def _print_json(own: Personalized, path: Path) -> None:
    print_json(own.to_dict() | {"model": str(path)})


def _print(own: Personalized, path: Path, rates_changed: bool, sparse: bool) -> None:
    rows, test_rows = counted(own.rows, "training row"), counted(own.test_rows, "test row")
    metric = own.metric
    lines = []
    for name, loss in sorted(own.losses.items(), key=lambda pair: pair[1]):
        mark = "  ← start" if name == own.start else ""
        lines.append((name, f"loss {loss:.4f} on {rows}{mark}"))
    if own.halvings:
        rates = "the given rates" if rates_changed else "the run's own rates"
        lines.append(("rates", f"/ {2**own.halvings}: with {rates} the steps overshoot on these rows"))
    if own.loss > own.losses[own.start]:
        why = "; the sparsity penalty can cause this" if sparse else ""
        raised = f"loss {own.loss:.4f}: the steps raise the loss on these rows, at any lower rate{why}"
        lines.append(("own", raised))
    if metric.name == "accuracy":
        lines += [("before", f"{own.before:.2f} % of {test_rows}"), ("after", f"{own.after:.2f} %")]
    else:
        unit = " %" if metric.percent else ""
        before, after = (f"{metric.title} {metric.text(value)}{unit}" for value in (own.before, own.after))
        lines += [("before", f"{before} on {test_rows}"), ("after", after)]
    if own.worse:
        lines.append(("kept", f"{own.start}: the steps made it worse on the test rows"))
    lines.append(("model", str(path)))
    width = max(_WIDTH, *(len(name) for name, _ in lines))
    for name, text in lines:
        results().print(f"{name:<{width}} {text}", soft_wrap=True)
