"""From a file and words to an experiment."""

from __future__ import annotations

import re
import typing

import pytest

from sfedhp.algorithms import ALGORITHMS, PFedMe, SFedHP
from sfedhp.config import Experiment, to_dict, to_toml
from sfedhp.core.errors import InputError
from sfedhp.runs.config_keys import Option, common_options, method_options
from sfedhp.runs.settings import read_settings, split_words
from sfedhp.wire.cost import ChannelOptions, LinksOptions


@pytest.fixture
def config(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def write(text):
        (tmp_path / "exp.toml").write_text(text, encoding="utf-8")
        return "exp.toml"

    return write


def test_nothing_said_is_the_default():
    assert read_settings([]).experiment() == Experiment()


def test_the_command_line_is_stronger_than_the_file_and_the_file_than_the_default(config):
    file = config('rounds = 7\nseed = 3\n[algorithm]\nedge_rounds = 4\n[data]\nsource = "mnist"\n')
    for words in (["rounds=9", file], [file, "rounds=9"]):
        experiment = read_settings(words).experiment()
        assert (experiment.rounds, experiment.seed, experiment.edges) == (9, 3, 4)
        assert experiment.algorithm.edge_rounds == 4
        assert experiment.data.source == "mnist"


def test_the_last_word_decides():
    assert read_settings(["seed=1", "seed=2"]).experiment().seed == 2


def test_text_becomes_the_type_of_the_key():
    words = ["algorithm.client_proximity=15", "wire.threshold=1e-3", "data.test_per_label=4", "dtype=float64"]
    experiment = read_settings([*words, "model.initial=a=b.safetensors"]).experiment()
    assert isinstance(experiment.algorithm, SFedHP)
    assert repr(experiment.algorithm.client_proximity) == "15.0"
    assert experiment.wire.threshold == 1e-3
    assert experiment.data.test_per_label == 4
    assert experiment.dtype == "float64"
    assert experiment.model.initial == "a=b.safetensors"


def test_a_whole_number_in_a_file_serves_as_a_rate(config):
    experiment = read_settings([config("[algorithm]\nedge_proximity = 15\n")]).experiment()
    assert isinstance(experiment.algorithm, SFedHP)
    assert repr(experiment.algorithm.edge_proximity) == "15.0"


def test_a_table_within_a_section_is_set_by_the_file_and_by_words(config):
    file = config('[links.client_edge]\npreset = "lte-m"\nlatency = 1\n[links.edge_cloud]\nbandwidth = 5e5\n')
    words = ["links.client_edge.latency=0.5", "links.edge_cloud.preset=wan"]
    expected = LinksOptions(ChannelOptions("lte-m", latency=0.5), ChannelOptions("wan", bandwidth=5e5))
    settings = read_settings([file, *words])
    assert settings.experiment().links == expected
    assert read_settings([config(to_toml(to_dict(settings.experiment())))]).experiment().links == expected
    assert not settings.ignored_keys(["sfedhp"])
    assert settings.ignored_keys(["fedavg"]) == [
        f"links.{key} is ignored: only methods with 3 tiers have this link, not fedavg."
        for key in ("client_edge.preset", "client_edge.latency", "edge_cloud.bandwidth", "edge_cloud.preset")
    ]


def test_a_flat_method_under_edges_has_the_links_of_three_tiers():
    words = ["algorithm=fedper", "algorithm.under_edges=true", "links.client_edge.preset=lan"]
    assert not read_settings(words).ignored_keys(["fedper"])
    [line] = read_settings([*words, "links.client_cloud.preset=lan"]).ignored_keys(["fedper"])
    assert line.startswith("links.client_cloud.preset is ignored: only methods with 2 tiers")


def test_links_of_other_tiers_are_spoken_of_only_where_they_are_set(config):
    written = to_toml(to_dict(Experiment(algorithm=ALGORITHMS["fedavg"]())))
    settings = read_settings([config(written), "links.client_cloud.preset=wan"])
    assert not settings.ignored_keys(["fedavg"])
    settings = read_settings(["links.client_cloud.preset=wan"])
    assert not settings.ignored_keys(["sfedhp", "fedavg"])
    [line] = settings.ignored_keys(["hierfavg", "sfedhp"])
    assert line.endswith("is ignored: only methods with 2 tiers have this link, not hierfavg, sfedhp.")


@pytest.mark.parametrize("method", ALGORITHMS)
def test_a_written_config_is_read_back(config, method):
    experiment = read_settings([f"algorithm={method}", "rounds=2", "data.partition=iid"]).experiment()
    assert experiment.algorithm_name == method
    assert read_settings([config(to_toml(to_dict(experiment)))]).experiment() == experiment


@pytest.mark.parametrize("text", ['algorithm = "fedavg"\n', '[algorithm]\nname = "fedavg"\n'])
def test_a_file_names_the_method(config, text):
    assert read_settings([config(text)]).method == "fedavg"


def test_empty_sections_say_nothing(config):
    text = "[algorithm]\n[data]\n[pfedme]\n[links]\n[links.client_edge]\n"
    assert read_settings([config(text)]).experiment() == Experiment()


def test_a_key_of_another_method_is_ignored_with_a_sentence():
    settings = read_settings(["algorithm.local_steps=3", "algorithm.edge_rounds=5", "pfedme.local_rounds=2"])
    assert settings.experiment().algorithm.edge_rounds == 5
    lines = settings.ignored_keys(["sfedhp"])
    assert len(lines) == 2
    assert lines[0].startswith("algorithm.local_steps is ignored: it is a key of fedavg, hierfavg, fedprox")
    assert lines[0].endswith("not of sfedhp.")
    assert lines[1] == "pfedme.local_rounds is ignored: pfedme does not run here."
    assert not settings.ignored_keys(["sfedhp", "fedavg", "pfedme"])


def test_keys_of_one_method_override_keys_of_all():
    settings = read_settings(["pfedme.client_proximity=15", "algorithm.client_proximity=5"])
    pfedme, hierarchical = (settings.experiment(name).algorithm for name in ("pfedme", "sfedhp"))
    assert isinstance(pfedme, PFedMe)
    assert pfedme.client_proximity == 15
    assert isinstance(hierarchical, SFedHP)
    assert hierarchical.client_proximity == 5


def test_but_never_stronger_than_the_command_line(config):
    file = config("[pfedme]\nclient_proximity = 15\npersonal_steps = 2\n")
    pfedme = read_settings([file, "algorithm.client_proximity=5"]).experiment("pfedme").algorithm
    assert isinstance(pfedme, PFedMe)
    assert (pfedme.client_proximity, pfedme.personal_steps) == (5, 2)


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("rouds=3", "rounds or schedule.rounds"),
        ("algorithm.edge_round=3", "algorithm.edge_rounds"),
        ("edge_rounds=3", "algorithm.edge_rounds"),
        ("edgerounds=3", "algorithm.edge_rounds"),
        ("data.partitoin=iid", "data.partition"),
        ("algoritm.edge_rounds=3", "algorithm.edge_rounds"),
        ("model.source=x", "data.source"),
        ("pfedme.client_proximty=3", "pfedme.client_proximity"),
        ("every=3", "checkpoint.every or evaluation.every or schedule.every"),
        ("links.client_edge.bandwith=3", "links.client_edge.bandwidth"),
        ("latency=0", "links.client_cloud.latency or links.client_edge.latency or links.edge_cloud.latency"),
        ("algorithm.density_threshold=1", "density_threshold"),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest(word, meant, config):
    key, _, value = word.partition("=")
    for words in ([word], [config(f'"{key}" = "{value}"\n')]):
        with pytest.raises(InputError) as caught:
            read_settings(words)
        assert str(caught.value) == f"There is no key {key}: did you mean {meant}?"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "[algoritm]\nedge_rounds = 3\n",
            "There is no key algoritm.edge_rounds: did you mean algorithm.edge",
        ),
        ("[zzz]\n", "There is no key zzz: `sfedhp run --help-all` lists all keys."),
        ("data = 3\n", "data is a section and not a key: write data.KEY=VALUE, for example data.source=…"),
        (
            "[links]\nclient_edge = 3\n",
            "links.client_edge is a section and not a key: .* links.client_edge.preset=…",
        ),
        (
            '[links.edge_cloud]\npreset = "lte"\n',
            "links.edge_cloud.preset = 'lte' is not known: use none, lan, wifi, wan, lte-m or nb-iot.",
        ),
        (
            "[links.edge_cloud]\nlatency = 1\n",
            "links.edge_cloud has no bandwidth: set links.edge_cloud.bandwidth",
        ),
        ("[zzz.qqq]\nxxx = 3\n", "There is no key zzz.qqq.xxx: `sfedhp run --help-all` lists all keys."),
        ("rounds = true\n", "rounds = True is not a whole number: it must be at least 1."),
        ("rounds = 2.5\n", "rounds = 2.5 is not a whole number: it must be at least 1."),
        ('rounds = "2"\n', "rounds = '2' is not a whole number: it must be at least 1."),
        ("rounds = [1, 2]\n", r"rounds = \[1, 2\] is not a whole number: it must be at least 1."),
        ("dtype = 32\n", "dtype = 32 is not known: use float32 or float64."),
        ("[algorithm]\nedge_rate = inf\n", "algorithm.edge_rate = inf is not a finite number: write one."),
        ("[algorithm]\nedge_rate = -1\n", "algorithm.edge_rate = -1.0 is out of range: it must be above 0."),
        ("algorithm = 3\n", "algorithm.name = 3 is not a method: use sfedhp, "),
        ("rounds = 3\n[data\n", r"exp.toml is not valid TOML: .*line 2"),
    ],
)
def test_a_wrong_file_is_refused(config, text, sentence):
    with pytest.raises(InputError, match=sentence):
        read_settings([config(text)]).experiment()


