"""One definition of every option."""

import dataclasses
import subprocess
import sys
import tomllib
from typing import Any

import pytest
import torch

from sfedhp.algorithms import ALGORITHMS, Algorithm, FedAvg, SFedHP
from sfedhp.config import SECTIONS, Experiment, from_dict, tables_of, to_dict, to_toml
from sfedhp.core.errors import InputError
from sfedhp.core.options import help_of
from sfedhp.data import DataOptions
from sfedhp.runs.prepare import prepare
from sfedhp.wire.cost import ChannelOptions, LinksOptions

BEYOND_THE_PAPER = {
    "server": "none",
    "server_rate": 0.0,
    "server_beta1": 0.9,
    "server_beta2": 0.99,
    "server_tau": 1e-3,
    "drift_correction": False,
    "finish_steps": 0,
    "finish_rate": 0.05,
    "finish_rows": "batch",
    "finish_proximity": 0.0,
    "finish_near": "client",
}


def test_the_defaults_are_the_designs():
    config = to_dict(Experiment())
    assert {name: value for name, value in config.items() if not isinstance(value, dict)} == {
        "seed": 0,
        "rounds": 30,
        "edges": 4,
        "clients_per_edge": 5,
        "sampled_edges": 0,
        "sampled_clients": 0,
        "batch_size": 20,
        "dtype": "float32",
        "device": "auto",
        "density_threshold": 5e-4,
        "secure": False,
        "secure_bound": 10.0,
        "secure_resolution": 1e-6,
        "problem": "auto",
    }
    assert config["algorithm"] == {
        "name": "sfedhp",
        "edge_rounds": 20,
        "personal_steps": 5,
        "client_proximity": 20.0,
        "edge_proximity": 20.0,
        "client_sparsity": 0.0,
        "edge_sparsity": 0.0,
        "smoothing": 6e-5,
        "edge_rate": 0.05,
        "personal_rate": 0.05,
        "cloud_mixing": 1.0,
        "start": "anchor",
        "anchor": "edge",
        "solver": "gradient",
        "tolerance": 0.0,
        "penalty": "smooth",
        "sparsity_floor": 0.2,
        "edge_sparsity_rounds": 100,
        **BEYOND_THE_PAPER,
    }
    assert list(config["algorithm"])[:2] == ["name", "edge_rounds"]  # the method's own come first
    assert config["evaluation"] == {"every": 1, "norm_statistics": "averaged"}
    assert config["model"] == {"name": "dnn-small", "weight_decay": 0.0, "initial": ""}
    assert config["checkpoint"] == {"every": 10}
    assert config["wire"]["threshold"] == 0.0


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("fedavg", {"local_rate": 0.05, "local_steps": 20}),
        ("hierfavg", {"local_rate": 0.05, "local_steps": 5, "edge_rounds": 4}),
        ("fedprox", {"local_rate": 0.05, "local_steps": 20, "proximity": 0.001}),
        ("perfedavg", {"adaptation_rate": 0.05, "meta_rate": 0.01, "local_steps": 20}),
        (
            "pfedme",
            {
                "client_proximity": 15.0,
                "personal_rate": 0.05,
                "local_rate": 0.05,
                "local_rounds": 20,
                "personal_steps": 5,
                "cloud_mixing": 1.0,
            },
        ),
        (
            "heurfedamp",
            {"local_rate": 0.05, "local_steps": 20, "proximity": 0.1, "self_weight": 0.5, "attention": 10.0},
        ),
        (
            "pfedgp",
            {"local_rate": 0.05, "local_steps": 1, "support_rows": 400, "chains": 20, "gibbs_steps": 5},
        ),
    ],
)
def test_each_method_has_the_designs_fields(name, fields):
    given = to_dict(Experiment(algorithm=ALGORITHMS[name]()))["algorithm"]
    assert {key: given[key] for key in fields} == fields
    assert given["name"] == name


