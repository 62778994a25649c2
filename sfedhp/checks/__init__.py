"""The public test battery: what every federated method must do, and common faults.

It checks a method against its class, on a small federation, but not against its paper. So it cannot know
which of two models should be sent, how large a server's step should be, or whether a constant is right; see
`docs/extend.md`.

`check_algorithm(MyMethod())` raises a `CheckError` that names the first problem.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from sfedhp.algorithms.base import Algorithm
from sfedhp.checks.declared import (
    draws_change,
    kept_state_is_used,
    pull_changes_the_step,
    pull_is_as_strong_as_declared,
)
from sfedhp.checks.equalities import (
    equal_after_resume,
    equal_in_a_batch_of_runs,
    equal_one_by_one,
    equal_over_a_link,
    equal_permuted,
    repeatable,
)
from sfedhp.checks.faults import (
    dtype_kept,
    global_model_moves,
    inputs_unmodified,
    learns,
    rests_without_gradient,
    result_is_a_client_result,
    zero_weight_is_not_read,
)
from sfedhp.checks.problem import CheckError
from sfedhp.checks.servers import (
    members_weigh_what_is_declared,
    server_goes_as_far_as_an_option_says,
    sums_suffice_where_declared,
)

__all__ = ["CHECKS", "CheckError", "check_algorithm"]

CHECKS: Final[dict[str, Callable[[Algorithm], None]]] = {
    check.__name__: check
    for check in (
        result_is_a_client_result,
        inputs_unmodified,
        dtype_kept,
        zero_weight_is_not_read,
        rests_without_gradient,
        pull_changes_the_step,
        pull_is_as_strong_as_declared,
        global_model_moves,
        repeatable,
        equal_permuted,
        equal_one_by_one,
        equal_over_a_link,
        equal_in_a_batch_of_runs,
        equal_after_resume,
        learns,
        draws_change,
        kept_state_is_used,
        members_weigh_what_is_declared,
        server_goes_as_far_as_an_option_says,
        sums_suffice_where_declared,
    )
}


def check_algorithm(algorithm: Algorithm) -> None:
    """Run every check on a method.

    Args:
        algorithm: an instance, with few steps so that the checks are fast.

    Raises:
        CheckError: names the check and what was seen.
    """
    if not isinstance(algorithm, Algorithm):
        name = getattr(algorithm, "__name__", "MyMethod")
        raise CheckError(f"{algorithm!r} is not an instance of a method: give an instance: {name}().")
    for check in CHECKS.values():
        check(algorithm)
