"""`sfedhp personalize`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click
from safetensors import SafetensorError, safe_open

from sfedhp.cli.options import METHOD, Settings, option_of, read_settings
from sfedhp.cli.output.columns import counted
from sfedhp.cli.output.tables import print_json, results
from sfedhp.cli.paths import Target
from sfedhp.config import Experiment
from sfedhp.core.errors import InputError
from sfedhp.runs.models import save_model
from sfedhp.runs.newcomers import Personalized, newcomer_of, read_models
from sfedhp.runs.newcomers import personalize as personalized
from sfedhp.runs.run import read_experiment

_SOURCE = "data.source"
_OUT = "choose another file with --out"
_KEYS = (_SOURCE, "data.test_share", "batch_size", "seed", "model.weight_decay")


@click.command()
@click.argument("folder", type=click.Path(path_type=Path), metavar="RUNDIR")
@click.argument("words", nargs=-1, metavar="data.source=FILE.npz [KEY=VALUE]...")
@click.option(
    "--start",
    default="best",
    show_default=True,
    metavar="NAME",
    help="best (by the loss on the newcomer's training rows), edge (the best edge's), global, or edge-0….",
)
@click.option(
    "--out",
    type=Target(),
    metavar="FILE",
    help="Where the model goes; by default RUNDIR/newcomers/NAME.safetensors, NAME being the data file's.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
def personalize(folder: Path, words: tuple[str, ...], start: str, out: Path | None, as_json: bool) -> None:
    """Give a client that was not in the training a model of its own.

    Takes the models of the run in RUNDIR and the newcomer's own rows (`inputs`, `labels`, and `test` where
    it is known which rows are for testing), chooses the global or an edge's model by its loss on the
    newcomer's training rows, and does with it what the method's client does: for sFedHP K steps of the inner
    problem, on all the newcomer's rows. Nobody else takes part. The run's settings hold; KEY=VALUE changes
    those of the method (`algorithm.…`), batch_size, seed, model.weight_decay or data.test_share.

    \b
    Examples:
      sfedhp personalize runs/mine data.source=newcomer.npz
      sfedhp personalize runs/mine data.source=newcomer.npz algorithm.personal_steps=50
      sfedhp personalize runs/mine data.source=newcomer.npz --start global --out own.safetensors --json
    """
    run = read_experiment(folder)
    given = read_settings(words)
    source = _source(given)
    if METHOD in [entry.key for entry in given.entries] and given.method != run.algorithm_name:
        raise InputError(
            f"The run in {folder} is of {run.algorithm_name}, whose steps a newcomer takes: leave "
            f"algorithm={given.method} out."
        )
    path = folder / "newcomers" / f"{source.stem}.safetensors" if out is None else out
    _check_out(path)
    newcomer = newcomer_of(replace(run, data=replace(run.data, test_share=_share(given, run))), source)
    experiment = read_settings([str(folder / "config.toml"), *words]).experiment()
    for line in given.left_out([run.algorithm_name]):
        click.echo(line, err=True)
    if not any(entry.key == "batch_size" for entry in given.entries):
        experiment = replace(experiment, batch_size=0)
    found = personalized(experiment, read_models(folder, newcomer.inputs.shape[1:]), newcomer, start)
    _save(found, path)
    if as_json:
        print_json(
            {
                "start": found.start,
                "losses": found.losses,
                "loss": found.loss,
                "before": found.before,
                "after": found.after,
                "rows": found.rows,
                "test_rows": found.test_rows,
                "halvings": found.halvings,
                "model": str(path),
            }
        )
        return
    console, rows = results(), counted(found.rows, "training row")
    for name, loss in sorted(found.losses.items(), key=lambda pair: pair[1]):
        mark = "  ← start" if name == found.start else ""
        console.print(f"{name:<10} loss {loss:.4f} on {rows}{mark}", soft_wrap=True)
    if found.halvings:
        rates = [entry.key for entry in given.entries if entry.key.endswith("_rate")]
        changed = any(option_of(run.algorithm_name, rate) for rate in rates)
        which = "as given" if changed else "with the run's own"
        console.print(
            f"rates      / {2**found.halvings}: {which} the steps overshoot on these rows", soft_wrap=True
        )
    if found.loss > found.losses[found.start]:
        why = "; sparsity may ask for it" if getattr(experiment.algorithm, "client_sparsity", 0) else ""
        console.print(
            f"own        loss {found.loss:.4f}: the steps cost fit on these rows, at lower rates too{why}",
            soft_wrap=True,
        )
    console.print(f"before     {found.before:.2f} % of {counted(found.test_rows, 'test row')}")
    console.print(f"after      {found.after:.2f} %")
    console.print(f"model      {path}", soft_wrap=True)


def _source(given: Settings) -> Path:
    for entry in given.entries:
        if entry.key not in _KEYS and entry.key != METHOD and not entry.key.startswith("algorithm."):
            raise InputError(f"{entry.key} means nothing here: only {', '.join(_KEYS)} and algorithm.… do.")
    named = [entry.value for entry in given.entries if entry.key == _SOURCE]
    if not named or not named[-1].endswith(".npz"):
        raise InputError("The newcomer's rows are missing: give them as data.source=FILE.npz.")
    return Path(named[-1])


def _share(given: Settings, run: Experiment) -> float:
    asked = any(entry.key == "data.test_share" for entry in given.entries)
    return given.experiment().data.test_share if asked else run.data.test_share


def _check_out(path: Path) -> None:
    """Refuse a file that is no place for a model, before any time is spent on one."""
    if not path.name or path.is_dir():
        raise InputError(f"The model cannot be written to '{path}', a folder: {_OUT}.")
    held = path.resolve().parent
    if held.name in ("models", "checkpoint") and (held.parent / "config.toml").exists():
        raise InputError(f"{path} is a place of the run's own models, which stay as they are: {_OUT}.")
    if not path.exists():
        return
    try:
        with safe_open(path, "pt"):
            pass
    except (OSError, SafetensorError):
        raise InputError(f"{path} is there and is no model, so it is not replaced: {_OUT}.") from None


def _save(found: Personalized, path: Path) -> None:
    try:
        save_model(path, found.model)
    except OSError as error:
        raise InputError(
            f"The model cannot be written to {path} ({error.strerror or error}): {_OUT}."
        ) from None
