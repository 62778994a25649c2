"""Where training really breaks: the largest steps that the springs and the data's curvature allow."""

from __future__ import annotations

from typing import Any

from sfedhp.algorithms import Algorithm, SFedHP
from sfedhp.core.scalars import absent
from sfedhp.theory.curvature import BATCHES, Bend
from sfedhp.theory.line import Line
from sfedhp.theory.overshoot import swings

_STEPS = {  # the field of a rate, what it drives
    "personal_rate": "a personal model's step",
    "adaptation_rate": "the adapting step",
    "meta_rate": "the step from the start point",
    "local_rate": "a local step",
}


def limit_lines(algorithm: Algorithm, bend: Bend) -> list[Line]:
    """The practical limits of a method's rates.

    A gradient step on ℓ + s/2 ‖x − a‖² overshoots more each time where η(s + h) > 2. One client that breaks
    is enough to break the mean, so the worst tenth of the clients has a line of its own.
    """
    method: Any = algorithm
    lines = [
        _curvature("batch_curvature", "h, how sharply mini-batches bend the loss", bend.median, "half"),
        _curvature("worst_curvature", "h of the worst tenth of the clients", bend.worst, "a tenth"),
    ]
    springs = {"personal_rate": "client_proximity", "local_rate": "proximity"}
    for field, what in _STEPS.items():
        if not hasattr(method, field) or (field == "local_rate" and hasattr(method, "personal_rate")):
            continue
        rate, spring = getattr(method, field), float(getattr(method, springs.get(field, ""), 0.0))
        limit = _stable(method) if field == "personal_rate" else 2.0
        if bend.bounded:
            note = "h is left out: the gradient of one layer is bounded, and others are normalized"
            lines.append(_below(field, f"{what}: ηλ < {limit:.3g}", rate * spring, limit, note))
            continue
        formula = f"η(λ + h) < {limit:.3g}" if spring else f"ηh < {limit:.3g}"
        lines.append(_below(field, f"{what}: {formula}", rate * (spring + bend.median), limit))
        worst = rate * (spring + bend.worst)
        lines.append(_below(f"{field}_worst", f"the same for the worst tenth: {formula}", worst, limit))
    if hasattr(method, "personal_steps") and method.personal_steps % 2 == 0:
        pull = method.personal_rate * method.client_proximity
        what = f"ηλ < 1, because K = {method.personal_steps} is even"
        lines.append(_below("even_steps", what, pull, 1.0, "an odd K has no such limit"))
    if isinstance(algorithm, SFedHP):
        lines += _edge_lines(algorithm)
    elif hasattr(method, "personal_rate"):
        pull = method.local_rate * method.client_proximity
        lines.append(_below("model_step", "the step of the client's global model: ηλ < 2", pull, 2.0))
    return lines


def _stable(method: Any) -> float:
    """The largest η times a curvature at which a step on θ does not overshoot ever more."""
    if getattr(method, "solver", "gradient") != "nesterov":
        return 2.0
    # With momentum m the limit is (2 + 2m)/(1 + 2m); m is k/(k + 3) in step k, so largest in the last one.
    momentum: float = (method.personal_steps - 1) / (method.personal_steps + 2)
    return (2 + 2 * momentum) / (1 + 2 * momentum)


def _edge_lines(algorithm: SFedHP) -> list[Line]:
    method: Any = algorithm
    own, pull = method.client_proximity, method.edge_proximity
    # u = w_i − φ_i becomes λ₁/(λ₁+λ₂) (1 − η₁λ₂) u in an edge round, for φ_i holds a part of w_i.
    lines = [
        _below(
            "edge_rate",
            "the edge's step: η₁λ₂ < 1 + (λ₁+λ₂)/λ₁",
            method.edge_rate * pull,
            1 + (own + pull) / own,
        )
    ]
    if method.penalty == "l1":
        return lines  # its proximal step cannot overshoot zero
    found = swings(algorithm)
    for name, strength, rate, spring, symbols, swing in (
        ("client_chatter", method.client_sparsity, method.personal_rate, own, "η₂(λ₁ + γ₁/ρ)", found.client),
        ("edge_chatter", method.edge_sparsity, method.edge_rate, pull, "η₁(λ₂ + γ₂/ρ)", found.model),
    ):
        if not absent(strength):
            value = rate * (spring + strength / method.smoothing)
            lines.append(_chatter(name, symbols, value, swing, method.density_threshold))
    return lines


def _chatter(name: str, symbols: str, value: float, swing: float, threshold: float) -> Line:
    """Above 2 the smooth ℓ1 overshoots zero, but not without end, for its gradient is at most 1."""
    size = f"{swing:.0e}, {'below' if swing < threshold else 'above'} the threshold {threshold:.0e}"
    note = "weights near zero come to rest there"
    if value > 2:
        note = f"weights will chatter around zero by up to {size}; the run does not diverge by it"
    return Line("limits", name, f"{symbols} < 2, or weights chatter", value, 2.0, note=note)


def _curvature(name: str, what: str, value: float, share: str) -> Line:
    note = f"at the initial weights, the largest of up to {BATCHES} batches: {share} of the clients reach it"
    return Line("limits", name, what, value, note=note)


def _below(name: str, what: str, value: float, limit: float, note: str = "") -> Line:
    note = "expect a collapse or a divergence" if value >= limit else note
    return Line("limits", name, what, value, limit, note=note, alarm=True)
