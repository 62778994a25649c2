"""Bad input: one sentence on stderr, exit code 2, nothing on stdout, no traceback."""

from __future__ import annotations

import gzip
from importlib.metadata import entry_points

import numpy as np
import pytest
from safetensors.numpy import save_file

from sfedhp import cli
from sfedhp.algorithms import ALGORITHMS
from sfedhp.data import registry
from sfedhp.runs.folder import read_experiment

SMALL = "edges=2 clients_per_edge=2 model.name=mlr rounds=1 algorithm.edge_rounds=1"


def write_inputs(here):
    inputs, labels = np.ones((12, 3)), np.arange(12) % 2
    nan = inputs.copy()
    nan[3, 1] = np.nan
    np.savez("no-labels.npz", inputs=inputs)
    np.savez("no-inputs.npz", labels=labels)
    np.savez("nan.npz", inputs=nan, labels=labels)
    np.savez("floats.npz", inputs=inputs, labels=labels + 0.5)
    np.savez("text-labels.npz", inputs=inputs, labels=labels.astype(str))
    np.savez("nan-labels.npz", inputs=inputs, labels=np.where(np.arange(12) == 3, np.nan, 0.5))
    np.savez("negative.npz", inputs=inputs, labels=labels - 1)
    np.savez("gap.npz", inputs=inputs, labels=labels, client=np.array([0, 1, 3] * 4))
    np.savez("many.npz", inputs=inputs, labels=labels, client=np.arange(12) % 6 * 5)
    np.savez("ids.npz", inputs=inputs, labels=7 + 100 * labels)
    np.savez("good.npz", inputs=inputs, labels=labels)
    rows = [f"{20 + row}.5,{'yes' if row % 3 else 'no'},{int(row % 3 == 0)}" for row in range(24)]
    table = ["age,sick,held", *rows]
    changed = {
        "table": {},
        "hole": {3: "22.5,,0"},
        "broken": {4: "23.5,yes,0,7"},
        "only": {6: "25.5,dying,1"},
    }
    for name, lines in changed.items():
        new = [lines.get(number, line) for number, line in enumerate(table)]
        (here / f"{name}.csv").write_text("\n".join(new))
    bias = np.zeros(10, np.float32)
    bias[3] = np.nan
    save_file({"head.weight": np.ones((10, 784), np.float32), "head.bias": bias}, "nan.safetensors")
    content = (here / "good.npz").read_bytes()
    (here / "truncated.npz").write_bytes(content[: len(content) // 2])
    (here / "corrupt.npz").write_bytes(content[:150] + bytes(50) + content[200:])
    (here / "text.npz").write_text("hello")
    (here / "syntax.toml").write_text("rounds = 3\nedges 4\n")
    (here / "unknown.toml").write_text("[algorithm]\nedge_round = 3\n")
    (here / "range.toml").write_text("rounds = 0\n")
    (here / "deep.toml").write_text("x = " + "[" * 50_000 + "]" * 50_000)
    (here / "deep-table.toml").write_text("[" + ".".join("x" * 3000) + "]\n")
    (here / "digits.toml").write_text(f"rounds = 1{'0' * 5000}\n")
    (here / "hex.toml").write_text(f"rounds = 0x{'f' * 5000}\n")
    (here / "deep").mkdir()
    (here / "deep" / "config.toml").write_text("x = " + "[" * 50_000 + "]" * 50_000)
    (here / "latin.toml").write_bytes("# é\n".encode("latin-1"))
    (here / "folder.toml").mkdir()
    (here / "file").write_text("")
    (here / "taken").mkdir()
    (here / "taken" / "config.toml").write_text("")
    (here / "half").mkdir()
    (here / "half" / "fedavg").mkdir()
    (here / "half" / "fedavg" / "config.toml").write_text("")
    (here / "broken").mkdir()
    (here / "broken" / "config.toml").write_text("rounds = ")
    (here / "three.py").write_text(
        "import torch\nclass Three(torch.nn.Linear):\n"
        "    def __init__(self):\n        super().__init__(784, 3)\n"
        "    def forward(self, x):\n        return super().forward(x.flatten(1))\n"
        "number = 3\n"
        "class Noisy(Three):\n"
        "    def forward(self, x):\n        return super().forward(x + torch.randn_like(x))\n"
        "def frozen():\n"
        "    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, 10)).requires_grad_(False)\n"
    )
    mnist = here / "datasets" / "mnist"
    mnist.mkdir(parents=True)
    for forms in registry.IMAGE_SETS["mnist"].parts:
        (mnist / forms[0].name).write_bytes(gzip.compress(b"not the published file"))


REFUSED = {
    # keys and values
    "run rouds=3": "did you mean rounds or schedule.rounds?",
    "run unknown.toml": "did you mean algorithm.edge_rounds?",
    "compare algorithm.edge_round=3": "did you mean algorithm.edge_rounds?",
    "data show data.sauce=mnist": "did you mean data.source?",
    "run algorithm=fedavgg": "did you mean fedavg?",
    "run algorithm=my_methods.Mine": "is not a method: write my_methods:Mine, with a colon before the name",
    "run algorithm=sfedhp.algorithms:FedAvgg": "has no FedAvgg: did you mean sfedhp.algorithms:FedAvg?",
    "run loss.name=cros_entropy": "loss.name = 'cros_entropy' is not known: did you mean cross_entropy?",
    "run loss.name=torch.nn.functional.l1_loss": "write torch.nn.functional:l1_loss, with a colon",
    "compare --only sfedhp,nothing": "--only = 'nothing' is not a method: use sfedhp, fedavg, ",
    "run algorithm.edge_rate=-0.1": "algorithm.edge_rate = -0.1 is out of range: it must be above 0.",
    "run algorithm=fedavg algorithm.local_rate=-1": "algorithm.local_rate = -1.0 is out of range",
    "compare fedavg.local_rate=-1": "local_rate = -1.0 is out of range",
    "run rounds=0": "rounds = 0 is out of range: it must be at least 1.",
    "run range.toml": "rounds = 0 is out of range: it must be at least 1.",
    "run rounds=many": "rounds = 'many' is not a whole number: it must be at least 1.",
    "run seed=-1": "seed = -1 is out of range",
    "run sampled_edges=5": "sampled_edges = 5 is more than the 4 edges",
    "run algorithm=fedavg sampled_clients=21": "sampled_clients = 21 is more than the 20 clients",
    "run sampled_clients=3": "sampled_clients = 3 has no effect: sfedhp, a method of 3 tiers, draws edges",
    "run algorithm=fedavg sampled_edges=2": "leave it out, or set sampled_clients.",
    "sweep sampled_clients=3 seeds=2": "sampled_clients = 3 has no effect",
    "compare --only sfedhp,hierfavg sampled_clients=3": "sampled_clients = 3 has no effect",
    "run data.labels_per_client=11": "data.labels_per_client = 11 is above the 10 classes",
    "run data.train_per_label=5000": "training and 50 test images per label and client do not fit",
    "run data.validation_per_label=1000": "lower it",
    "run data.partition=given": "needs an array `client`, and fmnist-mini has none",
    "run data.test_share=1": "data.test_share = 1.0 is out of range",
    "run device=cuda:99": "device = 'cuda:99' is not available here",
    "run device=toaster": "device = 'toaster' is not available here",
    "run unknown.toml --rounds 3": "There is no option --rounds: write rounds=VALUE.",
    "compare --edge-rounds=3": "There is no option --edge-rounds: write algorithm.edge_rounds=VALUE.",
    "sweep --algorithm fedavg,local": "There is no option --algorithm: write algorithm=VALUE.",
    "check --data.source mnist": "There is no option --data.source: write data.source=VALUE.",
    "data show --data mnist": "There is no option --data: write data.source=VALUE.",
    "personalize run --test-share 0.5": "There is no option --test-share: write data.test_share=VALUE.",
    "deploy --local --rounds 3": "There is no option --rounds: write rounds=VALUE.",
    "provision --every 3": "write checkpoint.every=VALUE or evaluation.every=VALUE or schedule.every=VALUE.",
    # config files
    "run syntax.toml": "is not valid TOML: ",
    "run deep.toml": "deep.toml is not valid TOML: it is nested more than 64 levels deep",
    "run deep-table.toml": "deep-table.toml is not valid TOML: it is nested more than 64 levels deep",
    "run digits.toml": "digits.toml is not valid TOML: an integer has more than 4096 bits",
    "run hex.toml": "hex.toml is not valid TOML: an integer has more than 4096 bits",
    f"run rounds=1{'0' * 5000}": "rounds = ",
    f"run algorithm.personal_rate=1{'0' * 5000}": "is not a finite number",
    "resume deep": "config.toml cannot be read (it is nested more than 64 levels deep)",
    "show deep": "config.toml cannot be read (it is nested more than 64 levels deep)",
    "run missing.toml": "There is no file missing.toml",
    "run folder.toml": "folder.toml is a folder and no config file (.toml): name a file in it.",
    "run latin.toml": "it is not UTF-8 text",
    "run one.toml two.toml": "Only one config file can be given",
    "run rounds": "rounds is neither a config file (.toml) nor key=value: write no spaces around = or after",
    "run unknown.toml round = 3": "round is neither a config file (.toml) nor key=value: write no spaces",
    "sweep rounds = 3,4": "rounds is neither a config file (.toml) nor key=value: write no spaces",
    "compare --only sfedhp, fedavg": "fedavg is neither a config file (.toml) nor key=value: write no spaces",
    "deploy --local rounds = 3": "rounds is neither a config file (.toml) nor key=value: write no spaces",
    "run table.csv": "table.csv is data and not a config file (.toml): write data.source=table.csv.",
    "run good.npz": "good.npz is data and not a config file (.toml): write data.source=good.npz.",
    "compare missing.PARQUET": "write data.source=missing.PARQUET.",
    "deploy --local table.csv": "write data.source=table.csv.",
    # data files
    "run data.source=mnits": "There is no data source 'mnits': did you mean mnist?",
    "run data.source=cifar10": "run `sfedhp data get cifar10`",
    "run data.source=mnist": "is not the published file (its checksum is wrong)",
    "run data.source=missing.npz": "There is no file ",
    "run data.source=truncated.npz": "truncated.npz is not a readable .npz file: it is corrupt or truncated.",
    "run data.source=corrupt.npz": "corrupt.npz is not a readable .npz file",
    "run data.source=text.npz": "text.npz is not a readable .npz file",
    "run data.source=no-labels.npz": "has no array `labels`",
    "run data.source=no-inputs.npz": "has no array `inputs`",
    "run data.source=nan.npz": "`inputs` holds NaN",
    "run data.source=floats.npz problem=classification": "`labels` must be integers from 0",
    "run data.source=text-labels.npz problem=regression": "not numbers, which problem = regression needs",
    "run data.source=nan-labels.npz": "`labels` holds a NaN, infinite or huge (above 3e38) value in row 3",
    "run data.source=floats.npz evaluation.metrics=[auroc]": "'auroc' does not fit problem = regression",
    "run evaluation.metrics=acuracy": "evaluation.metrics: 'acuracy' is not known: use accuracy",
    "run loss.name=mse": "loss.name = 'mse' does not fit problem = classification: use cross_entropy",
    "run loss.huber_delta=2": "loss.huber_delta is for loss.name = huber, and the loss is cross_entropy",
    "run loss.name=torch:nothing": "loss.name = 'torch:nothing' cannot be imported",
    "run loss.name=torch.nn.functional:cross_entropy": "returns shape () for 3 rows: it must return one loss",
    "run problem=multilabel": "must be 0 or 1 for each label",
    "run data.source=negative.npz": "`labels` must be integers from 0 (found -1)",
    "run data.source=gap.npz": "3 clients at 5 per edge fill only 1 of 4 edges: set edges=1",
    "run data.source=many.npz": "many.npz has 6 clients, and edges and clients_per_edge give 4 seats",
    "run data.source=ids.npz": "labels up to 107, but only 2 of these 108 classes have rows",
    "data get mnits": "did you mean mnist?",
    "data get fmnist-mini": "there is nothing to download",
    "data get fmnist --from nowhere": "fmnist is not complete there",
    "data get fmnist --from . --folder file": "Not a directory",
    "data verify mnist": "run `sfedhp data get mnist`",
    # tables
    "run data.source=table.csv data.target=sik": "'sik' is not a column of table.csv: did you mean sick?",
    "run data.source=table.csv data.target=sick problem=regression": "problem = regression needs numbers",
    "run data.source=hole.csv data.target=sick": "column 'sick' has no value in line 4",
    "run data.source=broken.csv data.target=sick": "broken.csv: line 5 has 4 values, but there are 3 columns",
    "run data.source=only.csv data.target=sick data.test_column=held": "class 'dying' occurs only in rows to",
    "run data.source=table.csv data.target=age evaluation.metrics=[auroc]": "'auroc' does not fit problem",
    "run data.source=table.csv data.target=age loss.name=torch.nn.functional:mse_loss": "returns shape ()",
    "compare data.source=table.csv data.target=sik": "did you mean sick?",
    "sweep data.source=table.csv data.target=sik seeds=2": "did you mean sick?",
    "run clients_per_edge=[3,0]": "clients_per_edge = [3, 0] is out of range: each must be at least 1.",
    # models
    "run model.name=three:Three": "10",
    "run model.name=three:number": "is not a function or class that makes a module",
    "run model.name=three:Tree": "cannot be imported, because three has no Tree: did you mean three:Three?",
    "run model.name=three.Three": "model.name = 'three.Three' is not known: write three:Three, with a colon",
    "run model.name=dnn_small": "model.name = 'dnn_small' is not known: did you mean dnn-small?",
    "run model.name=resnet": "model.name = 'resnet' is not known: did you mean resnet-gn?",
    "run model.name=my-network": "use mlp, mlr, dnn, dnn-small, ",
    "run model.name=vgg": "The vgg models need images of at least 32 × 32",
    "run model.initial=missing.safetensors": "there is no file missing.safetensors",
    "run model.initial=text.npz": "is not a safetensors file",
    "run model.name=mlr model.initial=nan.safetensors": "head.bias in nan.safetensors holds NaN or infinite",
    "run model.name=three:Noisy": "The model's forward calls randn_like, which draws random numbers that",
    "run model.name=three:frozen": "has no parameters to train; use a module with real weights that are not",
    # folders
    "run --out taken": "taken already holds a run: choose another folder, or continue the run with",
    "compare --out taken": "taken already holds a run",
    "compare --out half": "half/fedavg already holds a run",
    "run --out file": "file is a file: choose a folder.",
    "run --out file/below": "file/below cannot be written (Not a directory)",
    "run --out /proc/nowhere": "/proc/nowhere cannot be written",
    "resume nowhere": "nowhere holds no run: there is no such folder.",
    "resume half": "half holds several runs: name one of them, such as half/fedavg. To continue a sweep,",
    "resume file": "file holds no run",
    "resume broken": "cannot be read",
}


@pytest.mark.parametrize("line", REFUSED)
def test_bad_input_is_refused_with_a_sentence(sfedhp, here, line):
    write_inputs(here)
    command, *words = line.split()
    # What is small comes first, so that what is wrong has the last word.
    small = SMALL.split() if command in ("run", "compare") and not _about_size(line) else []
    result = sfedhp(command, *small, *words)
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert REFUSED[line] in result.stderr
    assert result.stdout == "" or "verify" in line
    assert not (here / "runs").exists()


def test_no_terminal_obeys_the_name_of_a_column(sfedhp, here):
    (here / "my.csv").write_text("a\x1b[31m,b\n1,2\n")
    result = sfedhp("run", "data.source=my.csv", "data.target=c")
    assert result.stderr == (
        "error: data.target = 'c' is not a column of my.csv: its columns are a\\x1b[31m, b.\n"
    )


def _about_size(line):
    return "sampled" in line or "model.initial" in line or ".toml" in line or "gap" in line


def test_methods_of_two_tiers_and_of_three_take_the_draws_they_have(sfedhp, tiny, here):
    draws = ["sampled_clients=1", "sampled_edges=2"]
    result = sfedhp("compare", *tiny, *draws, "--only", "sfedhp,fedavg", "--out", "one")
    assert (result.exit_code, "has no effect" in result.stderr) == (0, False)
    result = sfedhp("sweep", *tiny, *draws, "algorithm=sfedhp,fedavg", "--out", "many")
    assert result.exit_code == 0
    folders = {"sfedhp": ["one/sfedhp", "many/algorithm=sfedhp,seed=0"]}
    folders["fedavg"] = ["one/fedavg", "many/algorithm=fedavg,seed=0"]
    for method, both in folders.items():
        for folder in both:
            experiment = read_experiment(here / folder)
            expected = (0, 2) if ALGORITHMS[method].tiers == 3 else (1, 0)
            assert (experiment.sampled_clients, experiment.sampled_edges) == expected


def test_a_folder_that_cannot_be_made_here(sfedhp, tiny, here):
    (here / "runs").write_text("")
    result = sfedhp("run", *tiny)
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert "cannot be created (Not a directory): choose a folder with --out." in result.stderr


def test_no_room_here(sfedhp, tiny, here, monkeypatch):
    def refuse(self, *args, **kwargs):
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr("sfedhp.cli.paths.Path.mkdir", refuse)
    result = sfedhp("run", *tiny)
    assert result.exit_code == 2
    assert "cannot be created (Permission denied): choose a folder with --out." in result.stderr


def test_trouble_with_a_disk_is_a_sentence_too(sfedhp, tiny, here, monkeypatch):
    sfedhp("run", *tiny, "--out", "one")

    def full(*args, **options):
        raise OSError(28, "No space left on device", "one/history.jsonl")

    monkeypatch.setattr("sfedhp.runs.folder.History", full)
    result = sfedhp("resume", "one")
    assert (result.exit_code, result.stderr) == (2, "error: one/history.jsonl: No space left on device.\n")


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("DefaultCPUAllocator: can't allocate memory"),
    ],
)
def test_too_little_memory_is_a_sentence_and_exit_code_1(sfedhp, tiny, here, monkeypatch, error):
    def fail(*args, **options):
        raise error

    monkeypatch.setattr("sfedhp.runs.loop.explosion", fail)
    result = sfedhp("run", *tiny, "--out", "one")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.splitlines()[-1].startswith(
        "error: There is too little memory for this: set engine."
    )


