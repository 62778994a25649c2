"""The models of a run, as modules and as files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from torch import Tensor, nn

from sfedhp.algorithms.base import Algorithm
from sfedhp.config import Experiment
from sfedhp.core.checksums import DamagedError
from sfedhp.core.errors import InputError
from sfedhp.core.factored import Factored, dense
from sfedhp.core.trees import tree_map
from sfedhp.core.types import Clock
from sfedhp.engine.simulator import Simulator
from sfedhp.engine.state import State
from sfedhp.nn.models import restored
from sfedhp.nn.presets import MODELS
from sfedhp.nn.task import Task
from sfedhp.runs.build import Model, build_network
from sfedhp.runs.model_card import Cards, ModelCard, Tier
from sfedhp.runs.model_names import ModelNames
from sfedhp.runs.tensor_files import named_tensors, read_tensors, write_tensors

_CLASSES: Final = "classes"  # in the metadata of a model file


class Models:
    """The models of a simulation: one global model, a model for each edge, a model for each client.

    A global or an edge's model has the mean of its clients' running statistics, a client's model its own.
    """

    def __init__(
        self,
        simulator: Simulator,
        state: State,
        edge_sizes: Sequence[int],
        names: ModelNames,
        run: tuple[int, ...] = (),
    ):
        self._simulator, self._state = simulator, state
        self._network = simulator.task.network
        self._edge_sizes = edge_sizes  # seats of each edge
        self.names = names
        self._run = run  # its place in a stack of runs; empty without one

    def global_model(self) -> nn.Module | None:
        """w, or None if the method has no global model."""
        served = self._state.served
        model = self._simulator.algorithm.global_model(served.state)
        return None if model is None else self._network.build(model[self._run], served.statistics[self._run])

    def edge_model(self, edge: int) -> nn.Module | None:
        """The model of an edge's site, or None if the method has none."""
        edges, place = self._state.edges, (*self._run, edge)
        model = None if edges is None else self._simulator.algorithm.edge_model(edges.state)
        return (
            None
            if model is None or edges is None
            else self._network.build(model[place], edges.statistics[place])
        )

    def client_model(self, edge: int, client: int) -> nn.Module | None:
        """A client's own model, or None if the method has none or the seat is empty."""
        seat = self._simulator.seats.index(edge, client)
        if seat is None or self._personal is None:
            return None
        place = (*self._run, *seat)
        statistics = self._state.statistics[place]
        if not isinstance(self._personal, Tensor | Factored):
            own = tree_map(lambda tensor: tensor[place], self._personal)
            task = replace(self._simulator.task, statistics=self._state.statistics).map(
                lambda each: each[place]
            )
            return Predictor(self._simulator.algorithm, task, own)
        return self._network.build(_at(self._personal, place), statistics)

    def edge(self, name: str) -> nn.Module | None:
        """The model of the edge of this name in the data, or of `edge-i` if the data has no names.

        Raises:
            InputError: there is none.
        """
        return self.edge_model(self.names.find_edge(name))

    def client(self, name: str) -> nn.Module | None:
        """The model of the client of this name in the data, or of `client-i-j` if the data has no names.

        Raises:
            InputError: there is none.
        """
        return self.client_model(*self.names.find_client(name))

    def save(self, folder: Path, cards: Cards) -> None:
        """Write `global`, `edge-i` and `client-i-j` as safetensors, if the method has them.

        Where the data names edges and clients, their files have these names: `edge-north`, `client-ward_3`.

        Args:
            folder: made if it is not there.
            cards: of the run.
        """
        folder.mkdir(exist_ok=True)  # not its parents: a run's folder that was removed must not come back
        for name, place in self._files():
            module = self._model(*place)
            assert module is not None, "it has a file"
            save_model(
                folder / f"{name}.safetensors", module, self._simulator.task.classes, cards.card(*place)
            )

    def file_names(self, *, has_personal: bool = False) -> list[str]:
        """The names of the files that `save` writes, without their ending.

        Args:
            has_personal: whether clients are known to have models, which are then not computed to find out.
        """
        return [name for name, _ in self._files(has_personal)]

    def _files(self, has_personal: bool = False) -> Iterator[tuple[str, tuple[Tier, int, int]]]:
        """The name of each file, and the tier, edge and seat of its model."""
        algorithm, state = self._simulator.algorithm, self._state
        if algorithm.global_model(state.served.state) is not None:
            yield "global", ("global", 0, 0)
        has_edges = state.edges is not None and algorithm.edge_model(state.edges.state) is not None
        has_personal = has_personal or self._personal is not None
        for edge, clients in enumerate(self._edge_sizes):
            if has_edges:
                yield self.names.edge_file(edge), ("edge", edge, 0)
            for client in range(clients if has_personal else 0):
                if self._simulator.seats.index(edge, client) is not None:
                    yield self.names.client_file(edge, client), ("client", edge, client)

    def _model(self, tier: Tier, edge: int, client: int) -> nn.Module | None:
        """The model of a place, or None if there is none."""
        if tier == "global":
            return self.global_model()
        return self.edge_model(edge) if tier == "edge" else self.client_model(edge, client)

    @cached_property
    def _personal(self) -> Any:
        """The models that the clients predict with."""
        simulator, state = self._simulator, self._state
        lent = replace(simulator.task, statistics=state.statistics)
        return simulator.algorithm.personalize(
            simulator.received(state), state.personal, lent, Clock(state.round)
        )


