"""The paper's theorems as plots: docs/images/theory-*.svg, and the figures of docs/theory.md as tables.

    python tools/theorems.py               a minute or two on a CPU; draws the same files every time

Quadratic clients (least squares, 4 edges, d = 10) have everything in closed form. Algorithm 1 itself is the
package's own, on the package's simulator, with full batches and inner problems solved to the end.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sfedhp.algorithms import SFedHP
from sfedhp.core.factored import dense
from sfedhp.core.keys import ROLES, key
from sfedhp.core.types import Clock
from sfedhp.inner.minimize import Descent, minimize
from sfedhp.nn.network import Network
from sfedhp.nn.task import Task
from sfedhp.theory import Constants, curvature
from tests.support.envelope import envelope
from tests.support.quadratics import cloud_round, exact_method, optimum, quadratics, trajectory

SIZE = 10
ZERO = torch.zeros(SIZE, dtype=torch.float64)
RATES = (5e-2, 2e-2, 5e-3, 2e-3, 5e-4, 2e-4)
ROUNDS = (1, 2, 5, 10, 20, 50, 100)
CLIENTS = (1, 2, 5, 10, 20)


def distance(clients: int = 5, rounds: int = 20, rate: float = 5e-3) -> float:
    """‖w_∞ − w*‖/‖w*‖: where Algorithm 1 ends, against argmin F."""
    task = quadratics(clients_per_edge=clients)
    method, constants = exact_method(task, edge_rounds=rounds, edge_rate=rate)
    best = optimum(task, constants).model
    return float((cloud_round(task, method).fixed_point - best).norm() / best.norm())


def convergence(axes: Any) -> None:
    """Theorem 2(a): w converges linearly to a fixed point of its own, which is not w*."""
    task = quadratics()
    for rate, color in ((5e-2, "tab:blue"), (5e-3, "tab:orange")):
        method, constants = exact_method(task, edge_rate=rate)
        own, best = cloud_round(task, method).fixed_point, optimum(task, constants).model
        models = [ZERO, *(each.model for each in trajectory(task, method, 60, ZERO))]
        for point, dashes, name in ((own, "-", "its own fixed point"), (best, "--", "argmin F")):
            gaps = [float((model - point).norm() / best.norm()) for model in models]
            axes.plot(gaps, dashes, color=color, label=f"η₁ = {rate:g}, to {name}")
    axes.set(yscale="log", ylim=(1e-7, 2), xlabel="cloud round", ylabel="distance of w, relative")


def excess(axes: Any) -> None:
    """Theorem 2(a) as printed, with δ = 0: η̃M₂ tends to 0 with η̃, F(w_∞) − F* does not."""
    task = quadratics()
    steps, measured, bounds = [], [], []
    for power in range(11):
        method, constants = exact_method(task, edge_rate=0.05 * 10.0**-power)
        best = optimum(task, constants)
        spread = float(best.gradients(best.model).square().sum(-1).mean())
        ratio = constants.envelope_smoothness / (constants.envelope_convexity * constants.cloud_mixing)
        steps.append(constants.global_rate)
        measured.append(float(best.excess(cloud_round(task, method).fixed_point)))
        bounds.append(constants.global_rate * 6 * (1 + 64 * ratio) * spread)
    axes.plot(steps, measured, "o-", label="F(w∞) − F*, Algorithm 1")
    axes.plot(steps, bounds, "--", label="M₁ + η̃M₂ with δ = 0")
    axes.axvline(constants.convex_bound, color="gray", linewidth=0.8)
    axes.annotate("η̃ of Theorem 2", (constants.convex_bound, 1e-4), fontsize=7, ha="right", rotation=90)
    axes.set(xscale="log", yscale="log", ylim=(1e-5, 1e2), xlabel="η̃ = η₁βR", ylabel="excess of F")


def against_rate(axes: Any) -> None:
    """Plot the distance between the end of Algorithm 1 and argmin F against η₁."""
    for clients in (1, 5, 20):
        axes.plot(RATES, [distance(clients, rate=rate) for rate in RATES], "o-", label=f"J = {clients}")
    axes.set(xscale="log", yscale="log", xlabel="η₁ (R = 20)", ylabel="‖w∞ − w*‖/‖w*‖")


def against_rounds(axes: Any) -> None:
    """Plot the distance between the end of Algorithm 1 and argmin F against R."""
    for clients in (1, 5, 20):
        gaps = [distance(clients, rounds, 1e-5) for rounds in ROUNDS]
        axes.plot(ROUNDS, gaps, "o-", label=f"J = {clients}")
    axes.set(xscale="log", yscale="log", xlabel="R (η₁ = 1e-5)", ylabel="‖w∞ − w*‖/‖w*‖")


def against_clients(axes: Any) -> None:
    """Plot the distance between the end of Algorithm 1 and argmin F against J."""
    for rate in (5e-2, 5e-3, 1e-5):
        gaps = [distance(clients, rate=rate) for clients in CLIENTS]
        axes.plot(CLIENTS, gaps, "o-", label=f"η₁ = {rate:g}")
    axes.set(yscale="log", xlabel="J, clients of an edge (R = 20)", ylabel="‖w∞ − w*‖/‖w*‖")


def clients_with_data(network: nn.Module, decay: float) -> Task:
    """Four clients with 30 rows of three classes, each in its own place."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 3, (1, 4, 30), generator=generator)
    centers = torch.eye(6, dtype=torch.float64)[labels] * 2
    shift = torch.randn(1, 4, 1, 6, generator=generator, dtype=torch.float64)
    noise = torch.randn(1, 4, 30, 6, generator=generator, dtype=torch.float64)
    stream = key(0, ROLES["client"], torch.arange(4).view(1, 4))
    sizes = torch.full((1, 4), 30)
    return Task(
        Network(network.double()),
        centers + shift + noise,
        labels,
        sizes,
        stream,
        0,
        decay,
        force_autograd=True,
    )


