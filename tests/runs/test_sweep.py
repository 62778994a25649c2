"""Many runs at once give what each gives alone."""

import json
from dataclasses import replace

import pytest
import torch
from torch import nn

import sfedhp
from sfedhp.algorithms import ALGORITHMS, FedAvg, HeurFedAMP, PFedMe, SFedHP
from sfedhp.config import EvaluationOptions
from sfedhp.core.errors import InputError, Note
from sfedhp.data import DataOptions
from sfedhp.engine import memory
from sfedhp.runs import sweep as sweeping
from sfedhp.runs.sweep import check_sweep, plan, rounds_done, sweep
from sfedhp.wire.link import WireOptions
from tests.support.file_bytes import file_bytes
from tests.support.json_lines import json_lines, without_seconds
from tests.support.short_runs import SMALL, Mine, after, arrays


def flat(module):
    return torch.cat([value.flatten() for value in module.parameters()])


@pytest.mark.parametrize(
    "methods",
    [
        [SFedHP(edge_rounds=2, client_proximity=value, edge_proximity=value) for value in (5.0, 15.0)],
        [SFedHP(edge_rounds=2, client_sparsity=g, edge_sparsity=g, smoothing=1e-2) for g in (1e-3, 4e-3)],
        [FedAvg(local_steps=3, local_rate=rate) for rate in (0.05, 0.1)],
        [PFedMe(local_rounds=2, cloud_mixing=mixing) for mixing in (1.0, 0.5)],
        [HeurFedAMP(local_steps=2, self_weight=weight) for weight in (0.1, 0.5)],
    ],
    ids=lambda methods: type(methods[0]).__name__,
)
def test_each_run_of_a_stack_gives_its_own_numbers(methods):
    experiments = [replace(SMALL, algorithm=method, seed=seed) for method in methods for seed in (0, 1)]
    assert len(plan(experiments)) == 1
    for experiment, outcome in zip(experiments, sweep(experiments), strict=True):
        alone = sfedhp.run(experiment)
        assert outcome.error is None
        assert outcome.run.experiment == alone.experiment
        for first, second in zip(outcome.run.history, alone.history, strict=True):
            assert first.keys() == second.keys()
            for name in first.keys() - {"seconds"}:
                assert first[name] == pytest.approx(second[name], rel=1e-9), name
        for one, two in zip(outcome.run.client_models[1], alone.client_models[1], strict=True):
            if two is not None:
                assert (flat(one) - flat(two)).norm() <= 1e-9 * flat(two).norm()
        if alone.global_model is not None:
            assert (flat(outcome.run.global_model) - flat(alone.global_model)).norm() < 1e-9


def test_memory_limits_a_stack(monkeypatch):
    monkeypatch.setattr(memory, "free_memory", lambda device: 10_000_000)
    stacks = plan([replace(SMALL, seed=seed) for seed in range(6)])
    assert len(stacks) > 1
    assert sorted(place for stack in stacks for place in stack) == list(range(6))


def test_a_run_that_diverges_leaves_the_others_alone(tmp_path):
    wild = replace(
        SMALL, algorithm=SFedHP(edge_rounds=2, edge_rate=1e200), evaluation=EvaluationOptions(every=3)
    )
    calm = replace(SMALL, evaluation=EvaluationOptions(every=3))
    folders = [tmp_path / "wild", tmp_path / "calm"]
    first, second = sweep([wild, calm], folders)
    assert first.error is not None
    assert "has values that are not finite" in first.error
    assert not first.run.finished
    assert second.error is None
    alone = sfedhp.run(calm)
    assert second.run.history[-1]["gm"] == alone.history[-1]["gm"]
    assert len((tmp_path / "calm/history.jsonl").read_text().splitlines()) == 3
    assert (tmp_path / "wild/models/global.safetensors").exists()
    assert json.loads((tmp_path / "calm/environment.json").read_text())["runs_at_once"] == 2


def test_runs_with_tables_of_different_width_are_stacked():
    data = DataOptions(source="synthetic")
    experiments = [replace(SMALL, data=data, seed=seed) for seed in (0, 1)]
    widths = {sfedhp.runs.prepare.prepare(each).simulator.task.labels.shape[-1] for each in experiments}
    assert len(widths) == 2
    for experiment, outcome in zip(experiments, sweep(experiments, at_once=2), strict=True):
        alone = sfedhp.run(experiment)
        assert outcome.run.history[-1]["gm_loss"] == pytest.approx(alone.history[-1]["gm_loss"], rel=1e-9)


