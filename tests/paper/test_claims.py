"""Every claim of the paper, by rows and curves whose verdicts are known."""

import math
from dataclasses import replace

import pytest

from sfedhp.algorithms import SFedHP
from sfedhp.paper.claims import judge
from sfedhp.paper.curves import Curve, curves
from sfedhp.paper.published import TABLES, Cell, overview
from sfedhp.paper.rows import rows
from sfedhp.paper.studies import Study
from tests.support.small_experiments import experiment

BEST, MARGINS, TUNED, EQUAL, AVERAGED, HIERARCHY, PERSONAL = range(7)
ORDER, CONVEX, DENSE, OTHERS, BYTES, COST, TIERS, SPARSE, SLOWER, LAMBDA, GAMMA, SPEED = range(7, 19)
WOBBLE = (0.0, 0.05, -0.05, 0.02)  # over seeds, so that a difference has a spread


def first_tables(study, made, accuracy, reading="balanced"):
    """Rows of Table 1's methods in all six tables; `accuracy(method, dataset)` is the GM of every round."""
    found = []
    for table, (dataset, setting) in TABLES.items():
        variants = {}
        for cell in overview():
            if (cell.dataset, cell.setting) == (dataset, setting):
                fields = {"sfedhp": ("client_proximity", "edge_proximity"), "pfedme": ("client_proximity",)}
                names = fields.get(cell.method, ())
                variants[cell.method] = [experiment(cell.method, **dict.fromkeys(names, cell.lam))]
        one: Study = study(table, table=table, reading=reading, **variants)
        records = [
            made(
                one,
                method,
                seed,
                gm=[10.0] + 5 * [accuracy(method, dataset) + wobble * (method == "sfedhp")],
                pm=[accuracy(method, dataset) + wobble * (method == "sfedhp")] * 6,
                gm_validation=[50.0] * 6,
                pm_validation=[50.0] * 6,
            )
            for method in variants
            for seed, wobble in enumerate(WOBBLE)
        ]
        found += rows([one], records)
    return found


@pytest.fixture
def grid(monkeypatch):
    """The paper's tables as if they had only Table 1's row of each method, and others that a test adds."""
    cells = [Cell(one.dataset, one.setting, one.method, one.lam, None, 1.0, 1.0, False) for one in overview()]
    monkeypatch.setattr("sfedhp.paper.table_claims.cells", lambda: cells)
    return cells


def mean_of(cell):
    assert cell.difference is not None
    return cell.difference.mean


def verdicts(claims, *places):
    return [claims[place].verdict for place in places]


def test_nothing_is_claimed_of_what_was_not_run():
    claims = judge([], {})
    assert {claim.verdict for claim in claims} == {"not run yet"}
    assert len(claims) == 19
    assert len({claim.title for claim in claims}) == 19
    added = [claims[place] for place in (TUNED, EQUAL, AVERAGED)]
    assert [claim for claim in claims if claim.name.endswith("(not the paper's)")] == added
    assert claims[BEST].number == "24 of 24 not run yet"
    assert claims[MARGINS].number == "24 of 24 not run yet"


def test_a_clear_winner_holds(study, made, grid):
    order = {"sfedhp": 95, "hierfavg": 74, "fedprox": 60, "fedavg": 70, "pfedme": 72}
    claims = judge(first_tables(study, made, lambda method, _: order[method]), {})
    assert verdicts(claims, BEST, MARGINS, TUNED, HIERARCHY) == ["holds"] * 4
    assert claims[BEST].findings[0] == "24 true"
    assert claims[BEST].findings[1] == "true in 24 of 24 by the paper's own numbers"
    # The paper has FedProx above HierFAVG once, and pFedMe above it on CIFAR-10.
    assert claims[HIERARCHY].findings[1] == "true in 33 of 36 by the paper's own numbers"
    assert claims[MARGINS].number == "reached in 6 of 6 settings"
    line = claims[BEST].cells[1].line()
    assert line == "MNIST S1: sFedHP 95.00 − HierFAVG 74.00: +21.00 ± 0.07 points (true, p < 0.001)"


