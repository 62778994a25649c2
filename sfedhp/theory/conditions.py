"""The requirements of the paper's theorems, line by line: constants, conditions and step bounds."""

from __future__ import annotations

import math

from sfedhp.theory.constants import Constants
from sfedhp.theory.curvature import Curvature
from sfedhp.theory.line import Line

_LOCAL = "measured at the initial weights; a network has no L that holds everywhere"


def theory_lines(constants: Constants, curvature: Curvature) -> list[Line]:
    """Constants, conditions and bounds of Theorems 1 to 3 for sFedHP, where they apply to its settings."""
    lines = _constants(constants, curvature)
    if constants.exact_penalty:
        return lines
    return [*lines, *_conditions(constants, curvature), *_bounds(constants)]


def _of_clients(count: int) -> str:
    if not count:
        return "of all clients"
    return f"the largest of {count} client{'s' if count > 1 else ''}; others may have a larger one"


def _constants(constants: Constants, curvature: Curvature) -> list[Line]:
    everywhere = "power iteration on the data; holds everywhere"
    convex = "a network's loss is not convex"
    if curvature.exact:
        convex = "the weight decay: cross-entropy is flat along equal scores"
    unproven = "the theorems cover the smooth ℓ1, not the exact ℓ1 (penalty = l1)"
    first = [
        Line(
            "constants",
            "smoothness",
            "L, the largest curvature of a client's loss",
            constants.smoothness,
            note=everywhere if curvature.exact else f"{_LOCAL}, {_of_clients(curvature.clients)}",
        ),
        Line(
            "constants",
            "convexity",
            "μ, how strongly convex it is",
            constants.convexity,
            note=convex,
        ),
        Line("constants", "series_proximity", "λ̄ = λ₁λ₂/(λ₁+λ₂)", constants.series_proximity),
        Line("constants", "root_proximity", "λ = λ₁λ₂/√(λ₁²+λ₂²)", constants.root_proximity),
    ]
    theorem = [
        Line(
            "constants",
            "envelope_smoothness",
            "L_F = λ₂ + γ₂/ρ (Theorem 1)",
            constants.envelope_smoothness,
            note=f"λ̄ + γ₂/ρ = {constants.tight_smoothness:.4g} is enough",
        ),
        Line(
            "constants",
            "envelope_convexity",
            "μ_F = λ̄μ/(λ̄+μ) (Theorem 1)",
            constants.envelope_convexity,
        ),
    ]
    last = Line(
        "constants",
        "global_rate",
        "η̃ = η₁βR, the cloud's step",
        constants.global_rate,
        note=unproven if constants.exact_penalty else "",
    )
    return [*first, *([] if constants.exact_penalty else theorem), last]


def _conditions(constants: Constants, curvature: Curvature) -> list[Line]:
    if constants.convexity:
        return [
            Line(
                "conditions",
                "strong_convexity",
                "Theorem 2: μ > 0",
                constants.convexity,
                0.0,
                "above",
            )
        ]
    smooth = constants.penalized_smoothness
    # Theorem 1 requires nothing of a convex loss, and the loss is convex if L is known everywhere.
    proximity = [] if curvature.exact else _proximity_lines(constants)
    return [
        *proximity,
        Line(
            "conditions",
            "root_spring",
            "Theorem 3: λ ≥ √(16(L + γ₁/ρ)² + 1)",
            constants.root_proximity,
            math.hypot(4 * smooth, 1.0),
            "above",
            note="printed as ≤; the proof needs ≥",
        ),
    ]


def _proximity_lines(constants: Constants) -> list[Line]:
    """The lines on what Theorem 1 requires of λ for a loss that is not convex."""
    smooth = constants.penalized_smoothness
    return [
        Line(
            "conditions",
            "client_spring",
            "Theorem 1, non-convex: λ₁ > 2(L + γ₁/ρ)",
            constants.client_proximity,
            2 * smooth,
            "above",
        ),
        Line(
            "conditions",
            "edge_spring",
            "Theorem 1, non-convex: λ₂ > 4(L + γ₁/ρ)",
            constants.edge_proximity,
            4 * smooth,
            "above",
        ),
        Line(
            "conditions",
            "spring_order",
            "its proof: λ₂ > 2λ₁",
            constants.edge_proximity,
            2 * constants.client_proximity,
            "above",
            note="not needed if F is taken as one envelope with λ̄ > 2(L + γ₁/ρ)",
        ),
    ]


def _bounds(constants: Constants) -> list[Line]:
    rate = constants.global_rate
    lines = []
    if constants.convexity:
        lines.append(
            Line(
                "bounds",
                "convex_step",
                "Theorem 2: η̃ ≤ min(1/μ_F, 1/(6L_F(3 + 128L_F/(μ_Fβ))))",
                rate,
                constants.convex_bound,
                note=f"as printed, with 3L_F: {constants.printed_convex_bound:.3g}, which gives M ≥ 0 only",
            )
        )
    lines.append(
        Line(
            "bounds",
            "nonconvex_step",
            "Theorem 3: η̃ ≤ min(1/(588L_Fλ²), β/(2L_F))",
            rate,
            constants.nonconvex_bound,
            note="the paper's own tables are 4·10⁴ times outside and more",
        )
    )
    if constants.cloud_mixing < 1:
        lines.append(
            Line(
                "bounds",
                "mixing",
                "Theorem 3, its step (d): β ≥ 2/3",
                constants.cloud_mixing,
                2 / 3,
                "above",
            )
        )
    return lines