def draws(size: int, count: int, seed: int = 0) -> Tensor:
    """Standard normal models (count, size), the same for the same seed."""
    return torch.randn(count, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def curvature_of_quadratics(axes: Any) -> None:
    """Theorem 1 on quadratics: curvature of F against curvature of ℓ."""
    task = quadratics()
    _, constants = exact_method(task, client_proximity=10.0, edge_proximity=5.0)
    inner = torch.linalg.eigvalsh(task.hessians()).flatten()
    outer = torch.linalg.eigvalsh(optimum(task, constants).hessians).flatten()
    axes.plot(inner, outer, ".", markersize=3, label="eigenvalues of ∇²F_ij")
    _levels(axes, constants)
    axes.set(xscale="log", xlabel="eigenvalue of ∇²ℓ_ij", ylabel="eigenvalue of ∇²F_ij", ylim=(0, 5.5))


def curvature_of_regression(axes: Any) -> None:
    """Theorem 1 on logistic regression: how gradients of F change between random models."""
    torch.manual_seed(0)
    task = clients_with_data(nn.Linear(6, 3), 0.2)
    method = SFedHP(client_proximity=10.0, edge_proximity=5.0)
    constants = Constants.of_loss(method, curvature.linear_smoothness(task), 0.2)
    for size in (0.03, 0.3, 3.0):
        one, two = size * draws(21, 20), size * draws(21, 20, seed=1)
        for start, end in zip(one, two, strict=True):
            change = envelope(task, start, constants, steps=300).gradient
            change = change - envelope(task, end, constants, steps=300).gradient
            gap = start - end
            away = torch.full((4,), float(gap.norm()))
            ratio = (change.norm(dim=-1) / gap.norm()).flatten()
            convex = ((change * gap).sum(-1) / gap.square().sum()).flatten()
            axes.plot(away, ratio, ".", color="tab:blue", markersize=3)
            axes.plot(away, convex, ".", color="tab:orange", markersize=3)
    axes.plot([], [], ".", color="tab:blue", label="‖∇F(w) − ∇F(v)‖/‖w − v‖")
    axes.plot([], [], ".", color="tab:orange", label="⟨∇F(w) − ∇F(v), w − v⟩/‖w − v‖²")
    _levels(axes, constants)
    axes.set(xscale="log", xlabel="‖w − v‖", ylabel="logistic regression", ylim=(0, 5.5))


def _levels(axes: Any, constants: Constants) -> None:
    for value, name in (
        (constants.envelope_smoothness, "L_F = λ₂"),
        (constants.tight_smoothness, "λ̄"),
        (constants.envelope_convexity, "μ_F"),
    ):
        axes.axhline(value, color="gray", linewidth=0.8)
        axes.annotate(name, (0.01, value + 0.05), xycoords=("axes fraction", "data"), fontsize=7)


def ball(axes: Any) -> None:
    """Theorem 2(b): personal models end in a ball around w*."""
    task = quadratics()
    method, constants = exact_method(task)
    best = optimum(task, constants)
    spread = float(best.gradients(best.model).square().sum(-1).mean())
    stiff, smoothness = constants.root_proximity**2, constants.envelope_smoothness
    measured, bounds = [], []
    for each in trajectory(task, method, 20, ZERO):
        measured.append(float((each.personal - best.model).square().sum(-1).mean()))
        away = float((each.model - best.model).square().sum())
        bounds.append((5 + 10 * smoothness**2 / stiff) * away + 10 * spread / stiff)
    axes.plot(measured, label="mean ‖θ_ij − w*‖²")
    axes.plot(bounds, "--", label="the proof's bound, L_F² for L_F")
    axes.axhline(10 * spread / stiff, color="gray", linewidth=0.8, label="10 σ²/λ², the radius")
    axes.set(yscale="log", xlabel="cloud round", ylabel="quadratics, Theorem 2(b)")


def near(axes: Any) -> None:
    """Theorem 3(b): personal models stay near w, on a network."""
    torch.manual_seed(0)
    task = clients_with_data(nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)), 0.0)
    model, _ = task.network.initial()
    smoothness = curvature.measure(task, model).smoothness
    method = SFedHP(client_proximity=8 * smoothness, edge_proximity=8 * smoothness)
    constants = Constants.of_loss(method, smoothness)
    measured, first, stated = [], [], []
    for _ in range(30):
        here = envelope(task, model, constants, steps=200)
        grads = here.gradient.flatten(0, 1)
        mean = grads.mean(0)
        losses = task.gradient(model, task.everything()).flatten(0, 1)
        diversity = float((losses - losses.mean(0)).square().sum(-1).mean())  # σ_ℓ² at w
        stiff = constants.root_proximity**2
        larger = stiff / (stiff - 16 * smoothness**2) * diversity  # σ²_{F,2}
        measured.append(float((here.personal - model).square().sum(-1).mean()))
        first.append(4 * float(grads.square().sum(-1).mean()) / stiff)
        stated.append(4 * (float(mean.square().sum()) + larger / stiff))
        model = model - mean / constants.envelope_smoothness * 5
    axes.plot(measured, label="mean ‖θ̂_ij − w‖²")
    axes.plot(first, "--", label="4 mean ‖∇F_ij‖²/λ²")
    axes.plot(stated, ":", label="4 (‖∇F‖² + σ²/λ²)")
    axes.set(yscale="log", xlabel="step of gradient descent on F", ylabel="a network, Theorem 3(b)")