def test_one_place_where_it_is_false_decides(study, made, grid):
    def accuracy(method, dataset):
        return {"sfedhp": 90 if dataset != "fmnist" else 75, "hierfavg": 80}.get(method, 70)

    claims = judge(first_tables(study, made, accuracy), {})
    assert verdicts(claims, BEST, MARGINS, TUNED) == ["does not hold"] * 3
    assert claims[BEST].findings[0] == "22 true, 2 false"
    assert claims[MARGINS].number == "reached in 3 of 6 settings"  # 10 points are below CIFAR-10's 19


def test_a_margin_that_is_missed_is_false_even_for_the_best(study, made):
    claims = judge(first_tables(study, made, lambda method, _: 90.5 if method == "sfedhp" else 90), {})
    assert verdicts(claims, BEST, MARGINS) == ["holds", "does not hold"]


def test_another_reading_decides_nothing(study, made):
    found = first_tables(study, made, lambda method, _: 90 if method == "sfedhp" else 70, "neighbouring")
    assert judge(found, {})[BEST].verdict == "not run yet"
    assert judge(found, {}, "neighbouring")[BEST].verdict == "holds"


def test_the_last_five_evaluations_count_and_no_single_round(study, made):
    main = study(
        sfedhp=[experiment(client_proximity=20.0, edge_proximity=20.0)], fedavg=[experiment("fedavg")]
    )
    records = [made(main, "sfedhp", seed, gm=[99, 80, 80, 80, 80, 80 + seed]) for seed in range(3)]
    records += [made(main, "fedavg", seed, gm=[10.0] + 4 * [81.0] + [60.0]) for seed in range(3)]
    cell = judge(rows([main], records), {})[BEST].cells[0]
    assert cell.difference is not None
    assert cell.difference.mean == pytest.approx(80.2 - 76.8)


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
    records = [made(main, "sfedhp", seed, gm=[90.0 + wobble]) for seed, wobble in enumerate(WOBBLE)]
    for variant, low in (("fedavg 100 steps", 80.0), ("pfedme λ̄=10 of λ=20", 95.0)):
        records += [made(extras, variant, seed, gm=[low]) for seed in range(4)]
    claim = judge(rows([main, extras], records), {})[EQUAL]
    assert claim.verdict == "does not hold"
    assert claim.findings[0] == "1 true, 1 false, 16 not run yet"
    assert claim.cells[2].about == "MNIST S1: sFedHP 90.00 − pFedMe λ̄=10 of λ=20 95.00"


def test_a_personalized_model_half_a_point_below_is_still_state_of_the_art(study, made, grid):
    def claim(gap):
        methods = {"sfedhp": 95.0, "pfedme": 95.0 + gap}
        main = study(
            sfedhp=[experiment(client_proximity=20.0, edge_proximity=20.0)],
            pfedme=[experiment("pfedme", client_proximity=20.0)],
        )
        records = [
            made(main, method, seed, pm=[value + wobble * (method == "sfedhp")], pm_validation=[1.0])
            for method, value in methods.items()
            for seed, wobble in enumerate(WOBBLE)
        ]
        return judge(rows([main], records), {})[PERSONAL].cells[1].outcome

    # A difference of four seeds is corrected for all 24 comparisons, though only one was run.
    gaps = (0.0, 0.4, 0.5, 1.0, -3.0)
    assert [claim(gap) for gap in gaps] == ["true", "not decided", "not decided", "false", "true"]


