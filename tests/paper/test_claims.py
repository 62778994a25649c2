import math
from dataclasses import replace

import pytest

from sfedhp.algorithms import SFedHP
from sfedhp.paper.claims import judge
from sfedhp.paper.curves import Curve, curves
from sfedhp.paper.published import TABLES, overview
from sfedhp.paper.rows import rows
from sfedhp.paper.studies import Study
from tests.support.small_experiments import experiment

BEST, AVERAGED, TUNED, EQUAL, HIERARCHY, PERSONAL, CONVEX, OTHERS, BYTES, SPARSE, LAMBDA, GAMMA, SPEED = (
    range(13)
)


def first_tables(study, made, accuracy):
    """Rows of Table 1's methods in all six tables; `accuracy(method, dataset)` is the last GM."""
    found = []
    for table, (dataset, setting) in TABLES.items():
        variants = {}
        for cell in overview():
            if (cell.dataset, cell.setting) == (dataset, setting):
                fields = {"sfedhp": ("client_proximity", "edge_proximity"), "pfedme": ("client_proximity",)}
                names = fields.get(cell.method, ())
                variants[cell.method] = [experiment(cell.method, **dict.fromkeys(names, cell.lam))]
        one: Study = study(table, table=table, **variants)
        records = [
            made(
                one,
                method,
                seed,
                gm=[accuracy(method, dataset) + 0.1 * seed + 0.01 * seed * (method == "sfedhp")],
                pm=[accuracy(method, dataset)],
                gm_validation=[50.0],
                pm_validation=[50.0],
            )
            for method in variants
            for seed in range(3)
        ]
        found += rows([one], records)
    return found


def test_nothing_is_claimed_of_what_was_not_run():
    assert {claim.verdict for claim in judge([], {})} == {"not run yet"}


def test_a_clear_winner_holds(study, made):
    order = {"sfedhp": 90, "hierfavg": 80, "fedprox": 60, "fedavg": 70, "pfedme": 75}

    def accuracy(method, dataset):
        # On CIFAR-10 the paper itself has pFedMe above HierFAVG.
        return 85 + 0.001 if (method, dataset) == ("pfedme", "cifar10") else order[method]

    claims = judge(first_tables(study, made, accuracy), {})
    assert claims[BEST].verdict == claims[TUNED].verdict == claims[HIERARCHY].verdict == "holds"
    assert claims[PERSONAL].verdict == "holds"
    assert claims[BEST].findings[0] == "true in 6 of 6"
    assert len(claims[BEST].findings) == 7
    assert "10.01 above hierfavg" in claims[BEST].findings[1]


def test_a_winner_on_one_dataset_holds_partly_and_nowhere_not(study, made):
    def some(method, dataset):
        return {"sfedhp": 90 if dataset == "mnist" else 50, "hierfavg": 80}.get(method, 70)

    claims = judge(first_tables(study, made, some), {})
    assert claims[BEST].verdict == "holds partly"
    assert claims[PERSONAL].verdict == "holds partly"
    claims = judge(first_tables(study, made, lambda method, _: 60 if method == "sfedhp" else 70), {})
    assert claims[BEST].verdict == claims[HIERARCHY].verdict == "does not hold"
    assert "below" in claims[BEST].findings[1]


def test_another_reading_decides_nothing(study, made):
    def of(name, reading, ours):
        one = study(
            name,
            table="table2",
            reading=reading,
            sfedhp=[experiment(client_proximity=20.0, edge_proximity=20.0)],
            pfedme=[experiment("pfedme", client_proximity=15.0)],
        )
        columns = ("gm", "pm", "gm_validation", "pm_validation")
        records = [
            made(one, method, seed, **{column: [value] for column in columns})
            for method, value in (("sfedhp", ours), ("pfedme", 90.0))
            for seed in range(3)
        ]
        return rows([one], records)

    claims = judge(of("table2", "balanced", 80.0) + of("table2-as-written", "as-written", 99.0), {})
    assert [claims[claim].verdict for claim in (BEST, TUNED, PERSONAL)] == ["does not hold"] * 3
    assert claims[PERSONAL].findings[:2] == (
        "true in 0 of 1; 5 are not run yet",
        "MNIST, Setting 1: sfedhp 80.00, best other of pfedme: pfedme 90.00 (-10.00)",
    )


