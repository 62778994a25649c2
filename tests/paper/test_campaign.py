import pytest

from sfedhp.paper import campaign
from sfedhp.paper.campaign import CampaignProgress, run_studies
from sfedhp.paper.jobs import Effort
from sfedhp.paper.records import read_records
from tests.support.small_experiments import experiment


@pytest.fixture
def small(study):
    return study(
        "small",
        fedavg=[experiment("fedavg", rounds=3)],
        meta=[experiment("perfedavg", rounds=3, meta_rate=rate) for rate in (0.01, 0.05)],
    )


def test_everything_runs_once_and_leaves_records(small, tmp_path, monkeypatch):
    effort = Effort(seeds=2, choice_rounds=1, device="cpu")
    seen: list[CampaignProgress] = []
    assert run_studies([small], tmp_path, effort, report=seen.append)
    kept = read_records(tmp_path, ["small"])
    # Two runs of FedAvg, two trials of each of two points, two runs of the chosen one.
    assert len(kept) == 8
    assert len({each.key for each in kept}) == 8
    assert seen[-1].done == seen[-1].total == 16
    assert all(1 <= each.done <= each.total for each in seen)
    chosen = [each for each in kept if each.variant == "meta" and each.rounds == 3]
    assert [each.seed for each in chosen] == [0, 1]
    assert len({each.words for each in chosen}) == 1
    first = kept[0]
    assert first.config["algorithm"]["name"] in ("fedavg", "perfedavg")
    assert set(first.versions) == {"sfedhp", "python", "torch", "numpy", "device"}
    assert len(first.commit) == 40 or first.commit == "unknown"

    def never(*_, **__):
        raise AssertionError("a finished run was repeated")

    monkeypatch.setattr(campaign, "sweep", never)
    assert run_studies([small], tmp_path, effort)


def test_seeds_change_the_numbers(small, tmp_path):
    run_studies([small], tmp_path, Effort(seeds=2, rounds=2, choice_rounds=1, device="cpu"))
    losses = {
        each.seed: each.curve["train_loss"]
        for each in read_records(tmp_path, ["small"])
        if each.variant == "fedavg"
    }
    assert losses[0] != losses[1]


def test_a_campaign_that_is_stopped_keeps_what_was_finished(small, tmp_path):
    rounds: list[CampaignProgress] = []
    effort = Effort(seeds=1, choice_rounds=1, device="cpu")
    assert not run_studies(
        [small],
        tmp_path,
        effort,
        report=rounds.append,
        stop=lambda: bool(rounds) and "fedavg" in rounds[-1].title,
    )
    assert len(read_records(tmp_path, ["small"])) == 2
    assert not any(each.variant == "fedavg" for each in read_records(tmp_path, ["small"]))


def test_bytes_are_counted_for_all_and_by_the_papers_count_for_one(study, tmp_path):
    tiers = study(
        "tiers",
        flat=[experiment("fedavg", rounds=2)],
        deep=[experiment("sfedhp", rounds=2, edge_rounds=1)],
    )
    run_studies([tiers], tmp_path, Effort(seeds=1, device="cpu"))
    flat, deep = sorted(read_records(tmp_path, ["tiers"]), key=lambda each: each.variant != "flat")
    weights = 7850
    # Up and down, two rounds; twenty clients, or four edges.
    assert flat.curve["sent"] == [2 * 20 * 4 * weights, 4 * 20 * 4 * weights]
    assert deep.curve["sent"] == [2 * 4 * 4 * weights, 4 * 4 * 4 * weights]
    # 64 bits a weight and one for its position; some initial weights may be zero.
    assert flat.curve["formula"][0] == pytest.approx(2 * 65 * weights / 8, rel=1e-3)
    assert deep.curve["formula"][0] == pytest.approx(flat.curve["formula"][0], rel=1e-3)
