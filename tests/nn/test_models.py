"""The models of the paper and the user's own."""

from itertools import chain
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import sfedhp
from sfedhp import DataOptions, Experiment
from sfedhp.algorithms import ALGORITHMS
from sfedhp.core.checksums import BLANK, CHECKSUM, seal
from sfedhp.core.errors import InputError
from sfedhp.nn.models import build, load_initial
from sfedhp.nn.network import split
from sfedhp.nn.presets import MODELS
from sfedhp.nn.probe import probe
from tests.support.small_modules import tied

IMAGE, COLOR = (28, 28), (3, 32, 32)


def make(model, shape=IMAGE, classes=10, seed=0, **options):
    return build(model, shape=shape, classes=classes, seed=seed, dtype=torch.float32, **options)


@pytest.mark.parametrize(
    ("name", "shape", "parameters", "statistics"),
    [
        ("mlr", IMAGE, 7_850, 0),
        ("dnn", IMAGE, 494_710, 0),
        ("dnn-small", IMAGE, 79_510, 0),
        ("vgg", COLOR, 247_050, 736),
        ("vgg-gn", COLOR, 247_050, 0),
        ("cnn", (1, 28, 28), 582_026, 0),
        ("cnn", IMAGE, 582_026, 0),
        ("cnn", COLOR, 878_538, 0),
        ("resnet-gn", COLOR, 78_042, 0),
        ("mlp", (13,), 13 * 64 + 64 + 64 * 64 + 64 + 650, 0),
        ("lstm", (24, 5), 4 * 64 * (5 + 64 + 2) + 650, 0),
    ],
)
def test_the_models_have_the_papers_sizes(name, shape, parameters, statistics):
    network = make(name, shape)
    assert (network.d, network.s) == (parameters, statistics)
    probe(network, torch.rand(2, *shape), 10)
    assert network.module.state_dict().keys() >= {"head.weight", "head.bias"}


def test_group_norm_has_groups_of_eight():
    groups = [part for part in make("vgg-gn", COLOR).module if isinstance(part, nn.GroupNorm)]
    assert [part.num_channels // part.num_groups for part in groups] == [8] * 5


def test_sizes_come_from_the_data():
    assert make("dnn-small", (60,), 4).d == 60 * 100 + 100 + 100 * 4 + 4


def test_the_seed_decides_the_weights_and_leaves_torch_alone():
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    one, again, other = (make("mlr", seed=seed).initial()[0] for seed in (3, 3, 4))
    assert torch.equal(torch.rand(1), expected)
    assert torch.equal(one, again)
    assert not torch.equal(one, other)


def test_features_lose_the_head():
    network = make("dnn", features=True)
    probe(network, torch.rand(2, *IMAGE), None)
    assert network.d == 784 * 500 + 500 + 500 * 200 + 200
    assert make("mlr", features=True).d == 7_850


class Own(nn.Module):
    def __init__(self, shape=(28, 28), classes=10):
        super().__init__()
        self.layer = nn.Linear(shape[0] * shape[1], classes)

    def forward(self, inputs):
        return self.layer(inputs.flatten(1))


def takes_two(shape, classes):
    return Own(shape, classes)


def not_a_module():
    return 3


def test_a_module_a_class_and_a_function_will_do():
    for model in (Own(), Own, takes_two, "tests.nn.test_models:takes_two"):
        assert make(model).d == 7_850


def test_a_module_given_as_it_is_still_differs_between_seeds():
    """The public fault: repeats that reuse one initialization are no repeats."""
    module = Own()
    weights = [make(module, seed=seed).initial()[0] for seed in (0, 1, 0)]
    assert not torch.equal(weights[0], weights[1])
    assert torch.equal(weights[0], weights[2])


class Stubborn(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(784, 10))

    def forward(self, inputs):
        return inputs.flatten(1) @ self.scale


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        ("dmn", "model.name = 'dmn' is not known: did you mean dnn?"),
        ("nowhere.at.all:x", "cannot be imported"),
        ("tests.nn.test_models:nothing", "cannot be imported"),
        ("tests.nn.test_models:IMAGE", "is not a function or class"),
        (not_a_module, "returns a int: it must return a torch.nn.Module"),
        (Stubborn(), "cannot draw its weights from the seed"),
        (nn.Sequential(nn.BatchNorm1d(784, momentum=None), nn.Linear(784, 10)), "momentum=None"),
        (nn.Sequential(nn.Flatten()), "has no parameters to train"),
    ],
)
def test_what_cannot_be_used_is_refused_by_name(model, sentence):
    with pytest.raises(InputError, match=sentence.replace("(", r"\(").replace(")", r"\)")):
        make(model)