def test_a_disk_that_is_full_in_a_run_is_a_sentence_and_exit_code_1(sfedhp, tiny, here, monkeypatch):
    def full(*args, **options):
        raise OSError(28, "No space left on device", "one/checkpoint")

    monkeypatch.setattr("sfedhp.runs.checkpoints.write_tensors", full)
    result = sfedhp("run", *tiny, "--out", "one")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.splitlines()[-1].startswith(
        "error: one cannot be written (No space left on device): "
    )
    monkeypatch.undo()
    monkeypatch.chdir(here)
    assert sfedhp("resume", "one").exit_code == 0


def test_a_reader_that_leaves_is_no_error_of_ours(sfedhp, monkeypatch):
    def leave(*args):
        raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr("sfedhp.data.listing", leave)
    result = sfedhp("data", "list")
    assert (result.exit_code, result.stderr) == (1, "")


@pytest.mark.parametrize("command", [["run"], ["provision", "federation.toml"]])
def test_an_empty_out_does_not_fill_the_current_folder(sfedhp, here, command):
    result = sfedhp(*command, "--out", "")
    assert result.exit_code == 2
    assert "--out is empty" in result.stderr
    assert [path.name for path in here.iterdir()] == ["tiny.npz"]


def test_a_signal_before_the_first_round_ends_at_once(sfedhp, tiny, monkeypatch):
    def interrupted(words):
        raise KeyboardInterrupt

    monkeypatch.setattr("sfedhp.cli.commands.run.read_settings", interrupted)
    assert sfedhp("run", *tiny).exit_code == 130


