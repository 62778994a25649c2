"""Where training really breaks: the largest steps that the proximal terms and the data's curvature allow."""

from __future__ import annotations

from dataclasses import replace

from sfedhp.algorithms import Algorithm, SFedHP, StepRule
from sfedhp.algorithms.schedule import ScheduleOptions
from sfedhp.theory.curvature import BATCHES, BatchCurvature
from sfedhp.theory.line import Line
from sfedhp.theory.overshoot import overshoot
from sfedhp.theory.settings import Settings


def limit_lines(algorithm: Algorithm, curvature: BatchCurvature, density_threshold: float) -> list[Line]:
    """The practical limits of a method's rates.

    A gradient step on ℓ + s/2 ‖x − a‖² overshoots more each time where η(s + h) > 2. A single diverging
    client is enough to break the mean, so the worst tenth of the clients has a separate line.

    Args:
        algorithm: the method, with the options of one run.
        curvature: h, of the mini-batches.
        density_threshold: τ, below which a weight counts as zero.
    """
    rules = algorithm.step_rules()
    lines = [
        _curvature_line(
            "batch_curvature", "h, the curvature of a mini-batch's loss", curvature.median, "half"
        ),
        _curvature_line("worst_curvature", "h of the worst tenth of the clients", curvature.worst, "a tenth"),
    ]
    for rule in rules:
        if rule.uses_data:
            lines += _data_lines(rule, curvature)
    lines += [line for rule in rules for line in _even_steps_lines(rule)]
    if isinstance(algorithm, SFedHP):
        return [*lines, *_edge_lines(Settings.of(algorithm)), *_overshoot_lines(algorithm, density_threshold)]
    moves = [rule for rule in rules if not rule.uses_data]
    return [*lines, *(_below("model_step", f"{rule.what}: ηλ < 2", rule.pulled_share, 2.0) for rule in moves)]


def schedule_lines(schedule: ScheduleOptions) -> list[Line]:
    """That the limits above are for the full rates, where a schedule changes them."""
    if not schedule.active:
        return []
    note = "the limits above are for the full rates, which a schedule never exceeds"
    what = "share of the rates in the first round"
    return [Line("limits", "schedule", what, float(schedule.share(0)), note=note)]


def _data_lines(rule: StepRule, curvature: BatchCurvature) -> list[Line]:
    """The limit of a step on data, for half of the clients and for the worst tenth."""
    name, rate, limit = rule.rate.name, rule.rate.value, _stable_below(rule)
    pull = rule.pull.value if rule.pull is not None else 0.0
    if curvature.bounded:
        note = "h is left out: one layer has a bounded gradient, and the others are normalized"
        return [_below(name, f"{rule.what}: ηλ < {limit:.3g}", rule.pulled_share, limit, note)]
    formula = f"η(λ + h) < {limit:.3g}" if pull else f"ηh < {limit:.3g}"
    worst = f"the same for the worst tenth: {formula}"
    lines = [
        _below(name, f"{rule.what}: {formula}", rate * (pull + curvature.median), limit),
        _below(f"{name}_worst", worst, rate * (pull + curvature.worst), limit),
    ]
    return [_bounded_by_clip(line) for line in lines] if rule.clipped else lines


def _bounded_by_clip(line: Line) -> Line:
    """The line of steps on clipped gradients: beyond the limit they overshoot, but cannot grow."""
    note = "" if line.inside else "steps overshoot; algorithm.clip bounds them"
    return replace(line, note=note, alarm=False)


def _stable_below(rule: StepRule) -> float:
    """What η times a curvature must stay below, so that steps do not overshoot more each time."""
    if rule.momentum is not None:
        return 2 * (1 + rule.momentum.value)  # the heavy ball's: 2 without momentum
    if not rule.nesterov or rule.repeats is None:
        return 2.0
    # With momentum m the limit is (2 + 2m)/(1 + 2m); m is k/(k + 3) in step k, so largest in the last one.
    momentum = (rule.repeats.value - 1) / (rule.repeats.value + 2)
    return (2 + 2 * momentum) / (1 + 2 * momentum)


def _even_steps_lines(rule: StepRule) -> list[Line]:
    """The limit of an even number of steps on one mini-batch, if there is one."""
    if rule.repeats is None or rule.even_steps_limit is None:
        return []
    limit = rule.even_steps_limit
    what = f"ηλ < {limit:g}, because K = {rule.repeats.value:g} is even"
    return [_below("even_steps", what, rule.pulled_share, limit, "an odd K has no such limit")]


def _edge_lines(own: Settings) -> list[Line]:
    """The limit of the edge's step."""
    # u = w_i − φ_i becomes λ₁/(λ₁+λ₂) (1 − η₁λ₂) u in an edge round, for φ_i holds a part of w_i.
    limit = 1 + (own.client_proximity + own.edge_proximity) / own.client_proximity
    value = own.edge_rate * own.edge_proximity
    return [_below("edge_rate", "the edge's step: η₁λ₂ < 1 + (λ₁+λ₂)/λ₁", value, limit)]


def _overshoot_lines(algorithm: SFedHP, density_threshold: float) -> list[Line]:
    """Whether the smooth ℓ1 overshoots zero, at the clients and at the edges, where it has a weight."""
    own = Settings.of(algorithm)
    if own.penalty == "l1":
        return []  # its proximal step cannot overshoot zero
    size, lines = overshoot(algorithm), []
    if own.client_sparsity:
        value = own.personal_rate * (own.client_proximity + own.client_sparsity / own.smoothing)
        note = _overshoot_note(value, size.client, density_threshold)
        lines.append(_overshoot_line("client_overshoot", "η₂(λ₁ + γ₁/ρ)", value, note))
    if own.edge_sparsity:
        value = own.edge_rate * (own.edge_proximity + own.edge_sparsity / own.smoothing)
        note = _overshoot_note(value, size.model, density_threshold)
        lines.append(_overshoot_line("edge_overshoot", "η₁(λ₂ + γ₂/ρ)", value, note))
    return lines


def _overshoot_line(name: str, symbols: str, value: float, note: str) -> Line:
    return Line("limits", name, f"{symbols} < 2, or weights oscillate", value, 2.0, note=note)


def _overshoot_note(value: float, size: float, threshold: float) -> str:
    """Above 2 the smooth ℓ1 overshoots zero, but by a bounded amount, for its gradient is at most 1."""
    if value <= 2:
        return "weights near zero come to rest there"
    side = "below" if size < threshold else "above"
    reach = f"{size:.0e}, {side} the threshold {threshold:.0e}"
    return f"weights will oscillate around zero by up to {reach}; the run does not diverge by it"


def _curvature_line(name: str, what: str, value: float, share: str) -> Line:
    note = f"at the initial weights, the largest of up to {BATCHES} batches: {share} of the clients reach it"
    return Line("limits", name, what, value, note=note)


def _below(name: str, what: str, value: float, limit: float, note: str = "") -> Line:
    note = "expect a collapse or a divergence" if value >= limit else note
    return Line("limits", name, what, value, limit, note=note, alarm=True)