def test_a_gap_within_the_seeds_is_no_win(study, made):
    main = study(
        sfedhp=[experiment(client_proximity=20.0, edge_proximity=20.0)], fedavg=[experiment("fedavg")]
    )
    records = [made(main, "sfedhp", seed, gm=[value]) for seed, value in enumerate((91.0, 85.0, 90.0))]
    records += [made(main, "fedavg", seed, gm=[88.0]) for seed in range(3)]
    claim = judge(rows([main], records), {})[BEST]
    assert claim.verdict == "does not hold"
    assert "not significant" in claim.findings[1]


def test_only_seeds_that_both_have_are_compared(study, made):
    main = study(
        sfedhp=[experiment(client_proximity=20.0, edge_proximity=20.0)], fedavg=[experiment("fedavg")]
    )
    ours = [made(main, "sfedhp", seed, gm=[90.0 + 10 * seed]) for seed in range(3)]
    rival = [made(main, "fedavg", seed, gm=[89.0 + 10.1 * seed]) for seed in range(4)]
    whole = judge(rows([main], [*ours, *rival]), {})[BEST]
    assert whole.verdict == "holds partly"
    assert "sfedhp 100.00 is 0.90 above fedavg 99.10 (p = 0.004, 3 seeds in common)" in whole.findings[1]
    apart = judge(rows([main], [ours[0], *rival[1:]]), {})[BEST]
    assert apart.verdict == "not run yet"
    assert "no seed in common" in apart.findings[0]
    one = judge(rows([main], [ours[0], *rival]), {})[BEST]
    assert "(one seed, not significant)" in one.findings[1]


def test_equal_work_is_compared_with_the_extras(study, made):
    main = study(sfedhp=[experiment(client_proximity=20.0, edge_proximity=20.0)])
    extras = study(
        "table2-extras",
        paper=False,
        **{
            "fedavg 100 steps": [experiment("fedavg", local_steps=100)],
            "pfedme λ̄=10 of λ=20": [experiment("pfedme", client_proximity=10.0)],
        },
    )
    records = [made(main, "sfedhp", seed, gm=[90.0 + seed]) for seed in range(3)]
    for variant, low in (("fedavg 100 steps", 80.0), ("pfedme λ̄=10 of λ=20", 95.0)):
        records += [made(extras, variant, seed, gm=[low + 1.1 * seed]) for seed in range(3)]
    claim = judge(rows([main, extras], records), {})[EQUAL]
    assert claim.verdict == "holds partly"
    assert claim.findings[0] == "true in 1 of 2; 16 are not run yet"
    assert len(claim.findings) == 3
    assert "below pfedme λ̄=10" in claim.findings[2]


def curve(variant, gm, **columns):
    means = {"round": [20.0 * (turn + 1) for turn in range(len(gm))], "gm": gm, **columns}
    return Curve(variant, variant.partition(" ")[2], means, dict.fromkeys(range(3), means))


@pytest.mark.parametrize(("ours", "verdict"), [([80.0, 90.0], "holds"), ([10.0, 20.0], "does not hold")])
def test_faster_is_fewer_rounds_to_the_others_accuracy(ours, verdict):
    others = [curve(name, [70.0, 80.0]) for name in ("fedavg", "hierfavg", "pfedme")]
    claims = judge([], {"fig2": [*others, curve("sfedhp", ours)]})
    assert claims[CONVEX].verdict == verdict
    assert claims[OTHERS].verdict == "not run yet"


