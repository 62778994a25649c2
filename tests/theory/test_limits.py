"""The practical limits: where rates and proximal terms break a run, or only make weights oscillate."""

import pytest

from sfedhp import Experiment, run
from sfedhp.algorithms import ALGORITHMS, FedAvg, FedProx, PerFedAvg, PFedMe, SFedHP
from sfedhp.algorithms.schedule import ScheduleOptions
from sfedhp.algorithms.steps import caution
from sfedhp.theory.curvature import BatchCurvature
from sfedhp.theory.limits import limit_lines, schedule_lines

CALM = BatchCurvature(3.4, 4.0, False)


def named(algorithm, curvature=CALM):
    return {line.name: line for line in limit_lines(algorithm, curvature, Experiment().density_threshold)}


def alarms(algorithm, curvature=CALM):
    return {name for name, line in named(algorithm, curvature).items() if line.alarm and not line.inside}


def test_pfedme_breaks_where_the_worst_tenth_of_the_clients_does():
    """MNIST, per pixel: h = 6.7 and 13.6; with pixels from 0 to 1: 3.4 and 4.0."""
    method = PFedMe(client_proximity=30.0)
    assert alarms(method, BatchCurvature(6.7, 13.6, False)) == {"personal_rate_worst"}
    assert alarms(method) == set()
    assert alarms(PFedMe(client_proximity=25.0), BatchCurvature(6.7, 13.6, False)) == set()
    assert alarms(method, BatchCurvature(11.0, 12.0, False)) == {"personal_rate", "personal_rate_worst"}
    line = named(method, BatchCurvature(6.7, 13.6, False))["personal_rate_worst"]
    assert line.value == pytest.approx(0.05 * 43.6)
    assert "collapse" in line.note
    assert named(method)["model_step"].value == pytest.approx(1.5)
    assert alarms(PFedMe(client_proximity=30.0, local_rate=0.07)) == {"model_step"}


@pytest.mark.parametrize(("edge", "limit"), [(20.0, 3.0), (40.0, 4.0), (10.0, 2.5)])
def test_an_edge_may_step_further_because_phi_holds_a_part_of_w(edge, limit):
    method = SFedHP(client_proximity=20.0, edge_proximity=edge)
    line = named(method)["edge_rate"]
    assert line.limit == pytest.approx(limit)
    assert line.value == pytest.approx(0.05 * edge)
    # u = w_i − φ_i, followed for some edge rounds without data: it dies out exactly inside the limit.
    for rate, falls in ((0.98 * limit / edge, True), (1.02 * limit / edge, False)):
        model, personal = 1.0, 0.0
        for _ in range(400):
            personal = (20 * personal + edge * model) / (20 + edge)
            model, before = model - rate * edge * (model - personal), model
        assert (abs(model - before) < 1e-3) is falls


def test_oscillation_is_reported_and_is_no_alarm():
    """2.08 in the paper's own sparse setting."""
    method = SFedHP(client_proximity=25.0, edge_proximity=25.0, client_sparsity=1e-3, edge_sparsity=1e-3)
    found = named(method)
    for name in ("client_overshoot", "edge_overshoot"):
        assert found[name].value == pytest.approx(2.083, abs=1e-3)
        assert found[name].inside is False
        assert "oscillate around zero" in found[name].note
        assert "does not diverge" in found[name].note
        assert "5e-05, below the threshold 5e-04" in found[name].note
        assert not found[name].alarm
    assert alarms(method) == set()
    # Stronger proximal terms throw weights further than a step has: in Figure 4 above what counts as zero.
    wide = SFedHP(client_proximity=30.0, edge_proximity=30.0, client_sparsity=8e-3, edge_sparsity=8e-3)
    assert "up to 7e-04, above the threshold 5e-04" in named(wide)["client_overshoot"].note
    assert "up to 9e-04, above the threshold 5e-04" in named(wide)["edge_overshoot"].note
    loud = SFedHP(client_sparsity=2e-2)
    assert "above the threshold" in named(loud)["client_overshoot"].note
    quiet = named(SFedHP(client_sparsity=1e-4))
    assert quiet["client_overshoot"].inside is True
    assert "come to rest" in quiet["client_overshoot"].note
    assert "edge_overshoot" not in quiet
    assert "client_overshoot" not in named(SFedHP(client_sparsity=1e-3, penalty="l1"))


@pytest.mark.no_cover
def test_nesterovs_steps_have_less_room():
    """On a parabola, five steps with momentum grow beyond the limit and shrink inside."""
    plain, quick = (named(SFedHP(solver=solver))["personal_rate"] for solver in ("gradient", "nesterov"))
    assert (plain.limit, quick.limit) == (2.0, pytest.approx(1.467, abs=1e-3))
    for step, grows in ((0.9 * quick.limit, False), (1.2 * quick.limit, True)):
        point = before = 1.0
        for turn in range(5):
            here = point + turn / (turn + 3) * (point - before)
            point, before = here - step * here, point
        assert (abs(point) > 1) is grows
    many = named(SFedHP(solver="nesterov", personal_steps=1000))["personal_rate"]
    assert many.limit == pytest.approx(4 / 3, abs=1e-3)


