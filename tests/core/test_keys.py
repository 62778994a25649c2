"""Counter-based randomness."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sfedhp.core.keys import ROLES, choose, choose_of_many, key, uniform

integers = st.integers(min_value=-(2**63), max_value=2**63 - 1)


@given(st.lists(integers, min_size=1, max_size=4))
def test_a_key_depends_on_its_parts_alone(parts):
    assert torch.equal(key(*parts), key(*parts))
    assert key(*parts).dtype == torch.int64


@given(integers, integers)
def test_order_and_value_matter(first, second):
    if first != second:
        assert key(first, second) != key(second, first)
        assert key(first) != key(second)


def test_a_stack_of_keys_is_the_keys_stacked():
    ids = torch.arange(6).reshape(2, 3)
    stacked = key(7, ids, 3)
    alone = torch.stack([key(7, int(id_), 3) for id_ in ids.flatten()]).reshape(2, 3)
    assert torch.equal(stacked, alone)


def test_known_values_never_change():
    # Recorded once: a change would silently change every run.
    assert key(0).item() == -2152535657050944081
    assert key(1, 2, 3).item() == key(1, 2, torch.tensor(3)).item() == 1884114840797188290


def test_roles_are_distinct():
    assert len(set(ROLES.values())) == len(ROLES)


def test_uniform_is_uniform_and_inside():
    draws = uniform(key(5, torch.arange(200_000)))
    assert draws.min() > 0
    assert draws.max() < 1
    assert draws.mean().item() == pytest.approx(0.5, abs=0.003)
    assert draws.var().item() == pytest.approx(1 / 12, abs=0.002)
    # Neighboring counters are not alike.
    pairs = torch.stack([draws[:-1], draws[1:]])
    assert abs(torch.corrcoef(pairs)[0, 1].item()) < 0.01


@given(st.integers(1, 40), st.integers(0, 45), st.integers(0, 1000))
def test_choose_gives_distinct_real_rows_first(size, count, seed):
    width = 40
    rows, real = choose(key(seed), torch.tensor(size), width, count)
    wanted = size if count == 0 else min(count, size)
    assert int(real.sum()) == wanted
    assert real[:wanted].all()
    chosen = rows[real].tolist()
    assert len(set(chosen)) == wanted
    assert max(chosen) < size


def test_choose_is_the_same_with_more_padding():
    narrow, _ = choose(key(3), torch.tensor(9), 9, 5)
    wide, real = choose(key(3), torch.tensor(9), 50, 5)
    assert torch.equal(narrow, wide)
    assert real.all()


def test_choose_is_fair():
    draws = 4000
    rows, _ = choose(key(1, torch.arange(draws)), torch.full((draws,), 10), 12, 3)
    counts = torch.bincount(rows.flatten(), minlength=12)
    assert counts[10:].sum() == 0
    # 1200 expected each; five standard deviations is about 145.
    assert (counts[:10] - 1200).abs().max() < 145


def test_choose_everything_keeps_the_order():
    rows, real = choose(key(torch.arange(2)), torch.tensor([2, 4]), 4, 0)
    assert rows.tolist() == [[0, 1, 2, 3]] * 2
    assert real.sum(-1).tolist() == [2, 4]


@pytest.mark.parametrize("piece", [3, 7, 1000])
@pytest.mark.parametrize(("count", "wanted"), [(1, 1), (30, 5), (30, 30)])
def test_a_draw_of_many_is_that_of_all_at_once(count, wanted, piece, monkeypatch):
    monkeypatch.setattr("sfedhp.core.keys._PIECE", piece)
    at_once = key(key(3), torch.arange(count)).topk(wanted, largest=False).indices.sort().values
    assert torch.equal(choose_of_many(key(3), count, wanted), at_once)


def test_choose_needs_no_mask_where_everyone_has_all_rows():
    keys, sizes = key(torch.arange(3), 5), torch.full((3,), 9)
    for masked, bare in zip(choose(keys, sizes, 9, 4), choose(keys, sizes, 9, 4, ragged=False), strict=True):
        assert torch.equal(masked, bare)
