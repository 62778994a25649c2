"""`sfedhp predict`: predict with a model that a run saved."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import click

from sfedhp.cli.options import output_options
from sfedhp.cli.output.console import print_json
from sfedhp.core.errors import InputError
from sfedhp.core.files import write_text
from sfedhp.serving.predict import predict as predict_rows
from sfedhp.serving.saved_model import read_saved_model


@click.command()
@click.option(
    "--model",
    "model",
    required=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="A model of a run.",
)
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
    """Predict with a saved model: the class of each row, and the probability of each class.

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
        classes = [found.schema.class_name(label) for label in range(found.schema.classes)]
        print_json(
            {
                "model": str(model),
                "rows": len(found.labels),
                "classes": classes,
                "predictions": found.names,
                "probabilities": found.probabilities.tolist(),
            }
        )
    elif out is None:
        click.echo(found.to_csv(), nl=False)
    else:
        counts = ", ".join(f"{count} {name}" for name, count in Counter(found.names).most_common())
        click.echo(f"{len(found.labels)} rows: {counts}")
        click.echo(f"predictions  {out}")