@pytest.mark.parametrize("method", [SFedHP, PFedMe])
@pytest.mark.parametrize(
    "curvature", [CALM, BatchCurvature(150.0, 220.0, True)], ids=["a network", "a normalized one"]
)
def test_an_even_number_of_steps_needs_a_softer_spring(method, curvature):
    for steps, spring, breaks in ((4, 20.0, True), (4, 19.0, False), (5, 20.0, False), (21, 30.0, False)):
        values = method(personal_steps=steps, client_proximity=spring)
        assert ("even_steps" in alarms(values, curvature)) is breaks
        assert ("odd algorithm.personal_steps" in caution(values.step_rules())) is breaks
        assert bool(caution(values.step_rules())) is breaks
    line = named(method(personal_steps=4, client_proximity=15.0), curvature)["even_steps"]
    assert (line.value, line.limit, line.inside) == (pytest.approx(0.75), 1.0, True)
    assert "even_steps" not in named(method(), curvature)


@pytest.mark.parametrize("pull", [0.4, 0.9, 1.1, 1.6])
def test_an_even_number_of_steps_climbs_a_valley_further_than_it_descends_from_one(pull):
    """Gradients ±1, η = 1: how far from φ, up its wall, K steps end; docs/theory.md has the formulas."""
    a = 1 - pull

    def climbed(height, steps):
        point = height
        for _ in range(steps):
            point -= (1 if point > 0 else -1) + pull * (point - height)
        return point - height

    for steps in (2, 4, 8):
        up, down = climbed(0.01, steps), -climbed(1000.0, steps)
        assert up == pytest.approx((1 - a**steps) / (1 + a))
        assert down == pytest.approx((1 - a**steps) / (1 - a))
        assert (up > down) is (pull > 1)
        assert climbed(0.01, steps + 1) == pytest.approx(-(1 + a ** (steps + 1)) / (1 + a))
        assert climbed(1000.0, steps + 1) < 0


def test_an_even_number_of_steps_really_breaks_a_run():
    """Ten rounds on the embedded images: at ηλ = 1.25 four steps ruin what five steps learn."""
    ends = {}
    for steps in (4, 5):
        method = SFedHP(personal_steps=steps, client_proximity=25.0, edge_rounds=5)
        ends[steps] = run(Experiment(rounds=10, algorithm=method)).summary["gm_last"]
    assert ends[4] < 20 < 50 < ends[5]


def test_momentum_gives_steps_more_room_and_a_clip_bounds_them():
    """On h x²/2, steps with momentum m diverge from ηh = 2(1 + m) on."""
    assert named(FedAvg(momentum=0.9))["local_rate"].limit == pytest.approx(3.8)
    for momentum in (0.0, 0.5, 0.9):
        for share, breaks in ((0.99, False), (1.01, True)):
            rate, point, velocity = share * 2 * (1 + momentum), 1.0, 0.0
            for _ in range(3000):
                velocity = momentum * velocity + point
                point -= rate * velocity
            assert (abs(point) > 1) is breaks
    steep = BatchCurvature(100.0, 200.0, False)
    assert alarms(FedAvg(), steep) == {"local_rate", "local_rate_worst"}
    assert alarms(FedAvg(clip=1.0), steep) == set()
    assert "clip bounds them" in named(FedAvg(clip=1.0), steep)["local_rate"].note


def test_a_schedule_is_named_beside_the_limits():
    assert schedule_lines(ScheduleOptions()) == []
    [line] = schedule_lines(ScheduleOptions(warmup=4))
    assert line.value == 0.25
    assert "full rates" in line.note


def test_methods_without_springs_have_their_rates_alone():
    assert named(FedAvg())["local_rate"].value == pytest.approx(0.05 * 3.4)
    assert alarms(FedAvg(local_rate=0.55)) == {"local_rate_worst"}
    assert named(FedProx(proximity=1.0))["local_rate"].value == pytest.approx(0.05 * 4.4)
    assert {"adaptation_rate", "meta_rate"} <= named(PerFedAvg()).keys()


def test_a_normalized_network_leaves_the_springs_alone():
    found = named(PFedMe(client_proximity=30.0), BatchCurvature(150.0, 220.0, True))
    assert found["personal_rate"].value == pytest.approx(1.5)
    assert "h is left out" in found["personal_rate"].note
    assert alarms(PFedMe(client_proximity=30.0), BatchCurvature(150.0, 220.0, True)) == set()
    assert alarms(PFedMe(client_proximity=41.0), BatchCurvature(150.0, 220.0, True)) == {
        "personal_rate",
        "model_step",
    }


@pytest.mark.parametrize("name", [name for name in ALGORITHMS if name != "pfedgp"])
def test_every_method_has_a_limit_and_its_defaults_keep_it(name):
    method = ALGORITHMS[name]()
    assert any(line.alarm for line in named(method).values())
    assert alarms(method) == set()