def test_of_every_method_the_row_that_is_best_on_validation_data_is_compared(study, made, grid):
    main = study(
        **{
            "sfedhp λ=20": [experiment(client_proximity=20.0, edge_proximity=20.0)],
            "sfedhp λ=30": [experiment(client_proximity=30.0, edge_proximity=30.0)],
            "fedavg": [experiment("fedavg")],
        }
    )
    records = []
    for seed, wobble in enumerate(WOBBLE):
        records += [
            made(main, "sfedhp λ=20", seed, gm=[95.0 + wobble], gm_validation=[80.0]),
            made(main, "sfedhp λ=30", seed, gm=[85.0 + wobble], gm_validation=[90.0]),
            made(main, "fedavg", seed, gm=[90.0], gm_validation=[1.0]),
        ]
    found = rows([main], records)
    assert judge(found, {})[TUNED].cells[0].outcome == "not run yet", "more rows than this grid has"
    grid.append(Cell("mnist", 1, "sfedhp", 30.0, None, 1.0, 1.0, False))
    assert [judge(found, {})[place].cells[0].outcome for place in (BEST, TUNED)] == ["true", "false"]
    grid.append(Cell("mnist", 1, "sfedhp", 15.0, None, 1.0, 1.0, False))
    assert judge(found, {})[TUNED].cells[0].outcome == "not run yet", "one row was not run"


def test_statistics_for_everyone_are_judged_by_themselves(study, made):
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
    )
    records = [
        made(
            one, method, seed, statistics="local", gm_local=[local + wobble], gm_averaged=[mean + 2 * wobble]
        )
        for method, local, mean in (("sfedhp", 90.0, 40.0), ("fedavg", 70.0, 50.0))
        for seed, wobble in enumerate(WOBBLE)
    ]
    claims = judge(rows([one], records), {})
    assert [cell.outcome for cell in claims[BEST].cells if cell.difference] == ["true"]
    assert claims[AVERAGED].verdict == "does not hold"
    assert claims[AVERAGED].findings[0] == "1 false, 7 not run yet"


def curve(variant, gm, seeds=WOBBLE, **columns):
    """A curve whose last value of GM differs a little between seeds."""
    means = {"round": [20.0 * (turn + 1) for turn in range(len(gm))], "gm": gm, **columns}
    runs = {seed: {**means, "gm": [value + wobble for value in gm]} for seed, wobble in enumerate(seeds)}
    return Curve(variant, variant.partition(" ")[2], means, runs)


def test_the_order_of_accuracies_is_the_figures():
    def claims(ours, pfedme, hierfavg):
        methods = {"sfedhp": ours, "pfedme": pfedme, "hierfavg": hierfavg}
        found = [curve(name, [10.0] + 5 * [value]) for name, value in methods.items()]
        # The wobble is the same for all: one method without it.
        found[0] = curve("sfedhp", [10.0] + 5 * [ours], (0.0, 0.0, 0.0, 0.0))
        found[2] = curve("hierfavg", [10.0] + 5 * [hierfavg], (0.1, 0.0, 0.1, 0.0))
        return judge([], {"fig2": found, "fig3": [replace(found[0], variant="sfedhp dense"), *found[1:]]})

    assert verdicts(claims(90.0, 80.0, 70.0), ORDER, DENSE) == ["holds", "not decided"]  # FedAvg is missing
    assert verdicts(claims(90.0, 70.0, 80.0), ORDER) == ["does not hold"]
    assert verdicts(claims(70.0, 80.0, 60.0), ORDER, DENSE) == ["does not hold"] * 2


def rising(variant, *turns, last=60):
    """A curve whose seeds reach 80 in these rounds; None: never."""
    rounds = range(20, last + 1, 20)
    runs = {
        seed: {"round": [*rounds], "gm": [80.0 if turn and each >= turn else 10.0 for each in rounds]}
        for seed, turn in enumerate(turns)
    }
    columns = {"round": [float(each) for each in rounds], "gm": [80.0 for _ in rounds]}
    return Curve(variant, variant.partition(" ")[2], columns, runs)


