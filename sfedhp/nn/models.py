"""Models by name and the user's own, with initial weights drawn from the seed."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from sfedhp.core.checksums import DamagedError, check_sealed
from sfedhp.core.errors import InputError
from sfedhp.core.imports import import_named, is_import, user_code, what_to_name
from sfedhp.core.keys import ROLES, key
from sfedhp.core.options import Bounds, Help
from sfedhp.nn.modules import copy_module
from sfedhp.nn.network import Network, join
from sfedhp.nn.presets import MODELS


@dataclass(frozen=True)
class ModelOptions:
    """The [model] section of a config: architecture, weight decay and initial weights."""

    name: Annotated[
        str,
        Help("mlp, mlr, dnn, dnn-small, cnn, vgg, vgg-gn, resnet-gn, lstm, or package.module:callable"),
    ] = "dnn-small"
    weight_decay: Annotated[
        float, Bounds(0), Help("L2 penalty on the weights, the same for every method")
    ] = 0.0
    initial: Annotated[
        str,
        Help("a .safetensors file with initial weights; empty: random from the seed"),
    ] = ""


def build(
    model: str | nn.Module | Callable[..., nn.Module],
    *,
    shape: Sequence[int],
    classes: int,
    seed: int,
    dtype: torch.dtype,
    features: bool = False,
) -> Network:
    """Build the network of the named model, or of the user's own, with weights drawn from the seed.

    Args:
        model: a name of `MODELS`, `package.module:callable`, a module, or a function that makes one (called
            without arguments, or with the input shape and the number of classes if it takes two).
        shape: of one input.
        classes: number of classes.
        seed: determines the initial weights, also of a module that is given as an object.
        dtype: of the weights.
        features: whether the method needs features instead of class scores. A model of this package is then
            built without its head, if anything is left; a user's module is used as it is.
    """
    name = model if isinstance(model, str) else getattr(model, "__name__", type(model).__name__)
    named = isinstance(model, str)
    if isinstance(model, str):
        model = MODELS[model] if model in MODELS else _import_maker(model)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(key(seed, ROLES["initial"])))
        if isinstance(model, nn.Module):
            module = _reinitialized(model)
        else:
            module = _make(model, name, tuple(shape), classes)
    if features and named and name in MODELS and name != "mlr":
        assert isinstance(module, nn.Sequential)
        module = module[:-1]
    return Network(module.to(dtype))


def load_initial(network: Network, path: Path, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Initial weights (d,) and statistics (s,) from a safetensors file that uses the module's names.

    Fixed tensors of the network, such as frozen parameters, are overwritten by those the file contains.

    Raises:
        InputError: the file cannot be read, its names or shapes are not the model's, or it holds NaN.
    """
    try:
        found = load_file(path)
        check_sealed(path)
    except FileNotFoundError:
        raise InputError(f"model.initial: there is no file {path}.") from None
    except DamagedError as error:
        raise DamagedError(f"model.initial: {error}") from None
    except (OSError, SafetensorError) as error:
        raise InputError(f"model.initial: {path} is not a safetensors file ({error}).") from None
    for name, first in network.aliases.items():
        if name in found and not torch.equal(found[name], found.setdefault(first, found[name])):
            raise InputError(
                f"model.initial: {first} and {name} are one tensor in the model and differ in {path}: use "
                f"weights of the same model."
            )
    fixed = {name: value for name, value in network.fixed().items() if name in found}
    shapes = {**network.weights, **{name: value.shape for name, value in fixed.items()}}
    for name, shape in shapes.items():
        if name not in found:
            raise InputError(
                f"model.initial: {path} lacks {name}; it has {', '.join(sorted(found)) or 'nothing'}."
            )
        if found[name].shape != shape:
            raise InputError(
                f"model.initial: {name} in {path} has shape {tuple(found[name].shape)}, not the model's "
                f"{tuple(shape)}: use weights of the same model."
            )
    statistics, buffers = network.initial()[1], network.buffers
    if all(name in found and found[name].shape == shape for name, shape in buffers.items()):
        statistics = join(found, buffers)
        shapes |= buffers
    for name in shapes:
        # A fixed tensor may be infinite on purpose, such as a mask. Others must be finite in the run's dtype.
        strange = found[name].isnan() if name in fixed else ~found[name].to(dtype).isfinite()
        if strange.any():
            raise InputError(
                f"model.initial: {name} in {path} holds NaN or infinite values, which cannot be "
                f"trained: use weights of a run that did not diverge."
            )
    for name, value in fixed.items():
        value.copy_(found[name])
    return join(found, network.weights).to(dtype), statistics.to(dtype)