def test_every_key_can_be_set_by_its_own_default():
    for method in ALGORITHMS:
        options = common_options() | method_options(method)
        words = [f"{key}={option.default}" for key, option in options.items() if option.default is not None]
        assert len(words) >= 30
        expected = read_settings([f"algorithm={method}"]).experiment()
        assert read_settings([*words, f"algorithm={method}"]).experiment() == expected


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("rounds=7", 7),
        ("rounds=7.0", 7),
        ("rounds=1_000", 1000),
        ("seed=4611686018427387903", 4611686018427387903),
        ("density_threshold=1", 1.0),
        ("density_threshold=1e-3", 1e-3),
        ("data.train_per_label=3", 3),
        ("wire.difference=true", True),
        ("wire.difference=Off", False),
        ("wire.difference=0", False),
        ("device=1", "1"),
        ("dtype=float64", "float64"),
        ("clients_per_edge=3", 3),
        ("clients_per_edge=[2,4]", (2, 4)),
        ("clients_per_edge=2, 4", (2, 4)),
    ],
)
def test_text_is_read_as_the_type_of_its_key(word, value):
    experiment = read_settings([word]).experiment()
    read = experiment
    for part in word.partition("=")[0].split("."):
        read = getattr(read, part)
    assert (type(read), read) == (type(value), value)


