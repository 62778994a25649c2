from sfedhp.paper.jobs import Effort, choose, finals, trials
from tests.support.small_experiments import experiment

EFFORT = Effort(seeds=2, device="cpu")


def test_a_variant_of_one_point_is_run_with_every_seed(study):
    plain = study(fedavg=[experiment("fedavg")])
    assert trials(plain, EFFORT) == []
    jobs = finals(plain, EFFORT, [])
    assert [job.experiment.seed for job in jobs] == [0, 1]
    assert {job.experiment.rounds for job in jobs} == {800}
    assert {job.experiment.device for job in jobs} == {"cpu"}


def test_what_is_tried_is_short_and_what_is_chosen_is_best_on_validation(study, made):
    tried = study(meta=[experiment("perfedavg", meta_rate=rate) for rate in (0.001, 0.01)])
    assert {job.experiment.rounds for job in trials(tried, EFFORT)} == {200}
    assert len(trials(tried, EFFORT)) == 4
    records = [
        made(tried, "meta", seed, point=point, rounds=200, pm=[99.0], pm_validation=[value])
        for point, values in enumerate([(70.0, 80.0), (76.0, 75.0)])
        for seed, value in enumerate(values)
    ]
    points = tried.variants["meta"]
    assert choose(tried, "meta", points, EFFORT, records[:3]) is None
    assert finals(tried, EFFORT, records[:3]) == []
    assert choose(tried, "meta", points, EFFORT, records) == points[1]
    assert {job.words for job in finals(tried, EFFORT, records)} == {points[1].words}


def test_a_trial_that_diverged_has_lost(study, made):
    tried = study(meta=[experiment("perfedavg", meta_rate=rate) for rate in (0.001, 0.01)])
    records = [
        made(tried, "meta", 0, point=0, rounds=200, trouble="diverged", gm=[50.0], gm_validation=[99.0]),
        made(tried, "meta", 0, point=1, rounds=200, gm=[50.0], gm_validation=[10.0]),
    ]
    one = Effort(seeds=1)
    assert choose(tried, "meta", tried.variants["meta"], one, records) == tried.variants["meta"][1]


def test_fewer_rounds_where_less_effort_is_asked_for(study):
    fast = Effort(seeds=1, rounds=20, choice_rounds=5)
    both = study(
        gp=[experiment("pfedgp", rounds=10)], meta=[experiment("perfedavg"), experiment("perfedavg")]
    )
    assert [job.experiment.rounds for job in finals(both, fast, [])] == [10]
    assert {job.experiment.rounds for job in trials(both, fast)} == {5}
