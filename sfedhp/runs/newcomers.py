"""A model for a client that joins after training, made from the global or an edge's model of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from sfedhp.config import Experiment
from sfedhp.core.errors import InputError
from sfedhp.core.formats import counted
from sfedhp.core.imports import user_code
from sfedhp.data.columns import sorted_names
from sfedhp.data.newcomer import Newcomer, load_newcomer
from sfedhp.data.schema import Schema
from sfedhp.nn.network import Network
from sfedhp.nn.probe import as_taken
from sfedhp.nn.problems import Metric
from sfedhp.runs.build import Model, Rows, build_task, client_keys
from sfedhp.runs.folder import read_experiment, read_schema
from sfedhp.runs.models import read_model
from sfedhp.runs.newcomer_fit import HALVINGS, fit
from sfedhp.runs.newcomer_scores import counting_of, evaluate, score
from sfedhp.runs.prepare import FROM_PYTHON
from sfedhp.runs.results import Run


@dataclass(frozen=True)
class Personalized:
    """A newcomer's model and how much it gained."""

    own_model: nn.Module  # after the steps
    start_model: nn.Module  # before them
    classes: int  # 0 where no classes are predicted
    start: str  # the model it was made from, by the name of its file: "global" or "edge-i"
    losses: dict[str, float]  # on the newcomer's training rows, of each model it could start from
    metric: Metric  # the problem's own
    before: float  # the metric of the start on the newcomer's test rows
    after: float  # of its own model
    rows: int  # it trained on
    test_rows: int
    halvings: int  # of the method's rates, before steps with them gave this model
    loss: float  # of its own model on its training rows; above that of the start if no rate lowers it

    @property
    def model(self) -> nn.Module:
        """The model that is better on its test rows: its own, or the one that it started from."""
        return self.start_model if self.worse else self.own_model

    @property
    def worse(self) -> bool:
        """Whether its own model is worse on its test rows than the one it was made from, which is kept."""
        return self.metric.better(self.before, self.after)

    def to_dict(self) -> dict[str, Any]:
        """The figures as JSON can hold them."""
        names = ("start", "losses", "loss", "before", "after", "rows", "test_rows", "halvings")
        kept = "start" if self.worse else "own"
        return {name: getattr(self, name) for name in names} | {"metric": self.metric.name, "kept": kept}


def personalize(
    run: Run | Path | str,
    data: Newcomer | Mapping[str, Any] | Path | str,
    *,
    start: str = "best",
    experiment: Experiment | None = None,
    model: Model | None = None,
) -> Personalized:
    """Make a model for a client that was not in the training, from a run's models and the client's own rows.

    The newcomer takes the steps that the method's client takes after its first message. For sFedHP these are
    K steps on ℓ(θ) + γ₁ φ_ρ(θ) + λ₁/2 ‖θ − φ‖² from φ, the model it starts from. No other client takes part,
    and nothing of the run changes.

    Args:
        run: a run, or the folder of one; its data need not be here.
        data: the newcomer's rows: a file like the run's, a mapping of arrays (`inputs`, `labels`, optionally
            `test`; labels are what the run predicts, and a reconstruction needs none), or a client that
            `sfedhp.data.hold_out` took out of a federation.
        start: the model to start from: "best" (the lowest loss on the newcomer's training rows), "edge" (the
            best of the edges' models), "global", or "edge-i".
        experiment: other settings of the steps; None: the run's, on all rows of the newcomer in each step.
        model: the user's own module, where `run` is a folder and the run had one from Python.

    Raises:
        InputError: there is no such model, the rows do not fit it, or the steps diverge at all rates.
    """
    recorded = run.experiment if isinstance(run, Run) else experiment or read_experiment(Path(run))
    schema = run.schema if isinstance(run, Run) else read_schema(Path(run))
    newcomer = data if isinstance(data, Newcomer) else newcomer_of(recorded, data, schema)
    if isinstance(run, Run):
        models = {name: each.cpu() for name, each in shared_models(run).items()}
    else:
        models = read_models(run, newcomer.inputs.shape[1:], model, recorded)
    return adapt(experiment or replace(recorded, batch_size=0), models, newcomer, start)


def newcomer_of(
    experiment: Experiment, data: Mapping[str, Any] | Path | str, schema: Schema | None = None
) -> Newcomer:
    """A newcomer's rows from a file or a mapping of arrays, divided and scaled as the run's.

    Args:
        experiment: the run's.
        data: the rows.
        schema: of the run's data; None in the folders of earlier versions.

    Raises:
        InputError: the rows are not what they must be, or are those of several clients.
    """
    return load_newcomer(
        data,
        experiment.data,
        edges=experiment.edges,
        clients_per_edge=experiment.clients_per_edge,
        seed=experiment.seed,
        dtype=experiment.dtype,
        schema=schema,
    )


def shared_models(run: Run) -> dict[str, nn.Module]:
    """The models of a run that a newcomer can start from, by name: `global` and `edge-i`.

    Raises:
        InputError: the method has none.
    """
    edges = {run.models.names.edge_file(i): each for i, each in enumerate(run.edge_models)}
    models = {"global": run.global_model} | edges
    found = {name: each for name, each in models.items() if each is not None}
    _check_predict(found, "This run", run.experiment)
    return found