@pytest.mark.parametrize("kind", [Experiment, *ALGORITHMS.values()])
def test_every_key_has_a_help_text(kind):
    for option in dataclasses.fields(kind):
        if option.name not in SECTIONS:
            assert help_of(kind).get(option.name), f"{kind.__name__}.{option.name}"


@pytest.mark.parametrize("section", SECTIONS)
def test_every_key_of_a_section_has_a_help_text(section):
    kind: Any = type(getattr(Experiment(), section))
    assert help_of(kind).keys() == {option.name for option in dataclasses.fields(kind)}


@pytest.mark.parametrize(
    "experiment",
    [
        Experiment(),
        Experiment(algorithm=FedAvg(local_steps=3), seed=2**40, data=DataOptions(source='a "quoted" ä.npz')),
        Experiment(algorithm=SFedHP(smoothing=1e-7), density_threshold=1e-3, dtype="float64"),
        Experiment(links=LinksOptions(ChannelOptions("lte-m", loss=0.0), ChannelOptions(bandwidth=1e6))),
        Experiment(edges=3, clients_per_edge=(2, 4, 1)),
    ],
)
def test_a_config_file_gives_the_experiment_back(experiment):
    text = to_toml(to_dict(experiment))
    assert from_dict(tomllib.loads(text)) == experiment


def test_tables_within_tables_are_written_with_their_helps():
    links = LinksOptions(edge_cloud=ChannelOptions("wan", bandwidth=1e6))
    config = to_dict(Experiment(links=links))
    none = {"preset": "none"}
    given = {"preset": "wan", "bandwidth": 1e6}
    assert config["links"] == {"client_edge": none, "edge_cloud": given, "client_cloud": none}
    text = to_toml(config)
    assert "[links]" not in text
    helps = help_of(ChannelOptions)
    assert text.count("\n[links.edge_cloud]\n") == 1
    written = text.partition("[links.edge_cloud]\n")[2].partition("\n\n")[0].splitlines()
    assert [line.partition(" # ")[2] for line in written] == [helps["preset"], helps["bandwidth"]]
    assert [line.partition(" # ")[0].strip() for line in written] == [
        'preset = "wan"',
        "bandwidth = 1000000.0",
    ]


@pytest.mark.parametrize("section", SECTIONS)
def test_every_key_of_a_table_within_a_section_has_a_help_text(section):
    for kind in tables_of(SECTIONS[section]).values():
        assert help_of(kind).keys() == {option.name for option in dataclasses.fields(kind)}


def test_the_density_threshold_reaches_the_task_and_is_no_key_of_the_method():
    experiment = Experiment(density_threshold=0.01, data=DataOptions(train_per_label=2, test_per_label=2))
    task = prepare(experiment).simulator.task
    assert task.density_threshold == 0.01
    assert float(task.density(torch.tensor([0.02, 0.009, 0.0, -0.01]))) == 0.5
    assert "density_threshold" not in to_dict(experiment)["algorithm"]


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"rounds": 0}, "rounds = 0 is out of range: it must be at least 1."),
        ({"sampled_edges": 5}, "sampled_edges = 5 is more than the 4 edges"),
        ({"sampled_clients": 21}, "sampled_clients = 21 is more than the 20 clients"),
        ({"clients_per_edge": (2, 4), "edges": 3}, r"edges = 3, but clients_per_edge = \[2, 4\] has 2 num"),
        ({"clients_per_edge": (2, 0)}, r"clients_per_edge = \[2, 0\] is out of range: each must be at l"),
        (
            {"clients_per_edge": ()},
            r"clients_per_edge = \[\] is out of range: every edge must have at least 1",
        ),
        ({"clients_per_edge": (2, 1.5)}, r"is neither a whole number nor a list of them: write one, or a"),
        (
            {"clients_per_edge": (2, 4), "sampled_clients": 7},
            "sampled_clients = 7 is more than the 6 clients",
        ),
        ({"clients_per_edge": (2, 4), "sampled_edges": 3}, "sampled_edges = 3 is more than the 2 edges"),
        ({"dtype": "float16"}, "dtype = 'float16' is not known: use float32 or float64."),
        ({"data": DataOptions(scale="loud")}, "data.scale = 'loud' is not known"),  # type: ignore[arg-type]
    ],
)
def test_values_out_of_range_are_refused(wrong, sentence):
    with pytest.raises(InputError, match=sentence):
        Experiment(**wrong)