@dataclass(frozen=True)
class Inner:
    """Inner problems of noisy quadratic clients, measured on many mini-batches."""

    clients: int = 4
    draws: int = 60

    def error(self, steps: int, batch: int) -> tuple[float, float]:
        """E‖θ̃ − θ̂‖² of K steps, and the δ² of the lemma with the ν that was left; the worst client's."""
        task = quadratics(edges=1, clients_per_edge=self.clients, noise=3.0)
        _, constants = exact_method(task)
        pull, identity = constants.client_proximity, torch.eye(SIZE, dtype=torch.float64)
        anchor = 3 * draws(SIZE, self.clients).unsqueeze(0)
        hessians = task.hessians()
        right = (hessians @ task.minimizers().unsqueeze(-1)).squeeze(-1) + pull * anchor
        exact = torch.linalg.solve(hessians + pull * identity, right)
        off = (task.inputs @ exact.unsqueeze(-1)).squeeze(-1) - task.labels
        each = off.unsqueeze(-1) * task.inputs
        variance = float((each - each.mean(-2, keepdim=True)).square().sum(-1).mean(-1).max())
        rate = 1 / (pull + 1 + float(task.inputs.square().sum(-1).max()))
        task.batch_size = batch
        gaps, left = [], []
        for turn in range(self.draws):
            clock = Clock(turn)
            theta = dense(minimize(task, clock, anchor, Descent(steps, rate, pull)))
            grad = task.gradient(theta, task.batch(clock)) + pull * (theta - anchor)
            gaps.append((theta - exact).square().sum(-1))
            left.append(grad.square().sum(-1))
        accuracy = float(torch.stack(left).mean(0).max())
        return float(torch.stack(gaps).mean(0).max()), constants.inner_error(variance, batch, accuracy)


