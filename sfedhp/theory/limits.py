"""Where training really breaks: the largest steps that the springs and the data's curvature allow."""

from __future__ import annotations

from typing import Any

from sfedhp.algorithms import Algorithm, SFedHP
from sfedhp.scalars import absent
from sfedhp.theory.curvature import BATCHES, Bend
from sfedhp.theory.lines import Line

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
        if bend.normalized:
            note = "h is left out: layers before a normalization cannot blow up"
            lines.append(_below(field, f"{what}: ηλ < 2", rate * spring, 2.0, note))
            continue
        formula = "η(λ + h) < 2" if spring else "ηh < 2"
        lines.append(_below(field, f"{what}: {formula}", rate * (spring + bend.median), 2.0))
        worst = rate * (spring + bend.worst)
        lines.append(_below(f"{field}_worst", f"the same for the worst tenth: {formula}", worst, 2.0))
    if isinstance(algorithm, SFedHP):
        lines += _edge_lines(algorithm)
    elif hasattr(method, "personal_rate"):
        pull = method.local_rate * method.client_proximity
        lines.append(_below("model_step", "the step of the client's global model: ηλ < 2", pull, 2.0))
    return lines


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
    for name, strength, rate, spring, symbols in (
        ("client_chatter", method.client_sparsity, method.personal_rate, own, "η₂(λ₁ + γ₁/ρ)"),
        ("edge_chatter", method.edge_sparsity, method.edge_rate, pull, "η₁(λ₂ + γ₂/ρ)"),
    ):
        if not absent(strength):
            value = rate * (spring + strength / method.smoothing)
            lines.append(_chatter(name, symbols, value, rate * strength, method.density_threshold))
    return lines


def _chatter(name: str, symbols: str, value: float, swing: float, threshold: float) -> Line:
    """Above 2 the smooth ℓ1 overshoots zero: by ηγ and not more, for its slope is at most 1."""
    size = f"η γ = {swing:.0e}, {'below' if swing < threshold else 'above'} the threshold {threshold:.0e}"
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