def read_models(
    folder: Path | str,
    shape: Sequence[int],
    model: Model | None = None,
    experiment: Experiment | None = None,
) -> dict[str, nn.Module]:
    """The same from the folder of a run; its data need not be here.

    Args:
        folder: the run's.
        shape: of one input.
        model: the user's module, if the run was started with one from Python.
        experiment: the run's; None: as its folder says.

    Raises:
        InputError: the folder holds no such models, or they take inputs of another shape.
    """
    folder = Path(folder)
    experiment = experiment or read_experiment(folder)
    if experiment.model.name == FROM_PYTHON and model is None:
        raise InputError(f"The model of {folder} came from Python: call sfedhp.personalize with model=...")
    if not (models := folder / "models").is_dir():
        raise InputError(f"{folder} is not finished and has no models yet: let the run end first.")
    found = [path.stem.partition("-")[2] for path in models.glob("edge-*.safetensors")]
    edges = [models / f"edge-{name}.safetensors" for name in sorted_names(set(found))]
    files = [*models.glob("global.safetensors"), *edges]
    modules = {path.stem: read_model(path, experiment, shape, model) for path in files}
    _check_predict(modules, str(folder), experiment)
    return modules


def adapt(
    experiment: Experiment, models: Mapping[str, nn.Module], newcomer: Newcomer, start: str = "best"
) -> Personalized:
    """`personalize`, for models that are already loaded.

    Rates that suit the training, where clients stay near their models, may overshoot on new rows. If the
    steps end with a larger loss on the newcomer's training rows than they began with, they are repeated with
    all the method's rates halved. If no rate helps (sparsity may cost fit), the run's own rates are used,
    unless they end worse than a guess.

    Args:
        experiment: its method and that method's options decide the steps; with `batch_size` 0 each step uses
            all rows of the newcomer.
        models: the run's global and edges' models, as `shared_models` or `read_models` gives them.
        newcomer: its rows.
        start: as in `personalize`.

    Raises:
        InputError: there is no such model, the rows do not fit it, or the steps diverge at all rates.
    """
    _check_predict(models, "This experiment", experiment)
    names = _start_names(models, start)
    dtype, some = experiment.torch_dtype, next(iter(models.values()))
    outputs = _check_rows(newcomer, some, dtype)
    counting = counting_of(experiment, newcomer, outputs)
    inputs, test_inputs = (
        as_taken(some, torch.from_numpy(part).to(dtype)) for part in (newcomer.inputs, newcomer.test_inputs)
    )
    labels, test_labels = (torch.from_numpy(part) for part in (newcomer.labels, newcomer.test_labels))
    losses = {name: evaluate(models[name], inputs, labels, counting).loss for name in names}
    chosen = min(losses, key=lambda name: losses[name])
    network = Network(models[chosen])
    received, statistics = (part.to(dtype) for part in network.initial())
    rows = Rows(inputs, labels, torch.tensor(len(labels)))
    keys = client_keys(experiment, torch.tensor(experiment.clients))
    classes = outputs if newcomer.problem == "classification" else 0
    task = build_task(experiment, network, rows, keys, classes, counting.loss)
    guess = score(torch.zeros(len(labels), outputs, dtype=dtype), labels, counting).loss
    found = fit(
        experiment.algorithm, received, replace(task, statistics=statistics), losses[chosen], guess, counting
    )
    if found is None:
        raise InputError(
            f"The steps diverge on the newcomer's rows, even with all rates divided by {2**HALVINGS}: "
            f"set lower ones (algorithm.…_rate), or use the run's {chosen} model as it is."
        )
    before, after = (
        evaluate(each, test_inputs, test_labels, counting).value for each in (models[chosen], found.model)
    )
    return Personalized(
        own_model=found.model,
        start_model=models[chosen],
        classes=classes,
        start=chosen,
        losses=losses,
        metric=counting.metrics[0],
        before=before,
        after=after,
        rows=len(labels),
        test_rows=len(test_labels),
        halvings=found.halvings,
        loss=found.loss,
    )


def _start_names(models: Mapping[str, nn.Module], start: str) -> list[str]:
    """The names of the models from which the best is chosen."""
    names = {
        "best": list(models),
        "edge": [name for name in models if name.startswith("edge-")],
    }.get(start, [start])
    if not names or any(name not in models for name in names):
        raise InputError(f"There is no model {start!r} to start from: use best, {', '.join(models)}.")
    return names


def _check_predict(models: Mapping[str, nn.Module], where: str, experiment: Experiment) -> None:
    """Reject a run without a model that a newcomer could start from."""
    if not models or experiment.algorithm.predicts_from_features:
        raise InputError(
            f"{where} has no global or edge's model that predicts ({experiment.algorithm_name}), and a "
            f"newcomer needs one to start from: use a run of sfedhp, or of another method that has one."
        )


def _check_rows(newcomer: Newcomer, model: nn.Module, dtype: torch.dtype) -> int:
    """The number of outputs of the model, if the rows fit it."""
    sample = torch.from_numpy(newcomer.inputs[:1]).to(dtype)
    failure = f"The newcomer's inputs of shape {tuple(sample.shape[1:])} do not fit the run's model"
    with torch.no_grad(), user_code(failure, "give rows like those it was trained on"):
        outputs: int = model.eval()(as_taken(model, sample)).shape[-1]
    if newcomer.problem != "classification":
        width = newcomer.labels.shape[1]
        if width != outputs:
            raise InputError(
                f"The newcomer's rows have {counted(width, 'target')}, but the run's model predicts "
                f"{outputs}: give rows with the run's targets."
            )
        return outputs
    largest = int(max(newcomer.labels.max(), newcomer.test_labels.max()))
    if largest >= outputs:
        raise InputError(
            f"The newcomer's rows have a label {largest}, but the run's model knows {outputs} classes, "
            f"0 to {outputs - 1}: leave such rows out."
        )
    return outputs