def test_sooner_in_some_seeds_only_is_not_faster():
    def seeds(variant, *turns):
        """Curves that reach 80 in these rounds; None: never."""
        runs = tuple(
            {"round": [20, 40, 60], "gm": [80.0 if turn and each >= turn else 10.0 for each in (20, 40, 60)]}
            for turn in turns
        )
        return replace(curve(variant, [10.0, 20.0, 80.0]), runs=dict(enumerate(runs)))

    def finding(*turns):
        figure = [replace(seeds("sfedhp", *turns), steps=100), replace(seeds("pfedme", 60, 60, 60), steps=20)]
        return judge([], {"fig2": figure})[CONVEX]

    clear, mixed, never = finding(20, 20, 20), finding(20, 60, 60), finding(20, 20, None)
    assert clear.verdict == "holds partly"  # two of the three rivals are not run
    assert clear.findings[1] == (
        "sFedHP in rounds 20, 20, 20, pfedme in rounds 60, 60, 60 (p < 0.001); in gradient steps of a client "
        "2 000 against 1 200"
    )
    assert mixed.verdict == never.verdict == "does not hold"
    assert "(p = 0.423, not significant)" in mixed.findings[1]
    assert never.findings[1].startswith("sFedHP in rounds 20, 20, never,")
    assert never.findings[1].endswith("(not in every seed)")


@pytest.mark.parametrize(
    ("sparse", "sent", "verdict", "cost"),
    [
        (90.0, 10.0, "holds", "holds"),
        (88.0, 10.0, "holds partly", "holds partly"),
        (90.0, 90.0, "does not hold", "holds"),
        (70.0, 90.0, "does not hold", "does not hold"),
    ],
)
def test_bytes_and_what_sparsity_costs(sparse, sent, verdict, cost):
    fig3 = [
        curve("pfedme", [90.0], formula=[100.0], sent=[500.0]),
        curve("sfedhp dense", [90.5], sent=[100.0]),
        curve("sfedhp sparse", [sparse], formula=[sent], sent=[sent], density_global=[0.1]),
    ]
    claims = judge([], {"fig3": fig3})
    assert claims[BYTES].verdict == verdict
    assert ("to GM 89.5 %" if sparse == 90.0 else "is not reached") in claims[BYTES].findings[1]
    assert claims[BYTES].findings[-1].startswith("of that, 80.0 % without any sparsity")
    assert claims[SPARSE].verdict == cost


def test_a_trend_ends_where_a_run_diverges():
    def verdict(values, diverged=()):
        found = [
            replace(curve(f"λ={lam}", [value]), diverged=lam in diverged)
            for lam, value in zip((5, 15, 20, 40), values, strict=False)
        ]
        return judge([], {"fig4": found})[LAMBDA].verdict

    assert verdict([50.0, 60.0, 70.0, 10.0], diverged=[40]) == "holds"
    assert verdict([50.0, 60.0, 70.0, 10.0]) == "does not hold"
    assert verdict([70.0, 60.0, 50.0]) == "does not hold"


@pytest.mark.parametrize(
    ("points", "verdict"),
    [
        ({"γ=0": 90.0, "γ=1e-3": 80.0, "γ=8e-3": 85.0}, "does not hold"),
        ({"γ=0": 80.0, "γ=1e-3": 90.0, "γ=0 scheduled": 80.0, "γ=1e-3 scheduled": 70.0}, "holds partly"),
        ({"γ=0": 90.0, "γ=1e-3": 80.0}, "holds"),
        ({"γ=0": 80.0, "γ=1e-3": 90.0}, "does not hold"),
        # Whatever their order in the file, and each family by itself.
        ({"γ=8e-3 scheduled": 80.0, "γ=2.5e-4 scheduled": 90.0, "γ=0": 70.0, "γ=1e-3": 60.0}, "holds"),
    ],
)
def test_a_trend_is_along_the_strength(points, verdict):
    found = [curve(name, [value], density_global=[0.5]) for name, value in points.items()]
    assert judge([], {"fig5": found})[GAMMA].verdict == verdict


