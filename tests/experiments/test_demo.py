"""The demo's figures, checked by counting draws and against what must hold."""

import torch

from adaptask.experiments import demo
from adaptask.samplers import build_sampler


def test_hard_pairs_are_those_of_the_first_three_groups():
    hard = demo.hard_pairs()
    assert hard.sum() == 3 * 4 * 3
    assert hard[demo.NAMES.index("lion"), demo.NAMES.index("lynx")]
    assert not hard[demo.NAMES.index("lion"), demo.NAMES.index("bus")]
    assert not hard[demo.NAMES.index("cup"), demo.NAMES.index("chair")]


def test_the_shares_move_as_the_strategies_say():
    rows = {row.label: row for row in demo.run_demo(seed=1)}
    uniform = 18 / 120  # hard pairs among all pairs
    for row in rows.values():
        assert abs(row.shares[0] - uniform) < 1e-9
    assert all(abs(share - uniform) < 1e-9 for share in rows["uniform"].shares)
    assert rows["gcp"].shares[-1] > 1.6 * uniform
    assert rows["cp (exact Eq. 4)"].shares[-1] > 1.6 * uniform
    assert uniform < rows["gcp, uncertain"].shares[-1] < rows["gcp"].shares[-1]
    assert rows["gcp, easy"].shares[-1] < uniform
    assert rows["uniform"].kl < 1e-9 < rows["gcp"].kl


def test_a_share_is_what_counting_draws_gives():
    sampler = build_sampler("gcp", n_classes=16, n_way=4, seed=0)
    labels, hard = torch.arange(4), demo.hard_pairs()
    for _ in range(max(demo.STEPS_SHOWN)):
        class_ids = sampler.sample(demo.N_TASKS)
        sampler.update(class_ids, demo.pretend_probabilities(class_ids), labels)
    drawn = sampler.fork(3).sample(20_000)
    counted = hard[drawn[:, :, None], drawn[:, None, :]].float().mean() * 16 / 12
    row = demo.follow("gcp", "gcp", {}, seed=0)
    assert abs(float(counted) - row.shares[-1]) < 0.01