def test_faster_is_fewer_rounds_to_the_others_accuracy():
    def cells(ours, theirs):
        figure = [replace(ours, variant="sfedhp", steps=100), replace(theirs, variant="pfedme", steps=20)]
        return judge([], {"fig2": figure})[CONVEX]

    slow = rising("pfedme", 100, 100, 120, 100, last=200)
    soon = cells(rising("sfedhp", 20, 20, 20, 20, last=200), slow)
    assert soon.cells[2].outcome == "true"
    assert soon.cells[2].difference.mean == 85
    assert soon.findings[-1] == "gradient steps of a client to pFedMe's accuracy: 2 000 against 2 100"
    assert cells(slow, rising("pfedme", 20, 20, 20, 20, last=200)).verdict == "does not hold"
    assert cells(rising("sfedhp", 20, 180, 40, 160, last=200), slow).cells[2].outcome == "not decided"


def test_a_run_that_never_arrives_counts_as_one_evaluation_later():
    never = rising("sfedhp", 20, None, last=60)
    assert never.rounds_to("gm", {0: 80.0, 1: 80.0}) == {0: 20, 1: 80}
    short = Curve("one", "", {}, {0: {"round": [20], "gm": [1.0]}})
    assert short.rounds_to("gm", {0: 80.0}) == {0: 40}


def test_a_run_that_diverged_counts_as_slow_as_one_that_never_arrived():
    early = replace(rising("sfedhp", None, 20, last=60), rounds=800)
    assert early.rounds_to("gm", {0: 80.0, 1: 80.0}) == {0: 820, 1: 20}


def test_a_run_that_diverged_before_its_first_evaluation_is_judged(study, made):
    one = study("fig4", table="fig4", **{f"λ={lam}": [experiment()] for lam in (5, 40)})
    columns = {"gm": [80.0, None], "formula": [1.0, 2.0], "density_global": [1.0, 1.0]}
    records = [made(one, "λ=5", seed, **columns) for seed in range(2)]
    ended = made(one, "λ=40", 0, trouble="diverged", **columns)
    records += [ended, replace(ended, seed=1, curve={})]
    figure = curves(one, records, whole=True)
    assert figure[1].tails("gm") == {0: 40.0, 1: 0.0}
    assert figure[1].rounds_to("gm", {0: 90.0, 1: 90.0}) == {0: 820, 1: 800}
    claim = judge([], {"fig4": figure})[LAMBDA]
    assert claim.findings == ("1 true, 1 not run yet", "λ=5 40.0, λ=40 20.0 (diverged)")


@pytest.mark.parametrize(
    ("sparse", "sent", "expected"),
    [
        # The bytes, the accuracy with few weights, the cost of sparsity.
        (90.0, 10.0, ("holds", "holds", "holds")),
        (89.3, 10.0, ("holds", "does not hold", "holds")),
        (88.0, 10.0, ("does not hold", "does not hold", "holds")),
        (90.0, 99.0, ("does not hold", "holds", "holds")),
        (90.0, 101.0, ("does not hold", "holds", "does not hold")),
        (70.0, 99.0, ("does not hold", "does not hold", "holds")),
    ],
)
def test_bytes_and_accuracy_are_two_halves_of_a_claim(sparse, sent, expected):
    steady = (0.0, 0.0, 0.0, 0.0)
    fig3 = [
        curve("pfedme", [90.0], steady, formula=[100.0], sent=[500.0], sent_all=[500.0]),
        curve("fedavg", [85.0], steady),
        curve("hierfavg", [80.0], steady, formula=[100.0]),
        curve("sfedhp dense", [90.5], steady, formula=[100.0], sent=[100.0], sent_all=[9000.0]),
        curve("sfedhp sparse", [sparse], formula=[sent], sent=[sent], density_global=[0.1]),
    ]
    claims = judge([], {"fig3": fig3})
    assert verdicts(claims, BYTES, SPARSE, SLOWER) == [*expected]
    assert claims[SPARSE].findings[-1] == f"sparse − dense sFedHP: {sparse + 0.005 - 90.5:+.2f} points"
    assert claims[BYTES].number == f"{100 - sent:.0f} % fewer at {sparse - 90:+.1f} points"
    assert claims[BYTES].findings[-1].startswith("of these, 80.0 % without any sparsity")
    # All links, and not only the cloud's.
    assert claims[TIERS].verdict == "does not hold"
    assert claims[TIERS].number == "+80 % on the cloud's links, -1700 % on all links"