def restored(network: Network, tensors: Mapping[str, Tensor]) -> nn.Module | None:
    """A new module of a network with the tensors of a model file, in evaluation mode.

    Args:
        network: of the model that the file is expected to hold.
        tensors: of the file, by their names in the module's state dict.

    Returns:
        None if names or shapes are those of another module.
    """
    module = network.build(*network.initial())
    shapes = {name: value.shape for name, value in module.state_dict().items()}
    if shapes != {name: value.shape for name, value in tensors.items()}:
        return None
    module.load_state_dict(tensors)
    return module


def _import_maker(name: str) -> Callable[..., nn.Module]:
    """The user's function or class at `package.module:callable`."""
    if not is_import(name):
        use = f"use {', '.join(MODELS)} or package.module:callable."
        raise InputError(f"model.name = {name!r} is not known: {what_to_name(name, MODELS, use)}")
    found: Callable[..., nn.Module] = import_named("model.name", name)
    if not callable(found):
        raise InputError(f"model.name = {name!r} is not a function or class that makes a module.")
    return found


def _make(maker: Callable[..., Any], name: str, shape: tuple[int, ...], classes: int) -> nn.Module:
    """The module that a user's function returns, checked to be one."""
    failure = f"The model {name} cannot be built for inputs of shape {shape} and {classes} classes"
    with warnings.catch_warnings(), user_code(failure, "fix the function, or use data that it accepts"):
        # Nested tensors are never used here; torch warns if a TransformerEncoder cannot use them.
        warnings.filterwarnings("ignore", "enable_nested_tensor is True", UserWarning)
        module = maker(*((shape, classes) if _takes_shape_and_classes(maker, name) else ()))
    if not isinstance(module, nn.Module):
        raise InputError(
            f"The model function returns a {type(module).__name__}: it must return a torch.nn.Module."
        )
    return module


def _takes_shape_and_classes(maker: Callable[..., Any], name: str) -> bool:
    """Whether a maker takes the shape and the number of classes; it must take both or nothing."""
    needed = [
        parameter
        for parameter in inspect.signature(maker).parameters.values()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
    named = any(parameter.kind is parameter.KEYWORD_ONLY for parameter in needed)
    if named or len(needed) not in (0, 2):
        raise InputError(
            f"The model function {name} takes {len(needed)} argument{'s' if len(needed) > 1 else ''}"
            f"{' by keyword only' if named else ''} ({', '.join(each.name for each in needed)}): it must "
            f"take none or two, the shape of one input and the number of classes."
        )
    return len(needed) == 2


def _reinitialized(module: nn.Module) -> nn.Module:
    """A copy of the module with new weights, so that repeats of a run differ by their seed.

    Frozen parameters keep their values, and so do the buffers of parts that have frozen parameters only or
    are in evaluation mode. A tied tensor is drawn by the first part that has it.
    """
    given, module = module, copy_module(module)
    drawn: dict[Tensor, Tensor] = {}
    for name, part in module.named_modules():
        own = [value.requires_grad for value in part.parameters(recurse=False)]
        reset = getattr(part, "reset_parameters", None)
        if own and not any(own):
            continue
        if callable(reset):
            buffers = {} if part.training or not given.training else dict(part.named_buffers(recurse=False))
            kept = [(value, value.clone()) for value in buffers.values()]
            reset()
            kept += [(value, drawn[value]) for value in part.parameters(recurse=False) if value in drawn]
            with torch.no_grad():
                for value, before in kept:
                    value.copy_(before)
            drawn |= {value: value.detach().clone() for value in part.parameters(recurse=False)}
        elif own:
            raise InputError(
                f"The model's part {name or type(part).__name__!r} cannot draw its weights from the seed: "
                f"give a function that makes the module, or give its part a reset_parameters method."
            )
    with torch.no_grad():
        for value, before in zip(module.parameters(), given.parameters(), strict=True):
            if not value.requires_grad:
                value.copy_(before)
    return module