@pytest.mark.parametrize(
    ("word", "sentence"),
    [
        ("rounds=1e3", "rounds = '1e3' is not a whole number: it must be at least 1."),
        ("rounds=2.5", "rounds = '2.5' is not a whole number"),
        ("algorithm.edge_rate=fast", "algorithm.edge_rate = 'fast' is not a number: it must be above 0."),
        ("algorithm.edge_rate=nan", "algorithm.edge_rate = 'nan' is not a finite number: write one."),
        ("algorithm.edge_rate=1e999", "algorithm.edge_rate = '1e999' is not a finite number: write one."),
        ("wire.difference=maybe", "wire.difference = 'maybe' is neither true nor false: use one of them."),
        ("data.train_per_label=none", "data.train_per_label = 'none' is not a whole number"),
        (
            "clients_per_edge=[2,x]",
            r"clients_per_edge = '\[2,x\]' is neither a whole number nor a list of them",
        ),
        ("clients_per_edge=[2,-1]", r"clients_per_edge = \[2, -1\] is out of range: each must be at least 1"),
    ],
)
def test_text_of_another_type_is_refused(word, sentence):
    with pytest.raises(InputError, match=sentence):
        read_settings([word]).experiment()


def test_a_number_too_large_for_a_float_is_refused(config):
    with pytest.raises(InputError, match="is not a finite number"):
        read_settings([config(f"[algorithm]\nedge_rate = 1{400 * '0'}\n")]).experiment()


