"""`sfedhp export`: write a saved model as ONNX."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from sfedhp.cli.options import OutputPath, json_option, model_option
from sfedhp.cli.output.console import print_json
from sfedhp.core.formats import counted
from sfedhp.serving.export import export_onnx
from sfedhp.serving.saved_model import read_saved_model


@click.command()
@model_option
@click.option(
    "--onnx",
    "out",
    required=True,
    type=OutputPath(),
    metavar="OUT",
    help="The .onnx file to write; its card, OUT with the ending .json, is written beside it.",
)
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    metavar="DATA",
    help="Rows like the training data, on which the file is compared with torch; by default the test rows "
    "of the run that the model is from.",
)
@json_option("Print what was written as one JSON object.")
def export(model: Path, out: Path, data: Path | None, as_json: bool) -> None:
    """Write a saved model as ONNX, for programs that have neither sfedhp nor torch.

    The file takes rows as in the data, because it contains scaling and running statistics. Its outputs are
    those of `sfedhp predict`. The command keeps the file only if onnxruntime predicts the same as torch,
    within 1e-5, on real rows. Needs the extra `onnx`.

    \b
    Examples:
      sfedhp export --model runs/first/models/global.safetensors --onnx global.onnx
      sfedhp export --model own.safetensors --onnx own.onnx --data rows.npz
    """
    done = export_onnx(read_saved_model(model), out, data)
    if as_json:
        print_json(
            {name: str(value) if isinstance(value, Path) else value for name, value in asdict(done).items()}
        )
        return
    click.echo(f"model  {done.path}")
    click.echo(f"card   {done.card}")
    click.echo(
        f"{counted(done.rows, 'row')} predicted as by torch: the largest difference is {done.difference:.1e}"
    )
