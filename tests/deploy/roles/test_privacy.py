"""Differential privacy in a deployment: secrets of roles, what is counted, and how a budget ends a run."""

import stat
from dataclasses import replace

import pytest
import torch

from sfedhp.config import EvaluationOptions
from sfedhp.core.errors import InputError
from sfedhp.deploy.event_log import read_status
from sfedhp.deploy.federation_file import FederationFile
from sfedhp.deploy.roles.private_noise import PrivateNoise, member_noise
from sfedhp.deploy.topology import lay_out
from sfedhp.nn.models import ModelOptions
from sfedhp.privacy.accounting import Release, epsilon
from sfedhp.privacy.options import PrivacyOptions
from tests.support.deploy_memory import Federation, experiment

pytest.importorskip("dp_accounting")

ROW = PrivacyOptions(noise=20.0)
AT, MODEL = torch.tensor([0, 0]), torch.arange(3.0)


def deployed(tmp_path, options, name="sfedhp", **more):
    federation = Federation(tmp_path, replace(experiment(name), privacy=options, **more))
    federation.start()
    federation.finish()
    return federation


def noise_of(folder, run="one", **options):
    what = replace(experiment(), privacy=replace(ROW, **options))
    return PrivateNoise(folder, what, lambda: run, 12)


@pytest.mark.parametrize("tier", ["client", "edge", "cloud"])
def test_whole_clients_are_protected_by_the_tier_that_is_named(tmp_path, tier):
    options = PrivacyOptions(unit="client", tier=tier, clip=0.1, noise=30.0)
    federation = deployed(tmp_path, options)
    plain = deployed(tmp_path / "plain", PrivacyOptions())
    name = next(iter(federation.models("global")))
    assert not torch.equal(federation.models("global")[name], plain.models("global")[name])
    per_round = 1 if tier == "cloud" else 2
    expected = [epsilon(Release(turn * per_round, 1, 1), 30.0, 1e-5) for turn in (1, 2, 3)]
    assert [row["epsilon"] for row in federation.rows()] == expected
    holders = {path.parent.parent.name for path in tmp_path.glob("*/run/privacy.json")}
    assert {each.partition("-")[0] for each in holders} == {tier}, "no other role needs a secret"


def test_rows_are_protected_by_their_clients_who_say_what_they_spent(tmp_path):
    federation = deployed(tmp_path, ROW)
    rows = federation.rows()
    sizes = [int(role._task.sizes) for role in federation.roles.values() if hasattr(role, "_task")]
    batch, steps = 20, 5
    expected = [
        max(epsilon(Release(2 * turn, size, batch, steps), 20.0, 1e-5) for size in sizes)
        for turn in (1, 2, 3)
    ]
    assert [row["epsilon"] for row in rows] == pytest.approx(expected)
    status = read_status(tmp_path / "client-0-0/run")
    assert status is not None
    assert status["epsilon"] == pytest.approx(expected[-1])
    again = deployed(tmp_path / "again", ROW)
    name = next(iter(federation.models("global")))
    assert not torch.equal(federation.models("global")[name], again.models("global")[name]), "new secrets"


def test_a_deployed_run_ends_with_its_budget(tmp_path):
    free = PrivacyOptions(unit="client", tier="edge", clip=0.1, noise=30.0)
    budget = epsilon(Release(4, 1, 1), 30.0, 1e-5)
    federation = deployed(tmp_path, replace(free, epsilon=budget + 1e-6))
    assert len(federation.rows()) == 2
    status = read_status(tmp_path / "cloud/run")
    assert status is not None
    assert "budget is spent" in status["trouble"]
    assert (tmp_path / "cloud/run/models/global.safetensors").exists()


def test_the_secret_is_made_once_and_only_its_owner_may_read_it(tmp_path):
    first = noise_of(tmp_path).bound_to(MODEL, AT)
    file = tmp_path / "privacy.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert noise_of(tmp_path).bound_to(MODEL, AT).secret == first.secret
    assert noise_of(tmp_path, "two").bound_to(MODEL, AT).secret != first.secret
    assert noise_of(tmp_path / "other").bound_to(MODEL, AT).secret != first.secret


def test_a_release_counts_once_and_any_other_counts_too(tmp_path):
    noise = noise_of(tmp_path)
    assert noise.epsilon() == 0
    noise.bound_to(MODEL, AT)
    one = noise.epsilon()
    noise.bound_to(MODEL, AT)
    restarted = noise_of(tmp_path)
    restarted.bound_to(MODEL, AT)
    assert restarted.epsilon() == one > 0
    restarted.bound_to(MODEL + 1e-6, AT)  # the same round with another model: a server that asks twice
    assert restarted.epsilon() > one
    assert noise_of(tmp_path).epsilon() == restarted.epsilon()
    again = noise_of(tmp_path, "two")
    assert again.epsilon() == restarted.epsilon(), "another run is of the same rows"
    again.bound_to(MODEL, AT)
    assert again.epsilon() > restarted.epsilon()


