"""Imports point one way, and the core stands on torch, numpy and safetensors alone."""

import ast
import subprocess
import sys
from pathlib import Path

import sfedhp

PACKAGE = Path(sfedhp.__file__).parent
# From the foundations up: a module imports only from its own line and from those above.
LAYERS = [
    {"_version"},
    {"core"},
    {"wire", "data"},
    {"nn"},
    {"inner"},
    {"gaussian"},
    {"algorithms"},
    {"engine"},
    {"config"},
    {"runs"},
    {"checks"},
    {"theory", "deploy"},
    {"paper"},
    {"__init__"},
    {"bench"},
    {"cli"},
]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}


def modules():
    for path in sorted(PACKAGE.rglob("*.py")):
        yield path.relative_to(PACKAGE), ast.parse(path.read_text(encoding="utf-8"))


def imported(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names if node.module == "sfedhp")


def test_imports_point_one_way():
    wrong = []
    for path, tree in modules():
        own = path.parts[0].removesuffix(".py")
        for name in imported(tree):
            parts = name.split(".")
            # `import sfedhp` itself is for the version.
            if parts[0] == "sfedhp" and len(parts) > 1 and parts[1] in LEVEL and LEVEL[parts[1]] > LEVEL[own]:
                wrong.append(f"{path} imports {name}")
    assert not wrong


def test_every_module_has_its_layer():
    assert {path.parts[0].removesuffix(".py") for path, _ in modules()} <= LEVEL.keys()


# What an extra brings, and the only part of the package that may import it.
EXTRAS = {"deploy": {"nvflare"}, "paper": {"matplotlib"}, "nn": {"triton"}}


def test_only_the_command_line_and_extras_need_more_than_the_core():
    allowed = {"torch", "numpy", "safetensors", "sfedhp"} | sys.stdlib_module_names
    wrong = [
        f"{path} imports {name}"
        for path, tree in modules()
        if path.parts[0] != "cli"
        for name in imported(tree)
        if name.split(".")[0] not in allowed | EXTRAS.get(path.parts[0], set())
    ]
    assert not wrong


def test_the_core_runs_where_nothing_else_is_installed():
    code = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        extras = {"ray", "nvflare", "matplotlib"}
        if name.split(".")[0] in {"click", "pydantic", "rich", "hypothesis", "pytest"} | extras:
            raise ImportError(name)
sys.meta_path.insert(0, Refuse())
import torch
torch.set_num_threads(1)
import sfedhp
from sfedhp.data import DataOptions
data = DataOptions(train_per_label=4, test_per_label=2, validation_per_label=0)
experiment = sfedhp.Experiment(rounds=1, edges=2, clients_per_edge=2, data=data)
print(sfedhp.run(experiment).summary["rounds"])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "1"


def test_algorithms_know_nothing_of_engines():
    for path, tree in modules():
        if path.parts[0] == "algorithms":
            names = set(imported(tree))
            assert not {
                name
                for name in names
                if any(word in name for word in ("simulator", "config", "roles", "cli"))
            }


def test_files_stay_short():
    long = {str(path): len((PACKAGE / path).read_text().splitlines()) for path, _ in modules()}
    assert not {path: lines for path, lines in long.items() if lines > 350}