def takes_one(shape):
    return Own(shape)


def takes_three(shape, classes, width):
    return Own(shape, classes)


def takes_names(*, shape, classes):
    return Own(shape, classes)


def takes_no_name(shape, classes, /, width=3):
    return Own(shape, classes)


def raises(shape, classes):
    raise KeyError("width")


@pytest.mark.parametrize(
    ("maker", "sentence"),
    [
        (takes_one, r"^The model function takes_one takes 1 argument \(shape\): .* none or two"),
        (takes_three, r"takes_three takes 3 arguments \(shape, classes, width\)"),
        (takes_names, r"takes_names takes 2 arguments by keyword only \(shape, classes\)"),
        (
            raises,
            r"^The model raises cannot be built for inputs of shape \(28, 28\) .* \(KeyError: 'width'\)",
        ),
        (nn.Linear, r"^The model Linear cannot be built .* \(TypeError: "),
        (
            "tests.nn.test_models:raises",
            r"^The model tests.nn.test_models:raises cannot be built .* \(KeyError: 'width'\)",
        ),
    ],
)
def test_makers_that_cannot_be_called_are_refused(maker, sentence):
    with pytest.raises(InputError, match=sentence) as found:
        make(maker)
    assert "\n" not in str(found.value)


def test_a_maker_may_have_more_arguments_with_defaults():
    assert make(takes_no_name).d == 7_850


@pytest.mark.filterwarnings("ignore:.*weight_norm. is deprecated")
def test_a_module_that_cannot_be_copied_is_refused():
    with pytest.raises(InputError, match=r"Linear cannot be copied \(RuntimeError: "):
        make(nn.utils.weight_norm(nn.Linear(784, 10)))


def test_a_file_that_fails_when_it_is_imported_is_named(tmp_path, monkeypatch):
    (tmp_path / "torn_models.py").write_text("def make(:")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(
        InputError, match=r"^model.name = 'torn_models:make' cannot be imported .*SyntaxError"
    ):
        make("torn_models:make")
    with pytest.raises(InputError, match=r"^model.name = ':make' cannot be imported"):
        make(":make")


@pytest.mark.parametrize("name", ["sfedhp", "fedavg", "pfedme"])
def test_a_run_trains_a_single_number_too(name):
    class Tempered(Own):
        def __init__(self):
            super().__init__()
            self.temperature = nn.Parameter(torch.tensor(2.0))

        def forward(self, inputs):
            return super().forward(inputs) / self.temperature

    data = DataOptions(train_per_label=5, test_per_label=2)
    experiment = Experiment(rounds=1, edges=2, clients_per_edge=3, algorithm=ALGORITHMS[name](), data=data)
    run = sfedhp.run(experiment, model=Tempered)
    assert isinstance(run.global_model, Tempered)
    assert run.global_model.temperature.shape == ()
    assert run.global_model.temperature != 2


def test_a_function_module_with_stubborn_parts_is_fine():
    assert make(Stubborn).d == 7840


def test_what_is_frozen_in_a_module_stays_as_it_is_given():
    """Frozen weights were trained before."""
    module: Any = nn.Sequential(
        nn.Flatten(), Stubborn(), nn.BatchNorm1d(10), nn.Linear(10, 10), nn.Linear(10, 10)
    )
    module[1].requires_grad_(False)
    module[2].requires_grad_(False)
    module[2].running_mean.fill_(2.0)
    module[3].weight.requires_grad_(False)
    made = make(module).module
    assert torch.equal(made[1].scale, module[1].scale)
    assert torch.equal(made[2].running_mean, module[2].running_mean)
    assert torch.equal(made[3].weight, module[3].weight)
    assert not torch.equal(made[3].bias, module[3].bias)
    assert not torch.equal(made[4].weight, module[4].weight)


