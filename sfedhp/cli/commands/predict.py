"""`sfedhp predict`: predict with a model that a run saved."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import click

from sfedhp.cli.options import model_option, output_options
from sfedhp.cli.output.console import print_json
from sfedhp.core.errors import InputError
from sfedhp.core.files import write_text, writing
from sfedhp.core.formats import counted
from sfedhp.serving.predict import Predictions
from sfedhp.serving.predict import predict as predict_rows
from sfedhp.serving.saved_model import read_saved_model


@click.command()
@model_option
@click.option(
    "--data",
    required=True,
    type=click.Path(path_type=Path),
    metavar="DATA",
    help="Rows like the training data: .csv, .parquet, .npz with `inputs`, an image, or a folder of images. "
    "A target is not needed.",
)
@output_options(
    out="Write the predictions to this CSV file instead of printing them.",
    json="Print the predictions as one JSON object.",
    metavar="CSV",
)
def predict(model: Path, data: Path, out: Path | None, as_json: bool) -> None:
    """Predict with a saved model: classes and their probabilities, or numbers in the target's own units.

    Only the model file is needed. It contains the scaling of rows, the columns of a table and the names of
    classes. Data that does not fit is rejected.

    \b
    Examples:
      sfedhp predict --model runs/first/models/global.safetensors --data new.csv
      sfedhp predict --model runs/first/models/client-0-1.safetensors --data new.csv --out predicted.csv
      sfedhp predict --model runs/first/models/edge-0.safetensors --data new.npz --json
    """
    if out is not None:
        _check_out(out, data)
    found = predict_rows(read_saved_model(model), data)
    if out is not None:
        with writing(out):
            write_text(out, found.to_csv())
    if as_json:
        print_json(
            {
                "model": str(model),
                "problem": found.schema.problem,
                "rows": len(found.outputs),
                "outputs": found.schema.output_names,
                **({"files": list(found.files)} if found.files else {}),
                "predictions": found.values,
                **_probabilities(found),
            }
        )
    elif out is None:
        click.echo(found.to_csv(), nl=False)
    else:
        counts = ""
        if found.schema.problem == "classification":
            most = Counter(found.values).most_common()
            counts = ": " + ", ".join(f"{count} {name}" for name, count in most)
        click.echo(f"{counted(len(found.outputs), 'row')}{counts}")
        click.echo(f"predictions  {out}")


def _check_out(out: Path, data: Path) -> None:
    """Refuse to replace what is no table of predictions."""
    if out.suffix.lower() != ".csv":
        raise InputError(f"{out} must end in .csv: name it, for example, predicted.csv.")
    if out.exists() and data.exists() and out.samefile(data):
        raise InputError(f"{out} holds the rows to predict: choose another file for the predictions.")


def _probabilities(found: Predictions) -> dict[str, list[list[float]]]:
    """The probability of each class or label, where such are predicted."""
    if found.schema.problem not in ("classification", "multilabel"):
        return {}
    return {"probabilities": found.outputs.tolist()}