@pytest.mark.parametrize("word", ["algorithm.personal_rate=1e38", "algorithm.client_proximity=1e200"])
def test_a_value_beyond_the_numbers_of_the_run_is_refused(sfedhp, tiny, here, word):
    result = sfedhp("run", *tiny, word, "--out", "beyond")
    assert result.exit_code == 2
    assert "too large for the numbers of the run" in result.stderr
    assert not (here / "beyond").exists()


@pytest.mark.parametrize("words", [["fly"], ["run", "--fast"], ["resume"], ["data", "get"]])
def test_a_wrong_command_is_exit_code_2(sfedhp, words):
    result = sfedhp(*words)
    assert result.exit_code == 2
    assert "Error: " in result.stderr


def test_an_unknown_command_is_refused_with_the_nearest_name(sfedhp):
    assert "Error: There is no command 'rnu': did you mean `sfedhp run`?" in sfedhp("rnu").stderr
    assert "Error: There is no command 'fly': `sfedhp --help` lists all." in sfedhp("fly").stderr
    assert "Error: No such option" in sfedhp("-x").stderr


@pytest.mark.parametrize("line", ["run rouds=3", "run data.source=truncated.npz", "run --out taken"])
def test_a_process_prints_no_traceback(process, here, line):
    write_inputs(here)
    child = process(*line.split())
    out, err = child.communicate(timeout=600)
    assert (child.returncode, out) == (2, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert REFUSED[line] in err


def test_the_console_script_is_this_command():
    (script,) = entry_points(group="console_scripts", name="sfedhp")
    assert script.load() is cli.main