class Predictor(nn.Module):
    """A module for methods whose prediction is more than a network: it calls the method's `predict`.

    Its state is what the method's `personalize` gave, each tensor under its path.
    """

    def __init__(self, algorithm: Algorithm, task: Task, parameters: Any):
        super().__init__()
        self._algorithm, self._task, self._template = algorithm, task, parameters
        for path, tensor in named_tensors(parameters):
            self.register_buffer(path.replace(".", "_"), tensor)

    def forward(self, inputs: Tensor) -> Tensor:
        """Class scores of inputs (rows, *shape)."""
        tensors = iter(list(self.buffers()))
        parameters = tree_map(lambda _: next(tensors), self._template)
        return self._algorithm.predict(parameters, self._task, inputs)


def save_model(path: Path, module: nn.Module, classes: int, card: ModelCard | None = None) -> None:
    """Write a model as a safetensors file, each tensor under its name in the module's `state_dict`.

    Args:
        path: the file; folders above it are made.
        module: the model.
        classes: that it tells apart, kept in the file's metadata.
        card: kept there too; None: nothing more is known.

    Raises:
        OSError: the disk is full, or the path cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # Tied weights share memory in the module, but not in the file.
    state = {name: value.detach().cpu().clone().contiguous() for name, value in module.state_dict().items()}
    if card is not None and isinstance(module, Predictor):
        card = replace(card, features=True)
    write_tensors(path, state, {_CLASSES: str(classes), **(card.to_metadata() if card is not None else {})})


def read_model(
    path: Path, experiment: Experiment, shape: Sequence[int], model: Model | None = None
) -> nn.Module:
    """The global or an edge's model in a file, ready to predict.

    Args:
        path: the file, in the folder `models` of a run.
        experiment: the run's.
        shape: of one input.
        model: the user's module, if the run was started with one from Python.

    Raises:
        InputError: the file cannot be read, or is not the run's model for inputs of this shape.
    """
    try:
        tensors, metadata = read_tensors(path)
    except (OSError, DamagedError) as error:
        raise InputError(f"{str(error).rstrip('.')}: restore {path} or run the training again.") from None
    network = build_network(experiment, shape, _outputs(path, tensors, metadata, experiment, model), model)
    module = restored(network, tensors)
    if module is None:
        raise InputError(
            f"{path} is not a {experiment.model.name} for inputs of shape {tuple(shape)}: give the newcomer "
            f"rows like those the run was trained on."
        )
    return module


def _outputs(
    path: Path,
    tensors: Mapping[str, Tensor],
    metadata: Mapping[str, str],
    experiment: Experiment,
    model: Model | None,
) -> int:
    """The number of outputs of the model in a file: as the file says, or in old files from the last layer."""
    if _CLASSES in metadata:
        # A model that predicts no classes has a card: earlier versions had none of these.
        return int(metadata[_CLASSES]) or ModelCard.from_metadata(str(path), metadata).schema.outputs
    if model is None and experiment.model.name in MODELS:
        head = tensors.get("head.weight")
        return 1 if head is None else len(head)
    raise InputError(
        f"{path} was written by an older version and does not say how many classes there are: resume the run "
        f"in {path.parents[1]} once, which writes its models again."
    )


def _at(personal: Tensor | Factored, place: tuple[int, ...]) -> Tensor:
    """One client's model of a stack, built."""
    if isinstance(personal, Tensor):
        return personal[place]
    shared = personal.anchor.shape[-2] == 1
    anchor = personal.anchor[(*place[:-1], 0) if shared else place]
    return dense(Factored(anchor, tree_map(lambda tensor: tensor[place], personal.layers)))
