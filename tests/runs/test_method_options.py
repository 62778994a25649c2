"""Options that do not go together with `secure` are refused, and what it costs is said."""

from __future__ import annotations

import re

import pytest

from sfedhp.config import from_dict
from sfedhp.core.errors import InputError
from sfedhp.runs.method_options import check_used, secure_options, secure_price, with_own_sampling


def experiment(method="sfedhp", **more):
    return from_dict({"secure": True, "algorithm": {"name": method, **more.pop("algorithm", {})}, **more})


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"method": "heurfedamp"}, "whose server needs the model of each client"),
        ({"algorithm": {"anchor": "client"}}, "set algorithm.anchor = 'edge'"),
        ({"method": "local"}, "which sends nothing: leave it out"),
        ({"aggregation": {"rule": "median"}}, "set aggregation.rule = 'mean'"),
        ({"aggregation": {"rule": "trimmed-mean"}}, "set aggregation.rule = 'mean'"),
        ({"aggregation": {"clip": 1.0}}, "aggregation.clip = 0"),
        ({"clients_per_edge": [3, 1]}, "an edge has one, whose model is the sum: raise clients_per_edge"),
        ({"method": "fedavg", "sampled_clients": 1}, "a round has one"),
        ({"secure_bound": 1e12, "secure_resolution": 1e-9}, "lower the bound, or raise the resolution"),
    ],
)
def test_what_cannot_be_secure_is_refused(options, sentence):
    with pytest.raises(InputError, match=re.escape(sentence)):
        check_used(experiment(**options))
    check_used(experiment(**{**options, "secure": False}))


@pytest.mark.parametrize("options", [{"secure_bound": 0}, {"secure_resolution": 0}, {"secure": 1}])
def test_values_that_cannot_be(options):
    with pytest.raises(InputError):
        experiment(**options)


def test_it_goes_together_with_late_edges_and_sampling():
    check_used(experiment(late={"quorum": 2}))
    check_used(experiment("fedavg", sampled_clients=5))
    check_used(experiment("mtgc"))


def test_its_price_is_named():
    assert secure_price(experiment(secure=False)) is None
    assert secure_options(experiment(secure=False)) is None
    assert "Edges learn sums" in str(secure_price(experiment()))
    assert "The cloud learns sums" in str(secure_price(experiment("fedavg")))
    assert "word of 4 bytes" in str(secure_price(experiment()))
    assert "word of 2 bytes" in str(secure_price(experiment(secure_bound=1.0, secure_resolution=1e-3)))


def test_a_comparison_leaves_what_sends_nothing_without_it():
    kept = with_own_sampling([experiment(name) for name in ("sfedhp", "local", "pooled", "fedavg")])
    assert [each.secure for each in kept] == [True, False, False, True]
