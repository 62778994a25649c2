"""`sfedhp predict`: predict with a model that a run saved."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import click

from sfedhp.cli.options import model_option, output_options
from sfedhp.cli.output.console import print_json
from sfedhp.core.errors import InputError
from sfedhp.core.files import write_text
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

    The model file is enough. It says how the rows have to be scaled, which columns of a table it needs and
    what the classes are called. Data that does not fit is refused.

    \b
    Examples:
      sfedhp predict --model runs/first/models/global.safetensors --data new.csv
      sfedhp predict --model runs/first/models/client-0-1.safetensors --data new.csv --out predicted.csv
      sfedhp predict --model runs/first/models/edge-0.safetensors --data new.npz --json
    """
    found = predict_rows(read_saved_model(model), data)
    if out is not None:
        try:
            write_text(out, found.to_csv())
        except OSError as error:
            raise InputError(f"{out} cannot be written ({error.strerror}): choose another file.") from None
    if as_json:
        print_json(
            {
                "model": str(model),
                "problem": found.schema.problem,
                "rows": len(found.outputs),
                "outputs": found.schema.output_names,
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
        click.echo(f"{len(found.outputs)} rows{counts}")
        click.echo(f"predictions  {out}")


def _probabilities(found: Predictions) -> dict[str, list[list[float]]]:
    """The probability of each class or label, where such are predicted."""
    if found.schema.problem not in ("classification", "multilabel"):
        return {}
    return {"probabilities": found.outputs.tolist()}
