"""Imports point one way, and the core needs torch, numpy and safetensors alone."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import sfedhp

PACKAGE = Path(sfedhp.__file__).parent
# A package imports only from levels above its own line, and from itself.
LEVELS = [
    {"_version", "core"},
    {"data", "wire", "nn", "gaussian", "privacy"},
    {"inner"},
    {"algorithms"},
    {"engine", "config"},
    {"runs"},
    {"checks", "theory", "deploy", "paper", "bench", "serving", "membership"},
    {"report"},
    {"cli"},
    {"__init__", "__main__"},
]
LEVEL = {name: level for level, names in enumerate(LEVELS) for name in names}


@cache
def modules() -> tuple[tuple[Path, ast.Module], ...]:
    """Each file of the package, relative to it, with its syntax tree."""
    paths = sorted(PACKAGE.rglob("*.py"))
    return tuple((path.relative_to(PACKAGE), ast.parse(path.read_text(encoding="utf-8"))) for path in paths)


def dotted(path: Path) -> str:
    return ".".join(["sfedhp", *path.with_suffix("").parts]).removesuffix(".__init__")


def imported(tree: ast.Module) -> Iterator[str]:
    """The dotted names of every import, also of those inside functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            assert node.module is not None
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_packages_import_only_from_lower_levels() -> None:
    wrong = []
    for path, tree in modules():
        own = path.parts[0].removesuffix(".py")
        for name in imported(tree):
            first, other = [*name.split("."), "", ""][:2]
            level = LEVEL.get(other, LEVEL["__init__"])  # any other name is one that `sfedhp` itself gives
            if first == "sfedhp" and other != own and level >= LEVEL[own]:
                wrong.append(f"{path} imports {name}")
    assert not wrong


def test_no_cycle_inside_a_package() -> None:
    trees = {dotted(path): tree for path, tree in modules()}
    graph = {
        module: {
            next(name for name in (target, target.rpartition(".")[0]) if name in trees)
            for target in imported(tree)
            if target in trees or target.rpartition(".")[0] in trees
        }
        for module, tree in trees.items()
        if module != "sfedhp"  # its names are imported on demand
    }
    try:
        list(TopologicalSorter(graph).static_order())
    except CycleError as error:
        raise AssertionError(" -> ".join(error.args[1])) from None


def test_every_module_has_a_level() -> None:
    assert {path.parts[0].removesuffix(".py") for path, _ in modules()} <= LEVEL.keys()


def test_every_package_says_what_it_holds() -> None:
    for path, tree in modules():
        if path.name == "__init__.py":
            assert ast.get_docstring(tree), path


# What an extra brings, and the only part of the package that may import it.
EXTRAS = {
    "deploy": {"nvflare", "grpc", "cryptography", "prometheus_client"},  # grpc comes with nvflare
    "paper": {"matplotlib"},
    "report": {"matplotlib"},
    "nn": {"triton"},
    "runs": {"mlflow", "wandb"},  # and torch's writer for tensorboard, in runs/tracking
    "data": {"pyarrow", "PIL"},
    "serving": {"onnxruntime", "onnxscript"},
    "privacy": {"cryptography", "dp_accounting"},
}


def test_only_the_command_line_and_extras_need_more_than_the_core() -> None:
    allowed = {"torch", "numpy", "safetensors", "sfedhp"} | sys.stdlib_module_names
    wrong = [
        f"{path} imports {name}"
        for path, tree in modules()
        if path.parts[0] != "cli"
        for name in imported(tree)
        if name.split(".")[0] not in allowed | EXTRAS.get(path.parts[0], set())
    ]
    assert not wrong


def test_the_core_runs_where_nothing_else_is_installed() -> None:
    code = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        extras = {"ray", "nvflare", "cryptography", "matplotlib", "pyarrow", "PIL", "datasets"}
        extras |= {"prometheus_client", "onnxruntime", "onnxscript", "tensorboard", "mlflow", "wandb"}
        extras |= {"dp_accounting"}
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
    strict = ["-W", "error", "-W", "ignore::DeprecationWarning"]
    done = subprocess.run([sys.executable, *strict, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "1"


def test_algorithms_know_nothing_of_engines() -> None:
    for path, tree in modules():
        if path.parts[0] == "algorithms":
            packages = {name.split(".")[1] for name in imported(tree) if name.startswith("sfedhp.")}
            assert packages <= {"algorithms", "core", "nn", "inner", "gaussian"}, path


def test_files_stay_short() -> None:
    long = {str(path): len((PACKAGE / path).read_text().splitlines()) for path, _ in modules()}
    assert not {path: lines for path, lines in long.items() if lines > 300}