@pytest.mark.parametrize("name", ["sfedhp", "fedavg", "pfedme"])
def test_a_run_leaves_what_is_frozen(name):
    module: Any = nn.Sequential(nn.Flatten(), nn.Linear(784, 6), nn.ReLU(), nn.Linear(6, 10))
    module[1].requires_grad_(False)
    data = DataOptions(train_per_label=5, test_per_label=2)
    experiment = Experiment(rounds=1, edges=2, clients_per_edge=3, algorithm=ALGORITHMS[name](), data=data)
    run = sfedhp.run(experiment, model=module)
    initial = make(module, (1, 28, 28)).module
    models: list[Any] = [run.global_model, *run.edge_models, *chain(*run.client_models)]
    for model in filter(None, models):
        assert torch.equal(model[1].weight, module[1].weight)
        assert not torch.equal(model[3].weight, initial[3].weight)
    assert run.global_model is not None


class Branches(Own):
    def forward(self, inputs):
        return super().forward(inputs) if inputs.sum() > 0 else super().forward(-inputs)


class Image(Own):
    def forward(self, inputs):
        return super().forward(inputs).unsqueeze(-1)


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        (takes_two(IMAGE, 5), "returns 5 scores per row but the data has 10 classes: change its last layer"),
        (Branches(), "does not run on a stack of clients"),
        (nn.Sequential(nn.Linear(7, 10)), "does not run on a stack of clients with inputs of shape"),
        (Image(), "it must return one vector of scores per row"),
    ],
)
def test_a_model_that_does_not_fit_is_refused(model, sentence):
    with pytest.raises(InputError, match=sentence):
        probe(make(model), torch.rand(2, *IMAGE), 10)


def test_vgg_wants_large_images():
    with pytest.raises(InputError, match="at least 32 × 32"):
        make("vgg", IMAGE)


def test_initial_weights_from_a_file(tmp_path):
    network = make("vgg", COLOR)
    state = {name: torch.full_like(value, 0.5) for name, value in network.module.state_dict().items()}
    save_file(state, tmp_path / "w.safetensors")
    weights, statistics = load_initial(network, tmp_path / "w.safetensors", torch.float64)
    assert weights.dtype == torch.float64
    assert weights.unique().tolist() == statistics.unique().tolist() == [0.5]
    bare = {name: value for name, value in state.items() if name in network.weights}
    save_file(bare, tmp_path / "bare.safetensors")
    _, statistics = load_initial(network, tmp_path / "bare.safetensors", torch.float32)
    assert statistics.unique().tolist() == [0.0, 1.0]


def test_wrong_initial_weights_are_refused(tmp_path):
    network = make("mlr")
    path = tmp_path / "w.safetensors"
    with pytest.raises(InputError, match="there is no file"):
        load_initial(network, path, torch.float32)
    path.write_bytes(b"nonsense")
    with pytest.raises(InputError, match="is not a safetensors file"):
        load_initial(network, path, torch.float32)
    save_file({"other": torch.zeros(1)}, path)
    with pytest.raises(InputError, match=r"lacks head.weight; it has other"):
        load_initial(network, path, torch.float32)
    save_file({"head.weight": torch.zeros(2, 784), "head.bias": torch.zeros(10)}, path)
    with pytest.raises(InputError, match="has shape"):
        load_initial(network, path, torch.float32)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, 1e300])
@pytest.mark.parametrize("name", ["norm1.weight", "norm1.running_var"])
def test_initial_weights_must_be_finite(tmp_path, name, value):
    network = make("vgg", COLOR)
    state = {key: part.double() for key, part in network.state_dict(*network.initial()).items()}
    state[name][1] = value
    save_file(state, tmp_path / "w.safetensors")
    with pytest.raises(InputError, match=rf"{name} in .*w.safetensors holds NaN or infinite values"):
        load_initial(network, tmp_path / "w.safetensors", torch.float32)


def test_what_is_frozen_comes_from_the_file_too(tmp_path):
    """A site of a deployment has its initial weights from a file."""
    module = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    module[0].requires_grad_(False)
    network, path = make(module, (4,), 2), tmp_path / "w.safetensors"
    own = network.fixed()["0.weight"].clone()
    state = {name: torch.full_like(value, 0.5) for name, value in module.state_dict().items()}
    save_file({name: value for name, value in state.items() if name[0] == "1"}, path)
    load_initial(network, path, torch.float32)
    assert torch.equal(network.fixed()["0.weight"], own)
    save_file(state, path)
    model, statistics = load_initial(network, path, torch.float32)
    assert network.build(model, statistics)[0].weight.unique().tolist() == [0.5]
    save_file(state | {"0.bias": torch.full((3,), torch.nan)}, path)
    with pytest.raises(InputError, match=r"0.bias in .* holds NaN"):
        load_initial(network, path, torch.float32)
    save_file(state | {"0.bias": torch.zeros(4)}, path)
    with pytest.raises(InputError, match=r"0.bias in .* has shape \(4,\), not the model's \(3,\)"):
        load_initial(network, path, torch.float32)