def test_files_and_settings_are_told_apart():
    assert split_words(["a=1", "x=1/c.toml", "b=", "c.toml", "folder"]) == (
        ("x=1/c.toml", "c.toml", "folder"),
        ("a=1", "b="),
    )


def test_choices_may_be_one_kind_among_others():
    either = typing.Annotated[typing.Literal["a", "b"] | None, "bounds"]
    assert Option("key", either, None, "").choices == ("a", "b")
    assert Option("key", float | None, None, "").choices == ()


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("[id,name]", ("id", "name")),
        ("id,name", ("id", "name")),
        (" [ id , full name ] ", ("id", "full name")),
        ('["a,b", c]', ("a,b", "c")),
        ("id", ("id",)),
        ("[]", ()),
    ],
)
def test_a_list_of_names_is_read_from_a_word(text, names):
    assert read_settings([f"data.drop={text}"]).experiment().data.drop == names


def test_a_list_of_names_is_read_from_a_file_and_written_again(config):
    experiment = read_settings([config('[data]\ndrop = ["id", "name"]\n')]).experiment()
    assert experiment.data.drop == ("id", "name")
    again = read_settings([config(to_toml(to_dict(experiment)))]).experiment()
    assert again == experiment
    assert hash(again.data) == hash(experiment.data)
    with pytest.raises(InputError, match=r"data.drop = \('id', 3\) is not a list of names: write \[a, b\]"):
        read_settings([config('[data]\ndrop = ["id", 3]\n')]).experiment()
    with pytest.raises(InputError, match=r"""data.drop = 'id' is text and not .*: write \["id"\].$"""):
        read_settings([config('[data]\ndrop = "id"\n')]).experiment()


def test_paths_of_a_file_are_relative_to_it_and_those_of_words_to_the_current_folder(tmp_path, monkeypatch):
    (tmp_path / "study" / "photos").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    for source, expected in {
        "my.npz": "study/my.npz",
        "../my.csv": "study/../my.csv",
        "/data/my.parquet": "/data/my.parquet",
        "photos": "study/photos",
        "mnist": "mnist",
    }.items():
        (tmp_path / "study" / "a.toml").write_text(f'[data]\nsource = "{source}"\n')
        assert read_settings(["study/a.toml"]).experiment().data.source == expected
        assert read_settings([f"data.source={source}"]).experiment().data.source == source
    (tmp_path / "study" / "mnist").mkdir()
    (tmp_path / "study" / "b.toml").write_text(
        '[data]\nsource = "mnist"\n[model]\ninitial = "w.safetensors"\n'
    )
    found = read_settings(["study/b.toml"]).experiment()
    assert found.data.source == "mnist"  # a name of this package is no folder
    assert found.model.initial == "study/w.safetensors"
    assert read_settings(["model.initial=w.safetensors"]).experiment().model.initial == "w.safetensors"


@pytest.mark.parametrize(
    ("word", "meant"),
    [("seeds=3", "sfedhp sweep algorithm=sfedhp,fedavg seeds=3"), ("clients=6", "clients_per_edge=3")],
)
def test_keys_of_other_programs_point_to_what_is_meant(word, meant):
    with pytest.raises(InputError, match=f"There is no key {word.partition('=')[0]}: .*{re.escape(meant)}"):
        read_settings([word])