def test_a_sweep_can_be_stopped():
    asked = []

    def stop():
        asked.append(1)
        return len(asked) >= 2

    outcomes = sweep([SMALL, replace(SMALL, batch_size=5)], stop=stop)
    assert len(outcomes) == 1
    assert len(outcomes[0].run.history) == 2


SHORT = {
    "pfedgp": {"chains": 2, "gibbs_steps": 1},
    "pfedme": {"local_rounds": 2},
    "sfedhp": {"edge_rounds": 2},
}
KINDS = {name: (kind(**SHORT.get(name, {})), WireOptions()) for name, kind in ALGORITHMS.items()}
KINDS["differences"] = (SFedHP(edge_rounds=2, start="carried"), WireOptions(difference=True, count="size"))


@pytest.mark.parametrize("name", KINDS)
def test_a_stopped_stack_continues_to_the_same_bits(tmp_path, name):
    method, wire = KINDS[name]
    runs = [replace(SMALL, algorithm=method, wire=wire, seed=seed) for seed in (0, 1)]
    straight, halted = ([tmp_path / where / str(seed) for seed in (0, 1)] for where in ("a", "b"))
    sweep(runs, straight)
    outcomes = sweep(runs, halted, stop=after(2))
    assert [(outcome.run.finished, len(outcome.run.history)) for outcome in outcomes] == [(False, 2)] * 2
    assert [rounds_done(folder) for folder in halted] == [2, 2]
    rounds = []
    outcomes = sweep(runs, halted, report=lambda progress: rounds.append(progress.row["round"]))
    assert rounds == [3]
    assert all(outcome.run.finished for outcome in outcomes)
    for one, other in zip(straight, halted, strict=True):
        files = sorted(path.relative_to(one) for path in one.rglob("*.safetensors"))
        assert sum(path.parts[0] == "models" for path in files) >= 1
        for path in files:
            assert (one / path).read_bytes() == (other / path).read_bytes(), path
        histories = [without_seconds(json_lines(folder / "history.jsonl")) for folder in (one, other)]
        assert histories[0] == histories[1]


def test_a_run_of_a_stopped_stack_can_continue_alone(tmp_path):
    runs = [replace(SMALL, seed=seed) for seed in (0, 1)]
    folders = [tmp_path / str(seed) for seed in (0, 1)]
    sweep(runs, folders, stop=after(2))
    alone = sfedhp.resume(folders[1])
    assert (alone.finished, len(alone.history)) == (True, 3)
    straight = sfedhp.run(runs[1])
    assert (flat(alone.global_model) - flat(straight.global_model)).norm() < 1e-9
    # The others continue without it.
    assert plan(runs, 8, folders) == [(0,), (1,)]
    rounds = []
    outcomes = sweep(runs, folders, report=lambda progress: rounds.append(progress.row["round"]))
    assert rounds == [3]
    assert [outcome.run.finished for outcome in outcomes] == [True, True]


def test_where_checkpoints_disagree_each_run_resumes_from_its_own(tmp_path):
    runs = [replace(SMALL, seed=seed) for seed in (0, 1)]
    folders = [tmp_path / str(seed) for seed in (0, 1)]
    sweep(runs, folders, stop=after(1))
    sweep(runs, folders, stop=after(1))
    newest = folders[1] / "checkpoint" / "round-000002.safetensors"
    newest.write_bytes(newest.read_bytes()[:50])
    with pytest.warns(Note, match="is damaged"):
        assert [rounds_done(folder) for folder in folders] == [2, 1]
    with pytest.warns(Note, match="is damaged"):
        outcomes = sweep(runs, folders)
    for outcome, straight in zip(outcomes, sweep(runs), strict=True):
        apart = flat(outcome.run.global_model) - flat(straight.run.global_model)
        assert apart.norm() <= 1e-9 * flat(straight.run.global_model).norm()
    assert [[row["round"] for row in outcome.run.history] for outcome in outcomes] == [[1, 2, 3]] * 2


def test_a_run_that_was_killed_begins_anew(tmp_path):
    sweep([SMALL], [tmp_path / "calm"], stop=after(2))
    for path in (tmp_path / "calm/checkpoint").iterdir():
        path.unlink()  # as if it had never come to one
    outcome = sweep([SMALL], [tmp_path / "calm"])[0]
    assert [row["round"] for row in outcome.run.history] == [1, 2, 3]


