"""Five sets of scikit-learn: training alone, sFedHP, and all rows in one place. For docs/tables.md.

    python tools/scikit_sets.py                     the table of the page
    python tools/scikit_sets.py --only wine --seeds 1 --rounds 5
    python tools/scikit_sets.py --write FOLDER      only the CSV files that the commands of the page read

Every method has a grid of settings. The setting is the one with the best mean over seeds on validation rows,
and each seed's round is chosen by its own validation rows. The baseline of scikit-learn is trained on the
training rows of all clients, and is the better one, on the same validation rows, of a linear model and a
network of the same size. All figures are of the test rows of all clients.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any, Final, NamedTuple

import numpy as np
import sklearn.datasets
from numpy.typing import NDArray
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.neural_network import MLPClassifier, MLPRegressor

import sfedhp
from sfedhp.config import from_dict
from sfedhp.data import DataOptions, Federation, federate

TARGET: Final = "target"
BASE: Final = {"test_share": 0.25, "validation_per_label": 1}


class Set(NamedTuple):
    """A set of data, and how its rows are dealt out."""

    edges: int
    clients_per_edge: int
    classes: bool


SETS: Final = {
    "cancer": Set(4, 5, True),
    "digits": Set(4, 5, True),
    "wine": Set(2, 3, True),
    "diabetes": Set(2, 4, False),
    "houses": Set(4, 5, False),
}
MODELS: Final = ("mlr", "mlp")
GRIDS: Final[dict[str, dict[str, Sequence[Any]]]] = {
    "local": {"local_rate": (0.03, 0.1, 0.3)},
    "sfedhp": {"personal_rate": (0.05, 0.2), "client_proximity": (0.5, 2.0)},
    "pooled": {"local_rate": (0.01, 0.1)},
}
KIND: Final = {"local": "pm", "sfedhp": "pm", "pooled": "gm"}


def houses(rows: int = 2000) -> tuple[NDArray[np.float64], NDArray[np.float64], list[str]]:
    """Made-up houses with the columns of the California set, which cannot be had without a network.

    The price rises with the income and falls with the distance from two cities, and neither is linear.
    """
    draw = np.random.default_rng(0)
    income, age = draw.lognormal(1.2, 0.45, rows), draw.integers(1, 53, rows)
    rooms, bedrooms = 3 + 0.6 * income + draw.normal(0, 0.7, rows), draw.normal(1.1, 0.1, rows)
    population, occupants = draw.lognormal(7, 0.6, rows), draw.lognormal(1, 0.25, rows)
    latitude, longitude = draw.uniform(32.5, 42, rows), draw.uniform(-124.3, -114.3, rows)
    near = [
        np.exp(-((latitude - north) ** 2 + (longitude - east) ** 2) / 3)
        for north, east in ((34.1, -118.2), (37.8, -122.4))
    ]
    price = 0.45 * income + 0.006 * age - 0.25 * (occupants - 2.7) + 1.5 * near[0] + 2 * near[1]
    price = np.clip(price + draw.normal(0, 0.25, rows), 0.15, 6)
    columns = [income, age, rooms, bedrooms, population, occupants, latitude, longitude]
    names = ["MedInc", "HouseAge", "AveRooms", "AveBedrms", "Population", "AveOccup", "Latitude", "Longitude"]
    return np.stack(columns, 1), price, names


def table_of(name: str) -> tuple[NDArray[Any], NDArray[Any], list[str]]:
    """Inputs, targets and the names of the columns, as scikit-learn has them: raw."""
    if name == "houses":
        return houses()
    loader = {"cancer": "breast_cancer"}.get(name, name)
    options = {"scaled": False} if name == "diabetes" else {}
    found = getattr(sklearn.datasets, f"load_{loader}")(**options)
    labels = found.target if not SETS[name].classes else np.asarray(found.target_names)[found.target]
    return found.data, labels, [str(each) for each in found.feature_names]


def write(name: str, folder: Path) -> Path:
    """Write a set as a CSV file, its columns as they are."""
    inputs, targets, names = table_of(name)
    path = folder / f"{name}.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow([*names, TARGET])
        for row, target in zip(inputs.tolist(), targets.tolist(), strict=True):
            table.writerow([*row, target])
    return path


def experiments(name: str, source: Path, method: str, setting: dict[str, Any], given: Any) -> list[Any]:
    """The experiments of a setting, one for each seed."""
    held, options = SETS[name], dict(setting)
    config: dict[str, Any] = {
        "edges": held.edges,
        "clients_per_edge": held.clients_per_edge,
        "rounds": given.rounds,
        "model": {"name": options.pop("model")},
        "data": {**BASE, "source": str(source), "target": TARGET},
    }
    if method == "sfedhp":
        options |= {"edge_proximity": options["client_proximity"], "edge_rate": 0.1}
    algorithm = {"name": method, **options}
    return [from_dict({**config, "seed": seed, "algorithm": algorithm}) for seed in range(given.seeds)]


def chosen(name: str, source: Path, method: str, given: Any) -> tuple[dict[str, Any], list[float]]:
    """The setting that is best on validation rows, and the figure of each seed on test rows."""
    sign = 1 if SETS[name].classes else -1
    column = KIND[method] if SETS[name].classes else f"{KIND[method]}_rmse"
    keys = {"model": MODELS, **GRIDS[method]}
    settings = [dict(zip(keys, values, strict=True)) for values in itertools.product(*keys.values())]
    runs = [each for setting in settings for each in experiments(name, source, method, setting, given)]
    outcomes = iter(sfedhp.sweep(runs))
    best: tuple[float, dict[str, Any], list[float]] | None = None
    for setting in settings:
        found = list(itertools.islice(outcomes, given.seeds))
        if any(outcome.error for outcome in found):
            continue
        # Of rounds that are equally good the last one, and of settings the first.
        rows = [
            max(reversed(o.run.history), key=lambda row: sign * row[f"{column}_validation"]) for o in found
        ]
        score = mean(sign * row[f"{column}_validation"] for row in rows)
        if given.all:
            print(setting, f"{sign * score:.4g}", _cell([row[column] for row in rows]))
        if best is None or score > best[0]:
            best = score, setting, [row[column] for row in rows]
    assert best is not None, f"every setting of {method} diverged on {name}"
    return best[1], best[2]


def baseline(name: str, source: Path, seed: int) -> float:
    """scikit-learn on the training rows of all clients: the better on validation rows of two models."""
    held = SETS[name]
    options = DataOptions(str(source), target=TARGET, **BASE)  # type: ignore[arg-type]
    federation, _ = federate(options, edges=held.edges, clients_per_edge=held.clients_per_edge, seed=seed)
    train, validation, test = (
        _arrays(federation, rows) for rows in (federation.train, federation.validation, federation.test)
    )
    network = {"hidden_layer_sizes": (64, 64), "max_iter": 1000, "random_state": seed}
    models: list[Any]
    if held.classes:
        models = [LogisticRegression(max_iter=5000), MLPClassifier(**network)]
    else:
        models = [LinearRegression(), MLPRegressor(**network)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for model in models:
            model.fit(*train)
    unit = 1.0 if federation.target_scaling is None else float(federation.target_scaling.spread.item())

    def figure(model: Any, rows: tuple[NDArray[Any], NDArray[Any]]) -> float:
        found, wanted = model.predict(rows[0]), rows[1]
        if held.classes:
            return 100 * float((found == wanted).mean())
        return unit * float(np.sqrt(((found - wanted) ** 2).mean()))

    pick = max if held.classes else min
    return figure(pick(models, key=lambda model: figure(model, validation)), test)


def _arrays(federation: Federation, held: Sequence[NDArray[np.int64]]) -> tuple[NDArray[Any], NDArray[Any]]:
    rows = np.concatenate(held)
    labels = federation.targets(rows, "float64")
    return federation.scaled(rows, "float64"), labels if federation.classes else labels[:, 0]


def main() -> None:
    """Print one Markdown row for each set, and the settings that were chosen."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--only", choices=SETS, nargs="+", default=list(SETS))
    parser.add_argument("--write", type=Path)
    parser.add_argument("--all", action="store_true", help="print every setting: validation, test")
    given = parser.parse_args()
    if given.write is not None:
        given.write.mkdir(parents=True, exist_ok=True)
        for name in given.only:
            print(write(name, given.write))
        return
    print(f"sfedhp {sfedhp.__version__}, {given.rounds} rounds, seeds 0 to {given.seeds - 1}\n")
    print("| set | clients | metric | alone | sFedHP, PM | pooled | scikit-learn |")
    print("| --- | ---: | --- | ---: | ---: | ---: | ---: |")
    settings = []
    with tempfile.TemporaryDirectory() as folder:
        for name in given.only:
            source, held = write(name, Path(folder)), SETS[name]
            cells = []
            for method in KIND:
                setting, figures = chosen(name, source, method, given)
                settings.append(f"{name}, {method}: {setting}")
                cells.append(_cell(figures))
            cells.append(_cell([baseline(name, source, seed) for seed in range(given.seeds)]))
            metric = "accuracy, %" if held.classes else "RMSE"
            clients = held.edges * held.clients_per_edge
            print(f"| {name} | {clients} | {metric} | {' | '.join(cells)} |", flush=True)
    print("\n" + "\n".join(settings))


def _cell(figures: Sequence[float]) -> str:
    spread = f" ± {stdev(figures):.2g}" if len(figures) > 1 else ""
    return f"{mean(figures):.4g}{spread}"


if __name__ == "__main__":
    main()
