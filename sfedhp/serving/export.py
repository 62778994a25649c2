"""A saved model as an ONNX file that needs neither this package nor torch, checked before it is kept."""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from sfedhp.core.errors import InputError
from sfedhp.core.files import write_atomically, write_text, writing
from sfedhp.core.imports import reason_of
from sfedhp.data.schema import Schema
from sfedhp.nn.probe import as_taken
from sfedhp.runs.federation import federation_of
from sfedhp.runs.folder import holds_run, read_experiment
from sfedhp.serving.graph import Graph
from sfedhp.serving.predict import predict_inputs
from sfedhp.serving.rows import Source, read_rows, scaled
from sfedhp.serving.saved_model import SavedModel

TOLERANCE: Final = 1e-5  # of probabilities; of numbers, times a standard deviation of the training rows
_MOST_ROWS = 1024  # that are compared


@dataclass(frozen=True)
class Exported:
    """An ONNX file that was written."""

    path: Path
    card: Path  # the card of the model, written as JSON next to it
    rows: int  # on which it was compared with torch
    difference: float  # the largest, of probabilities or in standard deviations


def export_onnx(saved: SavedModel, out: Path, data: Source | None = None) -> Exported:
    """Write a model as ONNX, with scaling and running statistics inside, if it predicts the same as torch.

    Args:
        saved: the model.
        out: the .onnx file; a card of the same name, ending in .json, is written beside it.
        data: rows to compare both on, like the training data; None: the test rows of the run in
            whose folder the model is.

    Raises:
        InputError: there are no rows, the model cannot be written as ONNX, or its predictions differ there.
    """
    if out.suffix != ".onnx":
        raise InputError(f"{out} must end in .onnx: name it, for example, model.onnx.")
    if not out.parent.is_dir():
        raise InputError(f"There is no folder {out.parent}: make it, or choose another file.")
    _check_installed()
    name, inputs = _rows_of_run(saved) if data is None else read_rows(saved.card.schema, data)
    inputs = inputs[np.unique(np.linspace(0, len(inputs) - 1, _MOST_ROWS).astype(int))]
    expected = predict_inputs(saved, name, inputs).outputs
    taken = as_taken(saved.module, scaled(saved.card.schema, name, inputs, saved.dtype))
    graph = Graph(saved, tokens=not taken.is_floating_point()).eval()
    rows = torch.from_numpy(inputs).to(graph.input_type)
    program = _program(graph, rows, saved)
    program.model.metadata_props.update(saved.card.to_metadata())
    card, difference = out.with_suffix(".json"), 0.0

    def write(beside: Path) -> None:
        nonlocal difference
        program.save(beside, external_data=False)
        found = _run(beside, rows.numpy())
        difference = float((np.abs(found - expected) / _units(saved.card.schema)).max())
        if not difference <= TOLERANCE:
            raise InputError(
                f"The ONNX file is not kept: its predictions differ from those of torch by {difference:.1e} "
                f"on {len(rows)} rows, more than {TOLERANCE:.0e}."
            )
        content = _card(saved, graph, program, len(rows), difference)
        write_text(card, json.dumps(content, ensure_ascii=False, indent=2) + "\n")

    with writing(out):
        write_atomically(out, write)
    return Exported(out, card, len(rows), difference)


def _check_installed() -> None:
    try:
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401 - torch.onnx needs it
    except ImportError:
        raise InputError("An export needs onnxscript and onnxruntime: pip install 'sfedhp[onnx]'.") from None


def _rows_of_run(saved: SavedModel) -> tuple[str, NDArray[Any]]:
    """The test rows of the run in whose folder the model is, and how messages call them."""
    folder = saved.path.absolute().parent.parent
    why = f"{folder} holds no run"
    if holds_run(folder):
        try:
            federation, _ = federation_of(read_experiment(folder))
            return f"the data of {folder}", federation.inputs[np.unique(np.concatenate(federation.test))]
        except InputError as error:
            why = str(error).rstrip(".")
    raise InputError(
        f"There are no rows to check the ONNX file on ({why}): give some like the training data with --data."
    )


def _program(graph: Graph, rows: torch.Tensor, saved: SavedModel) -> Any:
    """The module as an ONNX program for any number of rows."""
    some = rows[:1].expand(2, *rows.shape[1:]).contiguous()  # torch.export treats a size of 1 as fixed
    try:
        with _quiet():
            return torch.onnx.export(
                graph,
                (some,),
                dynamo=True,
                verbose=False,
                input_names=["rows"],
                output_names=[graph.output_name],
                dynamic_shapes=({0: torch.export.Dim("rows")},),
            )
    except Exception as error:  # a user's forward may do anything, and torch has many errors of its own
        raise InputError(
            f"The model {saved.card.model.name} cannot be written as ONNX "
            f"({reason_of(_first(error))}): use layers that torch.onnx.export knows."
        ) from error


def _first(error: BaseException) -> Exception:
    """The original error: torch wraps it in several of its own."""
    while error.__cause__ is not None:
        error = error.__cause__
    assert isinstance(error, Exception)
    return error


@contextmanager
def _quiet() -> Iterator[None]:
    """A context without the exporter's own output, such as deprecations and a missing torchvision."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _run(path: Path, rows: NDArray[Any]) -> NDArray[Any]:
    """The predictions of onnxruntime: for the first row alone, then for all others at once."""
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    parts = [session.run(None, {"rows": part})[0] for part in (rows[:1], rows[1:]) if len(part)]
    return np.concatenate(parts)


def _units(schema: Schema) -> NDArray[np.float64]:
    """The unit of each output: a standard deviation for numbers."""
    scaling = schema.scaling if schema.problem == "reconstruction" else schema.target_scaling
    if scaling is None:
        return np.ones(())
    spread = np.where(np.isinf(scaling.spread), 1, scaling.spread)
    return np.broadcast_to(spread, schema.shape).ravel() if schema.problem == "reconstruction" else spread


def _card(saved: SavedModel, graph: Graph, program: Any, rows: int, difference: float) -> dict[str, Any]:
    """The JSON card: what another program needs to use the file, and the model's card."""
    schema = saved.card.schema
    names = {} if schema.encoding is None else {"names": list(schema.encoding.inputs)}
    kind = str(graph.input_type).removeprefix("torch.")
    return {
        "input": {"name": "rows", "type": kind, "shape": ["rows", *schema.shape], **names},
        "output": {"name": graph.output_name, "names": schema.output_names},
        "opset": program.model.opset_imports[""],
        "checked": {"rows": rows, "largest_difference": difference, "tolerance": TOLERANCE},
        **saved.card.to_dict(),
    }
