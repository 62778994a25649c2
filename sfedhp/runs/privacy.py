"""Differential privacy of a run: checks of settings, the spent ε, and the end of the budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import torch
from torch import Tensor

from sfedhp.algorithms import Algorithm, FedAvg, FedProx, HierFAVG, LocalSGD, SFedHP
from sfedhp.algorithms.finish import Finishing
from sfedhp.config import Experiment
from sfedhp.core.errors import InputError
from sfedhp.engine.rounds import Draw
from sfedhp.engine.simulator import Simulator
from sfedhp.nn.network import Network
from sfedhp.privacy.accounting import Release, epsilon, noise_for
from sfedhp.privacy.options import PrivacyOptions

# Those whose every use of a row, and of a client's upload, is counted here. A subclass may do more.
PRIVATE: Final = {"fedavg": FedAvg, "hierfavg": HierFAVG, "fedprox": FedProx, "sfedhp": SFedHP}


def is_supported(algorithm: Algorithm) -> bool:
    """Whether ε of a method is known."""
    return type(algorithm) in PRIVATE.values()


def check_privacy(experiment: Experiment) -> None:
    """Reject settings of [privacy] under which it would not protect what it promises.

    Raises:
        InputError: says what to set instead.
    """
    options, algorithm, name = experiment.privacy, experiment.algorithm, experiment.algorithm_name
    if not options.active and not options.epsilon:
        return
    if not is_supported(algorithm):
        raise InputError(
            f"[privacy] is not supported by {name}, whose use of rows is not counted: choose "
            f"{', '.join(PRIVATE)}."
        )
    if options.unit == "row" and options.tier != "client":
        raise InputError(
            f"privacy.tier = {options.tier!r} cannot protect single rows, whose gradients only clients see: "
            f"set privacy.tier=client, or privacy.unit=client, which protects all rows of a client at once."
        )
    if options.tier == "edge" and algorithm.tiers == 2:
        raise InputError(
            f"privacy.tier = 'edge' has no effect: {name} has no edges; set client, or cloud with "
            f"privacy.unit=client."
        )
    servers = "edge" if algorithm.tiers == 3 else "cloud"
    if experiment.secure and options.tier == servers:
        raise InputError(
            f"privacy.tier = {options.tier!r} clips single uploads, and with secure = true no server sees "
            f"one: set privacy.tier=client."
        )
    if isinstance(algorithm, Finishing) and algorithm.finish_steps:
        raise InputError(
            "algorithm.finish_steps uses rows that ε would not count: set it to 0, or leave [privacy] out."
        )
    if options.tier != "client" and experiment.aggregation.robust:
        raise InputError(
            "[aggregation] and [privacy] cannot both change the uploads of a server: leave one out, or set "
            "privacy.tier=client."
        )
    if options.tier != "client" and isinstance(algorithm, SFedHP) and (option := _apart(algorithm, options)):
        raise InputError(
            f"algorithm.{option} uses single uploads, and privacy.tier = {options.tier!r} protects only "
            f"their mean: leave it out, or set privacy.tier=client."
        )


def _apart(algorithm: SFedHP, options: PrivacyOptions) -> str:
    """The option that makes the tier that adds the noise use single uploads; empty if there is none."""
    if algorithm.anchor == "client":
        return "anchor"
    return "drift_correction" if algorithm.drift_correction and options.tier == "cloud" else ""


def check_network(options: PrivacyOptions, network: Network) -> None:
    """Reject a network whose messages contain more than weights.

    Raises:
        InputError: it has running statistics.
    """
    if options.active and network.s:
        raise InputError(
            "Batch norm's running statistics travel without noise, so that [privacy] would not protect them: "
            "use a model with group norm, such as vgg-gn, or without norm."
        )


def releases_of_row(experiment: Experiment, rows: int, client_steps: int) -> Release:
    """The releases that one row of a client may be part of.

    Args:
        experiment: with the method.
        rows: training rows of the client.
        client_steps: how often the client was asked for a step.
    """
    algorithm = experiment.algorithm
    batch = experiment.batch_size or rows
    if isinstance(algorithm, SFedHP):
        return Release(client_steps, rows, batch, algorithm.personal_steps)
    assert isinstance(algorithm, LocalSGD)
    if algorithm.local_epochs:
        # In an epoch a row is in one mini-batch: of all others, the sums do not depend on it.
        return Release(client_steps * algorithm.local_epochs, rows, rows)
    return Release(client_steps * algorithm.local_steps, rows, batch)


def releases_per_round(experiment: Experiment) -> int:
    """The number of releases of a protected row or client in a cloud round."""
    algorithm, options = experiment.algorithm, experiment.privacy
    if algorithm.tiers == 2 or (options.unit == "client" and options.tier == "cloud"):
        return 1
    return algorithm.edge_rounds


def budget_is_spent(spent: float, counted: str, release: str, after: float, budget: float) -> str:
    """The sentence that says why a run ends, or why a site refuses a release.

    Args:
        spent: ε of the releases that `counted` names, as "after round 3".
        counted: the words for them.
        release: what would exceed the budget: another "round" or "reply".
        after, budget: ε with that one, and the largest ε that is allowed.
    """
    return (
        f"The privacy budget is spent: ε = {spent:.3g} {counted}, and another {release} would make it "
        f"{after:.3g}, above privacy.epsilon = {budget:g}."
    )


@dataclass
class Spending:
    """The privacy spending of a run, computed from its settings and draws, without any stored state."""

    experiment: Experiment
    sizes: Tensor  # (edges, clients) or (clients,), the training rows as the method sees its clients
    draw: Draw  # which of the cloud's members take part in a round
    run: int | None = None  # of a stack
    _drawn: list[Tensor] = field(default_factory=list, init=False)  # after each round, how often each was

    @property
    def options(self) -> PrivacyOptions:
        """The [privacy] section of the experiment."""
        return self.experiment.privacy

    def epsilon(self, rounds: int, noise: float | None = None) -> float:
        """ε of the row, or client, with the weakest protection, after this many rounds.

        Args:
            rounds: done.
            noise: σ; None: that of the options.
        """
        sigma = self.options.noise if noise is None else noise
        return max(epsilon(each, sigma, self.options.delta) for each in self.releases(rounds))

    def epsilon_of_client(self, rounds: int) -> float:
        """ε of a whole client, also where the noise is for single rows: its mini-batch moves the sum B times
        as far as a row does, in every step."""
        if self.options.unit == "client":
            return self.epsilon(rounds)
        found = []
        for each in self.of_rows(rounds):
            batch = min(self.experiment.batch_size or each.population, each.population)
            steps = each.count * each.steps
            algorithm = self.experiment.algorithm
            if isinstance(algorithm, LocalSGD) and algorithm.local_epochs:
                steps *= -(-each.population // batch)
            sums = Release(steps, 1, 1)
            found.append(epsilon(sums, self.options.noise / batch, self.options.delta))
        return max(found)

    def noise_for(self, target: float, rounds: int) -> float:
        """The σ with which this many rounds stay within an ε."""
        return max(noise_for(each, target, self.options.delta) for each in self.releases(rounds))

    def rounds_within(self, budget: float, most: int, noise: float | None = None) -> int:
        """How many rounds, at most `most`, stay within an ε; `noise` as in `epsilon`."""
        low, high = 0, most + 1
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.epsilon(middle, noise) <= budget else (low, middle)
        return low

    def releases(self, rounds: int) -> list[Release]:
        """The releases of the rows, or clients, that may have the weakest protection."""
        if self.options.unit == "row":
            return self.of_rows(rounds)
        return [self.of_clients(rounds)]

    def of_rows(self, rounds: int) -> list[Release]:
        """Of rows, at each client that no other with fewer rows has been asked at least as often as."""
        algorithm = self.experiment.algorithm
        asked = self._times_drawn(rounds) if algorithm.tiers == 2 else torch.full_like(self.sizes, rounds)
        pairs = zip(self.sizes.flatten().tolist(), asked.flatten().tolist(), strict=True)
        found, most, per_round = [], -1, releases_per_round(self.experiment)
        for rows, times in sorted(pairs, key=lambda pair: (pair[0], -pair[1])):
            if rows and times > most:
                most = times
                found.append(releases_of_row(self.experiment, rows, times * per_round))
        return found

    def of_clients(self, rounds: int) -> Release:
        """Of a client, or with `tier = cloud` of a member of the cloud, all that it uploads at once."""
        algorithm, tier = self.experiment.algorithm, self.options.tier
        if algorithm.tiers == 3 and tier != "cloud":
            return Release(rounds * releases_per_round(self.experiment), 1, 1)
        members = self.sizes if algorithm.tiers == 2 else self.sizes.sum(-1)
        members = members[members > 0]
        sampled = self.experiment.sampled_members
        alike = algorithm.weighting == "equal" or bool((members == members[0]).all())
        if tier == "cloud" and sampled and alike:
            # Only the cloud knows who was drawn. Members of unequal weights need another bound.
            return Release(rounds, len(members), sampled)
        return Release(int(self._times_drawn(rounds).max()), 1, 1)

    def _times_drawn(self, rounds: int) -> Tensor:
        """How often each member of the cloud was drawn up to a round."""
        while len(self._drawn) < rounds:
            drawn = self.draw(len(self._drawn))
            if drawn is None:
                members = self.sizes if self.experiment.algorithm.tiers == 2 else self.sizes.sum(-1)
                now = (members > 0).long()
            else:
                now = (drawn if self.run is None else drawn[self.run]).long().cpu()
            self._drawn.append(now if not self._drawn else self._drawn[-1] + now)
        return self._drawn[rounds - 1] if rounds else torch.zeros(len(self.sizes), dtype=torch.int64)


@dataclass(frozen=True)
class Budget:
    """The last round that the privacy budget of a run allows."""

    spending: Spending
    rounds: int  # at most these

    @classmethod
    def of(cls, spending: Spending) -> Budget:
        """The budget of a run.

        Raises:
            InputError: there is a budget and no noise, or not even one round is within it.
        """
        options, rounds = spending.options, spending.experiment.rounds
        if not options.epsilon:
            return cls(spending, rounds)
        within = spending.rounds_within(options.epsilon, rounds) if options.active else 0
        if not within:
            noise = spending.noise_for(options.epsilon, rounds)
            spent = f"the first round would spend {spending.epsilon(1):.3g}" if options.active else "no noise"
            raise InputError(
                f"privacy.epsilon = {options.epsilon:g} allows no round with privacy.noise = "
                f"{options.noise:g} ({spent}): all {rounds} rounds need privacy.noise={_rounded_up(noise)}."
            )
        return cls(spending, within)

    def ended(self, rounds: int) -> str:
        """A message if a run ends after this many rounds because another would exceed the budget; else ''."""
        experiment, options = self.spending.experiment, self.spending.options
        if rounds < self.rounds or self.rounds >= experiment.rounds:
            return ""
        spent, after = self.spending.epsilon(rounds), self.spending.epsilon(rounds + 1)
        noise = self.spending.noise_for(options.epsilon, experiment.rounds)
        sentence = budget_is_spent(spent, f"after round {rounds}", "round", after, options.epsilon)
        return f"{sentence} All {experiment.rounds} rounds need privacy.noise={_rounded_up(noise)}."


def spending_of(simulator: Simulator, experiment: Experiment, run: int | None = None) -> Spending:
    """The spending of a run of a simulation; `run` is its place in a stack."""
    sizes = simulator.task.sizes if run is None else simulator.task.sizes[run]
    return Spending(experiment, sizes.cpu(), simulator.draw, run)


def budgets_of(experiments: Sequence[Experiment], simulator: Simulator, stacked: bool) -> tuple[Budget, ...]:
    """The budget of each run of a simulation; () where they have no privacy.

    Raises:
        InputError: the network cannot be protected, or a budget allows no round.
    """
    options = experiments[0].privacy
    if not options.active and not options.epsilon:
        return ()
    check_network(options, simulator.task.network)
    return tuple(
        Budget.of(spending_of(simulator, each, run if stacked else None))
        for run, each in enumerate(experiments)
    )


def _rounded_up(noise: float) -> str:
    """A noise with three digits, not less than it is."""
    digits = f"{noise:.3g}"
    return digits if float(digits) >= noise else f"{noise * 1.005:.3g}"