def test_records_without_the_bytes_of_all_links_leave_half_of_the_claim_open():
    fig3 = [curve("pfedme", [90.0], sent=[500.0]), curve("sfedhp dense", [90.5], sent=[100.0])]
    claim = judge([], {"fig3": fig3})[TIERS]
    assert (claim.verdict, [cell.outcome for cell in claim.cells]) == ("not decided", ["true", "not run yet"])


@pytest.mark.parametrize(("turn", "verdict"), [(40, "holds"), (100, "holds"), (160, "does not hold")])
def test_sparsity_may_cost_a_tenth_of_the_rounds(turn, verdict):
    def one(variant, turn, spent):
        found = rising(variant, *[turn] * 4, last=800)
        return replace(
            found, runs={seed: run | {"formula": [spent] * 40} for seed, run in found.runs.items()}
        )

    fig3 = [one("sfedhp dense", 40, 9.0), one("sfedhp sparse", turn, 1.0)]
    claim = judge([], {"fig3": fig3})[SLOWER]
    assert claim.verdict == verdict
    assert claim.number == f"{turn - 40:+d} rounds, 89 % fewer bytes"


def test_the_cost_of_communication_is_that_of_the_others_accuracy():
    def one(variant, turn, each):
        found = rising(variant, *[turn] * 4, last=200)
        spent = [each * place for place in range(1, 11)]
        return replace(found, runs={seed: run | {"formula": spent} for seed, run in found.runs.items()})

    ours, rival = one("sfedhp", 100, 1.0), one("pfedme", 60, 2.0)
    claim = judge([], {"fig2": [ours, rival]})[COST]
    # Five evaluations at 1 against three at 2.
    assert mean_of(claim.cells[1]) == pytest.approx(100 / 6)
    assert (claim.cells[1].outcome, claim.verdict) == ("true", "not decided")
    # What never arrives has sent everything.
    claim = judge([], {"fig2": [one("sfedhp", None, 1.0), rival]})[COST]
    assert mean_of(claim.cells[1]) == pytest.approx(100 * (1 - 10 / 6))
    assert claim.verdict == "does not hold"


def trend(values, diverged=(), name="λ", figure="fig4", claim=LAMBDA, **columns):
    found = [
        replace(
            curve(f"{name}={key}", [value], (0.0, 0.02 * place, 0.0, 0.0), **columns),
            diverged=key in diverged,
        )
        for place, (key, value) in enumerate(values.items())
    ]
    return judge([], {figure: found})[claim]


def test_a_larger_lambda_helps_until_it_explodes():
    rise = {5: 50.0, 15: 60.0, 20: 70.0, 40: 10.0}
    stable, exploded = trend(rise), trend(rise, diverged=[40])
    assert exploded.findings[-1].endswith("λ=20 70.0, λ=40 10.0 (diverged)")
    assert exploded.cells[-1].line() == "values of λ at which a run diverges: λ=40: true"
    # One evaluation: at λ = 15 the goal is reached as soon as at λ = 5.
    assert [cell.outcome for cell in exploded.cells] == [*("true", "true"), *2 * ["not decided"], "true"]
    assert stable.verdict == "does not hold"
    assert stable.cells[-1].line() == "values of λ at which a run diverges: none: not decided"
    # What is not tested is not corrected for.
    assert exploded.cells[0].p == pytest.approx(4 * exploded.cells[0].difference.p)


def test_a_larger_lambda_is_also_faster():
    def figure(*turns):
        rivals = [rising(f"λ={key}", *turn, last=200) for key, turn in zip((5, 15), turns, strict=True)]
        return judge([], {"fig4": rivals})[LAMBDA].cells[1]

    assert figure([100, 120, 100, 100], [20] * 4).outcome == "true"
    assert figure([20] * 4, [100, 120, 100, 100]).outcome == "false"