def test_each_edge_may_have_its_own_number_of_clients():
    uneven = Experiment(clients_per_edge=[2, 4])  # type: ignore[arg-type]  # as TOML has it
    assert (uneven.edges, uneven.clients_per_edge, uneven.edge_sizes, uneven.clients) == (
        2,
        (2, 4),
        (2, 4),
        6,
    )
    assert hash(uneven) == hash(Experiment(edges=2, clients_per_edge=(2, 4)))
    assert Experiment(clients_per_edge=(3, 3)) == Experiment(edges=2, clients_per_edge=3)
    assert Experiment().edge_sizes == (5, 5, 5, 5)


def test_negative_rates_are_refused_where_they_are_made():
    with pytest.raises(InputError, match=r"algorithm.local_rate = -0.1 is out of range: it must be above 0."):
        FedAvg(local_rate=-0.1)


def test_an_unknown_method_is_refused():
    with pytest.raises(InputError, match=r"algorithm.name = 'fedsgd' is not known: use sfedhp"):
        from_dict({"algorithm": {"name": "fedsgd"}})


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ({"round": 3}, "There is no key round: did you mean rounds?"),
        ({"zzz": 3}, "There is no key zzz: leave it out."),
        ({"data": {"scales": 1}}, "There is no key data.scales: did you mean data.scale?"),
        (
            {"algorithm": {"name": "fedavg", "local_rat": 1}},
            "There is no key algorithm.local_rat: did you mean algorithm.local_rate?",
        ),
        (
            {"links": {"edge_cloud": {"los": 1}}},
            "There is no key links.edge_cloud.los: did you mean links.edge_cloud.loss?",
        ),
        ({"model": "mlr"}, "model = 'mlr' is not a section: write its keys under [model]."),
        ({"algorithm": "fedavg"}, "algorithm = 'fedavg' is not a section: write its keys under [algorithm]."),
        (
            {"links": {"edge_cloud": 1}},
            "links.edge_cloud = 1 is not a section: write its keys under [links.edge_cloud].",
        ),
        (
            {"algorithm": {}},
            f"algorithm.name = None is not known: use {', '.join(ALGORITHMS)}, or package.module:Class.",
        ),
    ],
)
def test_a_key_that_is_not_known_is_refused_by_its_name(config, sentence):
    with pytest.raises(InputError) as error:
        from_dict(config)
    assert str(error.value) == sentence


def test_the_name_of_a_users_method_is_its_class():
    @dataclasses.dataclass(frozen=True)
    class MyMethod(Algorithm):
        def client_step(self, received, personal, task, clock):
            raise NotImplementedError

    assert Experiment(algorithm=MyMethod()).algorithm_name == "mymethod"
    assert "mymethod" in to_toml(to_dict(Experiment(algorithm=MyMethod())))


def test_a_config_loads_neither_the_engine_nor_the_data():
    code = "import sys, sfedhp.config; print(*(name for name in sys.modules if name.startswith('sfedhp')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert {"sfedhp.config", "sfedhp.data.options", "sfedhp.algorithms"} <= loaded
    others = ("engine", "runs", "deploy", "cli", "checks", "theory", "paper", "bench")
    assert not {name for name in loaded if name.split(".")[1:2] and name.split(".")[1] in others}
    assert {name for name in loaded if name.startswith("sfedhp.data")} == {
        "sfedhp.data",
        "sfedhp.data.options",
    }


def test_lists_are_taken_in_python_and_become_tuples():
    experiment = Experiment(data=DataOptions(drop=["a", "b"]), clients_per_edge=[2, 4])  # type: ignore[arg-type]
    assert experiment.data.drop == ("a", "b")
    assert experiment.clients_per_edge == (2, 4)