WILD = replace(SMALL, algorithm=SFedHP(edge_rounds=2, edge_rate=1e200))


@pytest.mark.parametrize("others", [[], [SMALL]], ids=["alone", "in a stack"])
def test_a_run_that_diverged_is_not_repeated(tmp_path, others):
    runs = [WILD, *others]
    folders = [tmp_path / str(place) for place in range(len(runs))]
    before = sweep(runs, folders)
    with pytest.raises(InputError, match=r"diverged in round 1: .* there is nothing to resume"):
        sfedhp.resume(folders[0])
    assert plan(runs, 8, folders)[-1] == (0,)
    asked = []

    def never():
        asked.append(1)
        return False

    again = sweep(runs, folders, stop=never)
    assert len(asked) == len(runs)  # after each stack, and after no round
    assert again[0].error is not None
    assert "diverged in round 1" in again[0].error
    assert [each.error for each in again] == [each.error for each in before]
    assert [each.run.history for each in again] == [each.run.history for each in before]
    assert [each.run.finished for each in again] == [False, *(True for _ in others)]
    assert torch.equal(flat(again[0].run.global_model), flat(before[0].run.global_model))


def written(folder):
    """The files of a run, with their content and the time they were written."""
    paths = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder): (path.read_bytes(), path.stat().st_mtime_ns) for path in paths}


@pytest.mark.parametrize(
    "runs",
    [[SMALL], [replace(SMALL, algorithm=FedAvg(local_steps=2), seed=seed) for seed in (0, 1)], [WILD]],
    ids=["alone", "stacked", "diverged"],
)
@pytest.mark.parametrize("how", ["missing", "damaged"])
def test_a_repeated_sweep_repairs_a_model_and_writes_nothing_else(tmp_path, runs, how):
    folders = [tmp_path / str(place) for place in range(len(runs))]
    sweep(runs, folders)
    before = [written(folder) for folder in folders]
    sweep(runs, folders)
    assert [written(folder) for folder in folders] == before
    model = folders[-1] / "models" / "global.safetensors"
    content = model.read_bytes()
    model.unlink() if how == "missing" else model.write_bytes(content[:-1] + b"?")
    sweep(runs, folders)
    assert model.read_bytes() == content
    assert [written(folder) for folder in folders[:-1]] == before[:-1]


def test_rounds_are_reported_when_the_first_run_of_a_stack_has_diverged():
    rounds = []
    sweep([WILD, SMALL], report=lambda progress: rounds.append(progress.row["round"]))
    assert rounds == [1, 2, 3]


def test_the_folder_without_a_readable_checkpoint_is_named(tmp_path):
    runs = [replace(SMALL, seed=seed) for seed in (0, 1)]
    folders = [tmp_path / str(seed) for seed in (0, 1)]
    sweep(runs, folders, stop=after(1))
    for path in (folders[1] / "checkpoint").iterdir():
        path.write_bytes(b"")
    with pytest.raises(InputError) as error:
        plan(runs, 0, folders)
    assert str(error.value).startswith(
        f"No checkpoint in {folders[1] / 'checkpoint'} can be read: delete {folders[1]}, and the same "
        f"command repeats the run. {folders[1] / 'checkpoint' / 'round-000001.safetensors'} is damaged: "
    )


def test_a_run_that_another_process_took_further_is_not_begun_anew(tmp_path, monkeypatch):
    runs = [replace(SMALL, seed=seed) for seed in (0, 1)]
    folders = [tmp_path / str(seed) for seed in (0, 1)]
    sweep(runs, folders, stop=after(1))
    planned = plan(runs, 0, folders)
    sfedhp.resume(folders[1])
    monkeypatch.setattr(sweeping, "plan", lambda *_, **__: planned)
    with pytest.raises(
        InputError,
        match=r"Another process continued a run in .* while this sweep was running: run the same command",
    ):
        sweep(runs, folders)
    assert rounds_done(folders[1]) == 3


def test_a_run_that_diverged_in_another_process_is_not_begun_anew(tmp_path, monkeypatch):
    runs, folders = [WILD, SMALL], [tmp_path / "wild", tmp_path / "calm"]
    planned = plan(runs, 0, folders)
    with pytest.raises(sfedhp.DivergenceError):
        sfedhp.run(WILD, out=folders[0])
    with monkeypatch.context() as patch:
        patch.setattr(sweeping, "plan", lambda *_, **__: planned)
        with pytest.raises(InputError, match="Another process continued"):
            sweep(runs, folders)
    assert [bool(outcome.error) for outcome in sweep(runs, folders)] == [True, False]