def test_a_member_refuses_by_itself_what_would_spend_more(tmp_path):
    two = noise_of(tmp_path / "free")
    two.bound_to(MODEL, AT)
    budget = two.epsilon(1) + 1e-9
    noise = noise_of(tmp_path / "bounded", epsilon=budget)
    noise.bound_to(MODEL, AT)
    noise.bound_to(MODEL, AT + 1)
    with pytest.raises(InputError, match="budget is spent"):
        noise.bound_to(MODEL, AT + 2)
    assert noise.epsilon() <= budget
    noise.bound_to(MODEL, AT + 1)  # what was sent before may be sent again


def test_a_server_that_begins_a_new_run_gets_no_new_budget(tmp_path):
    budget = noise_of(tmp_path / "free").epsilon(1) + 1e-9
    noise_of(tmp_path, epsilon=budget).bound_to(MODEL, AT)
    with pytest.raises(InputError, match=r"budget is spent: .* in all runs with this kit"):
        noise_of(tmp_path, "two", epsilon=budget).bound_to(MODEL, AT)


@pytest.mark.parametrize("tier", ["client", "cloud"])
def test_a_second_run_with_the_same_kits_goes_as_far_as_the_budget_of_both(tmp_path, tier):
    per_round = 1 if tier == "cloud" else 2
    budget = epsilon(Release(4 * per_round, 1, 1), 30.0, 1e-5) + 1e-6
    options = PrivacyOptions(unit="client", tier=tier, clip=0.1, noise=30.0, epsilon=budget)
    federation = deployed(tmp_path, options)
    assert len(federation.rows()) == 3
    (tmp_path / "cloud/run").rename(tmp_path / "cloud/run-1")  # as `sfedhp cloud --new`
    if tier == "cloud":  # what it has spent goes with the folder of the run
        (tmp_path / "cloud/run").mkdir()
        (tmp_path / "cloud/run-1/privacy.json").rename(tmp_path / "cloud/run/privacy.json")
    federation.start()
    federation.finish()
    assert len(federation.rows()) == 1
    status = read_status(tmp_path / "cloud/run")
    assert status is not None
    assert "in all runs with this kit" in status["trouble"]


def test_a_cloud_that_is_started_again_at_the_end_of_its_budget_ends(tmp_path):
    options = PrivacyOptions(unit="client", tier="edge", clip=0.1, noise=30.0)
    budget = epsilon(Release(4, 1, 1), 30.0, 1e-5) + 1e-6
    federation = deployed(tmp_path, replace(options, epsilon=budget))
    assert len(federation.rows()) == 2
    cloud = federation._role("cloud")  # as after a crash between its last round and the farewell
    cloud._round, cloud._cloud.served = cloud._folder.restore(cloud._cloud.served)
    assert "budget is spent" in (cloud._run_rounds(cloud._folder.history(2)) or "")
    assert cloud._round == 2


def test_other_totals_to_scale_rows_by_are_another_release(tmp_path):
    """Else a server could see one step twice with the same noise, on inputs that it scaled differently."""
    what = replace(experiment(), privacy=ROW)
    client = Federation(tmp_path, what)._role("client-0-0")
    first = client._noise.bound_to(MODEL, AT).secret
    client._totals = {"rows": 3}
    assert client._noise.bound_to(MODEL, AT).secret != first
    assert client._noise.epsilon() > noise_of(tmp_path / "one").epsilon(1)


def test_what_cannot_be_counted_is_refused(tmp_path, monkeypatch):
    (tmp_path / "privacy.json").write_text("{half")
    with pytest.raises(InputError, match="cannot be read"):
        noise_of(tmp_path)
    noise_of(tmp_path / "changed").bound_to(MODEL, AT)
    file = tmp_path / "changed" / "privacy.json"
    file.write_text(file.read_text().replace('"count": 1', '"count": 0'))
    with pytest.raises(InputError, match="does not match its checksum"):
        noise_of(tmp_path / "changed")
    noise = noise_of(tmp_path / "full")
    monkeypatch.setattr("sfedhp.deploy.roles.private_noise.write_atomically", full)
    with pytest.raises(InputError, match="free disk space"):
        noise.bound_to(MODEL, AT)


def full(path, write):
    raise OSError(28, "No space left on device")


def test_a_server_without_noise_has_no_secret(tmp_path):
    what = replace(experiment(), privacy=ROW)
    assert member_noise("edge", tmp_path, what, lambda: "one") is None
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"privacy": PrivacyOptions(epsilon=3.0)}, "needs noise"),
        (
            {"privacy": replace(ROW, epsilon=3.0), "evaluation": EvaluationOptions(every=2)},
            "needs evaluation.every=1",
        ),
        (
            {"privacy": ROW, "model": ModelOptions(name="tests.support.small_modules:normalized")},
            "Batch norm",
        ),
    ],
)
def test_what_a_deployment_could_not_keep_is_refused(change, words):
    with pytest.raises(InputError, match=words):
        lay_out(FederationFile(), replace(experiment(), **change))