def test_a_larger_gamma_lowers_accuracy_and_bytes():
    def found(gm, spent):
        found_curves = [
            curve(
                f"γ={key}",
                [gm[key]],
                (0.0, 0.02 * place, 0.0, 0.0),
                density_global=[0.1],
                formula=[spent[key]],
            )
            for place, key in enumerate(gm)
        ]
        return judge([], {"fig5": found_curves})[GAMMA]

    fall = {"0": 90.0, "1e-3": 80.0, "8e-3": 70.0}
    few = {"0": 900.0, "1e-3": 450.0, "8e-3": 90.0}
    assert found(fall, few).verdict == "holds"
    # Points and bytes are not mixed.
    assert found(fall, few).number == (
        "true in 4 of 4 comparisons; differences +10.0 to +10.0 points, +50.0 to +80.0 %"
    )
    assert found(fall, few | {"1e-3": 90.0, "8e-3": 450.0}).verdict == "does not hold"
    assert found(fall | {"1e-3": 60.0}, few).verdict == "does not hold"


def test_what_a_figure_still_lacks_is_counted(study, made):
    names = ["γ=0", "γ=1e-3", "γ=8e-3", "γ=1e-3 scheduled", "γ=8e-3 scheduled"]
    one = study("fig5", table="fig5", **{name: [experiment()] for name in names})
    records = [
        made(one, name, seed, gm=[90.0 - 10 * place + wobble * place], formula=[100.0 - 50 * place])
        for place, name in enumerate(names[:2])
        for seed, wobble in enumerate(WOBBLE)
    ]
    records = [replace(each, curve=each.curve | {"density_global": [0.5]}) for each in records]
    partial = judge([], {"fig5": curves(one, records, whole=True)})[GAMMA]
    assert partial.findings[0] == "2 true, 4 not run yet"
    assert partial.verdict == "not decided"
    assert partial.findings[1].endswith("γ=8e-3: GM not run yet")
    assert (
        judge([], {"fig4": curves(replace(one, table="fig4"), [], whole=True)})[LAMBDA].verdict
        == "not run yet"
    )


@pytest.mark.parametrize(("one", "verdict"), [(160, "holds"), (40, "does not hold"), (20, "does not hold")])
def test_speed_up_is_a_ratio_of_rounds(one, verdict):
    found = [
        rising("S=1", one, one, one, one, last=200),
        rising("S=2", *[max(one // 2 // 20 * 20, 20)] * 4, last=200),
        rising("S=4", *[max(one // 4 // 20 * 20, 20)] * 4, last=200),
    ]
    claim = judge([], {"speedup": found})[SPEED]
    assert claim.verdict == verdict
    assert claim.number.endswith("times with 2 and 4 edges")


def test_curves_without_a_common_seed_are_not_compared():
    ours, rival = curve("sfedhp", [80.0, 90.0]), curve("fedavg", [70.0, 80.0])
    rival = replace(rival, runs={7: rival.columns})
    claims = judge(
        [], {"fig2": [ours, rival], "speedup": [replace(ours, variant="S=1"), replace(rival, variant="S=4")]}
    )
    assert verdicts(claims, CONVEX, SPEED) == ["not run yet"] * 2


def test_a_curve_is_the_mean_as_far_as_all_seeds_got(study, made):
    one = study("fig2", table="fig2", sfedhp=[experiment()], fedavg=[experiment("fedavg")])
    records = [
        made(one, "sfedhp", 0, gm=[10.0, 20.0, 30.0], em=[None, 1.0, 1.0]),
        made(one, "sfedhp", 1, gm=[20.0, 40.0]),
    ]
    (found,) = curves(one, records)
    assert found.columns["gm"] == [15.0, 30.0]
    assert "em" not in found.columns
    assert found.tails("gm") == {0: 20.0, 1: 30.0}
    assert found.ends("gm") == {0: 30.0, 1: 40.0}
    method = experiment().algorithm
    assert isinstance(method, SFedHP)
    assert found.steps == method.edge_rounds * method.personal_steps
    assert found.last("gm") == 30
    assert math.isclose(replace(found, variant="γ=1e-3 scheduled").strength, 0.001)