def test_results_without_a_config_are_not_replaced(tmp_path):
    runs = [replace(SMALL, seed=seed) for seed in (0, 1)]
    folders = [tmp_path / str(seed) for seed in (0, 1)]
    sweep(runs, folders)
    (folders[0] / "config.toml").unlink()
    before = file_bytes(tmp_path)
    for attempt in (lambda: sweep(runs, folders), lambda: sfedhp.run(runs[0], out=folders[0])):
        with pytest.raises(InputError, match=r"0 has no config.toml, but a file .* history\.jsonl: choose"):
            attempt()
        assert file_bytes(tmp_path) == before


def test_a_history_with_gaps_is_not_continued(tmp_path):
    folder = tmp_path / "one"
    sweep([SMALL], [folder], stop=after(2))
    (folder / "history.jsonl").unlink()
    for attempt in (lambda: sfedhp.resume(folder), lambda: sweep([SMALL], [folder])):
        with pytest.raises(InputError, match=r"history\.jsonl does not hold each of the rounds 1 to 2 once"):
            attempt()
        assert not (folder / "history.jsonl").exists()


def test_everything_is_checked_before_anything_is_written(tmp_path):
    missing = replace(SMALL, data=replace(SMALL.data, source="nowhere.npz"))
    runs = [SMALL, missing]
    with pytest.raises(InputError, match=r"nowhere\.npz"):
        check_sweep(runs, plan(runs))
    (tmp_path / "file").write_text("")
    folders = [tmp_path / "one", tmp_path / "file"]
    runs = [SMALL, replace(SMALL, batch_size=5)]
    with pytest.raises(InputError, match="is a file"):
        check_sweep(runs, plan(runs), folders)
    sweep([SMALL], [tmp_path / "one"])
    check_sweep([SMALL], plan([SMALL]), [tmp_path / "one"])
    check_sweep([SMALL], plan([SMALL]), [None])
    other = replace(SMALL, batch_size=7)
    with pytest.raises(InputError, match="one holds another run: here is batch_size = 7, but the run was"):
        check_sweep([other], plan([other]), [tmp_path / "one"])
    with pytest.raises(InputError, match="holds another run"):
        sweep([other], [tmp_path / "one"])


def test_a_sweep_takes_data_and_model_as_a_run_does(tmp_path):
    module = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    own = {"data": arrays(), "model": module}
    experiments = [replace(SMALL, data=DataOptions(), seed=seed) for seed in (0, 1)]
    folders = [str(tmp_path / str(seed)) for seed in (0, 1)]  # paths may be strings
    stopped = sweep(experiments, folders, **own, stop=after(1))
    assert [rounds_done(folder) for folder in folders] == [1, 1]
    assert [outcome.run.finished for outcome in stopped] == [False, False]
    check_sweep(experiments, plan(experiments, 0, folders, **own), folders, **own)
    with pytest.raises(InputError, match="holds another run"):
        sweep(experiments, folders)
    with pytest.raises(InputError, match="is not what the run in"):
        sweep(experiments, folders, data=arrays(seed=1), model=module)
    for experiment, outcome in zip(experiments, sweep(experiments, folders, **own), strict=True):
        alone = sfedhp.run(experiment, **own)
        assert outcome.run.finished
        assert outcome.run.experiment == alone.experiment
        assert isinstance(outcome.run.global_model, nn.Sequential)
        assert isinstance(outcome.run.global_model[1], nn.Tanh)
        assert (flat(outcome.run.global_model) - flat(alone.global_model)).norm() < 1e-9


def test_a_sweep_of_a_users_own_method_is_continued(tmp_path):
    experiments = [replace(SMALL, algorithm=Mine(rate)) for rate in (0.1, 0.2)]
    folders = [tmp_path / "a", tmp_path / "b"]
    sweep(experiments, folders, stop=after(1))
    with pytest.raises(InputError, match=r"here is algorithm.rate = 0.3, but the run was computed with 0.2"):
        sweep([experiments[0], replace(SMALL, algorithm=Mine(0.3))], folders)
    assert all(outcome.run.finished for outcome in sweep(experiments, folders))