@pytest.mark.parametrize(("rounds", "verdict"), [(4, "holds"), (2, "holds partly"), (1, "does not hold")])
def test_speed_up_is_a_ratio_of_rounds(rounds, verdict):
    slow = curve("S=1", [10.0] * (rounds - 1) + [90.0])
    assert judge([], {"speedup": [slow, curve("S=4", [90.0])]})[SPEED].verdict == verdict


def test_curves_without_a_common_seed_are_not_compared():
    ours, rival = curve("sfedhp", [80.0, 90.0]), curve("fedavg", [70.0, 80.0])
    rival = replace(rival, runs={7: rival.columns})
    claims = judge([], {"fig2": [ours, rival], "speedup": [replace(ours, variant="S=1"), rival]})
    assert claims[CONVEX].findings == ("sFedHP and fedavg have no seed in common",)
    assert claims[CONVEX].verdict == claims[SPEED].verdict == "not run yet"


def test_speed_up_is_counted_seed_by_seed():
    def rising(variant, *turns):
        runs = tuple(
            {"round": [20, 40, 60], "gm": [90.0 if each >= turn else 10.0 for each in (20, 40, 60)]}
            for turn in turns
        )
        return replace(curve(variant, [90.0]), runs=dict(enumerate(runs)))

    claim = judge([], {"speedup": [rising("S=1", 60, 60, 60), rising("S=4", 20, 60, 60)]})[SPEED]
    assert claim.verdict == "does not hold"  # 180 against 140 rounds
    assert claim.findings[1].startswith("S=4: in rounds 20, 60, 60, seed by seed, last GM ")
    assert claim.findings[-1] == "one edge needs 1.29 times the rounds of four (p = 0.423)"


def test_statistics_for_everybody_are_judged_by_themselves(study, made):
    def accuracy(method):
        return {"sfedhp": (90.0, 40.0), "fedavg": (70.0, 50.0)}[method]

    lam = next(
        cell.lam
        for cell in overview()
        if (cell.dataset, cell.setting, cell.method) == ("cifar10", 1, "sfedhp")
    )
    one = study(
        "table6",
        table="table6",
        sfedhp=[experiment(client_proximity=lam, edge_proximity=lam)],
        fedavg=[experiment("fedavg")],
        others=[experiment("fedavg", local_steps=99)],
    )
    records = [
        made(one, method, seed, statistics="local", gm_local=[local + seed], gm_averaged=[mean + 1.1 * seed])
        for method in ("sfedhp", "fedavg")
        for local, mean in [accuracy(method)]
        for seed in range(3)
    ]
    claims = judge(rows([one], records), {})
    assert claims[BEST].verdict == "holds partly"  # one of the six tables
    assert claims[AVERAGED].verdict == "does not hold"
    assert claims[AVERAGED].findings[0] == "true in 0 of 1; 1 are not run yet"
    assert "10.00 below fedavg" in claims[AVERAGED].findings[1]


def test_a_curve_is_the_mean_as_far_as_all_seeds_got(study, made):
    one = study("fig2", table="fig2", sfedhp=[experiment()], fedavg=[experiment("fedavg")])
    records = [
        made(one, "sfedhp", 0, gm=[10.0, 20.0, 30.0], em=[None, 1.0, 1.0]),
        made(one, "sfedhp", 1, gm=[20.0, 40.0]),
    ]
    (found,) = curves(one, records)
    assert found.columns["gm"] == [15.0, 30.0]
    assert "em" not in found.columns
    assert found.rounds_to("gm", {0: 20.0, 1: 41.0}) == {0: 40, 1: math.inf}
    method = experiment().algorithm
    assert isinstance(method, SFedHP)
    assert found.steps == method.edge_rounds * method.personal_steps
    assert found.best("gm") == 30