def inner_by_steps(axes: Any) -> None:
    """Plot the error δ² of the inner problem against the number of steps K."""
    steps = (1, 2, 5, 10, 20, 50)
    for batch, color in ((2, "tab:blue"), (8, "tab:orange"), (32, "tab:green")):
        pairs = [Inner().error(count, batch) for count in steps]
        axes.plot(steps, [pair[0] for pair in pairs], "o-", color=color, label=f"measured, |D| = {batch}")
        axes.plot(steps, [pair[1] for pair in pairs], "--", color=color)
    axes.plot([], [], "--", color="gray", label="δ²")
    axes.set(xscale="log", yscale="log", xlabel="K, steps", ylabel="E‖θ̃ − θ̂‖²")


def inner_by_batch(axes: Any) -> None:
    """Plot the error δ² of the inner problem against the batch size |D|."""
    batches = (1, 2, 4, 8, 16, 32)
    pairs = [Inner().error(60, batch) for batch in batches]
    axes.plot(batches, [pair[0] for pair in pairs], "o-", label="measured, K = 60")
    axes.plot(batches, [pair[1] for pair in pairs], "--", label="δ²")
    axes.set(xscale="log", yscale="log", xlabel="|D|, rows of a mini-batch (of 40)", ylabel="E‖θ̃ − θ̂‖²")


PLOTS: dict[str, tuple[Callable[[Any], None], ...]] = {
    "theorem-1": (curvature_of_quadratics, curvature_of_regression),
    "theorem-2": (convergence, excess),
    "floor": (against_rate, against_rounds, against_clients),
    "balls": (ball, near),
    "inner": (inner_by_steps, inner_by_batch),
}


def table() -> str:
    """The floor at some step sizes, as Markdown."""
    lines = [
        "| ‖w∞ − w*‖/‖w*‖, R = 20 | η₁ = 0.05 | η₁ = 0.005 | η₁ = 0.0005 |",
        "| --- | --- | --- | --- |",
    ]
    for clients in (1, 5, 20):
        gaps = (f"{distance(clients, rate=rate):.4f}" for rate in (5e-2, 5e-3, 5e-4))
        lines.append(f"| J = {clients} | {' | '.join(gaps)} |")
    return "\n".join(lines)


def draw(name: str, folder: Path) -> None:
    """One file, with a panel for each function."""
    import matplotlib as mpl

    mpl.use("svg")
    # The same file whenever it is drawn.
    mpl.rcParams |= {"svg.hashsalt": name, "svg.fonttype": "none", "font.size": 8}
    from matplotlib import pyplot

    panels = PLOTS[name]
    figure, axes = pyplot.subplots(1, len(panels), figsize=(4 * len(panels), 3.2), layout="constrained")
    for each, panel in zip(axes, panels, strict=True):
        panel(each)
        each.grid(alpha=0.3)
        each.legend(fontsize=6)
    figure.savefig(folder / f"theory-{name}.svg", metadata={"Date": None})
    pyplot.close(figure)


def main() -> None:
    """Draw the plots and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, default=Path("docs/images"))
    parser.add_argument("--only", default="", help=f"comma-separated: {', '.join(PLOTS)}")
    arguments = parser.parse_args()
    for name in arguments.only.split(",") if arguments.only else PLOTS:
        draw(name, arguments.folder)
    print(table())


if __name__ == "__main__":
    main()