def test_the_registry_is_literal():
    assert list(MODELS) == [
        "mlp",
        "mlr",
        "dnn",
        "dnn-small",
        "cnn",
        "vgg",
        "vgg-gn",
        "resnet-gn",
        "lstm",
    ]


def test_initial_weights_of_tied_layers_must_agree(tmp_path):
    network, state = (
        make(tied(), (4,), 4),
        {name: value.clone() for name, value in tied().state_dict().items()},
    )
    save_file(state, tmp_path / "both.safetensors")
    weights, _ = load_initial(network, tmp_path / "both.safetensors", torch.float32)
    assert torch.equal(network.state_dict(weights, torch.zeros(0))["2.weight"], state["0.weight"])
    save_file({name: state[name] for name in ("0.bias", "2.weight", "2.bias")}, tmp_path / "one.safetensors")
    assert torch.equal(load_initial(network, tmp_path / "one.safetensors", torch.float32)[0], weights)
    save_file({**state, "2.weight": state["2.weight"] + 1}, tmp_path / "other.safetensors")
    with pytest.raises(InputError, match=r"0\.weight and 2\.weight are one tensor in the model and differ"):
        load_initial(network, tmp_path / "other.safetensors", torch.float32)


def test_a_module_keeps_the_statistics_of_parts_in_evaluation_mode_and_ties():
    module = nn.Sequential(nn.Embedding(5, 4), nn.Flatten(), nn.BatchNorm1d(4), nn.Linear(4, 5, bias=False))
    module[3].weight = module[0].weight
    statistics = module.get_buffer("2.running_mean").fill_(3.0)
    module[2].eval()
    network = make(module, (1,), 5)
    assert torch.equal(network.fixed()["2.running_mean"], statistics)
    weights = network.module.get_parameter("0.weight")
    assert not torch.equal(weights, module.get_parameter("0.weight"))
    assert weights.std() > 0.7  # an embedding's, not a linear layer's uniform below 1/2
    module[2].train()
    assert not make(module, (1,), 5).initial()[1][:4].any()


@pytest.mark.parametrize(
    ("name", "shape", "sentence"),
    [
        ("cnn", (60,), "cnn needs images of at least 16 × 16, channels first"),
        ("cnn", (1, 12, 28), "cnn needs images of at least 16 × 16"),
        ("resnet-gn", IMAGE, "resnet-gn needs images of at least 8 × 8"),
        ("lstm", (60,), r"lstm needs series of \(time, features\), and these inputs have shape \(60,\)"),
    ],
)
def test_a_model_says_which_inputs_it_needs(name, shape, sentence):
    with pytest.raises(InputError, match=sentence):
        make(name, shape)


def prenorm(shape, classes):
    layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.1, norm_first=True)
    return nn.Sequential(nn.TransformerEncoder(layer, 2), nn.Flatten(), nn.Linear(12, classes))


@pytest.mark.parametrize("train", [True, False])
def test_a_transformer_encoder_runs_without_warnings(train):
    network = make(prenorm, (3, 4), 5)
    probe(network, torch.rand(2, 3, 4), 5)
    weights = {
        name: part.expand(2, *part.shape)
        for name, part in split(network.initial()[0], network.weights).items()
    }
    rows = torch.rand(2, 6, 3, 4)
    outputs, _ = network.run(weights, torch.zeros(2, 0), rows, torch.Size([2]), train, torch.arange(2))
    assert outputs.shape == (2, 6, 5)


def test_damaged_initial_weights_of_a_run_are_named(tmp_path):
    network = build("mlr", shape=(3,), classes=2, seed=0, dtype=torch.float32)
    path = tmp_path / "global.safetensors"
    save_file(dict(network.module.state_dict()), path, {CHECKSUM: BLANK})
    seal(path)
    load_initial(network, path, torch.float32)
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"model.initial: .*global.safetensors is damaged"):
        load_initial(network, path, torch.float32)
