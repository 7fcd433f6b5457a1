"""Experts of a row, and their weights."""

import numpy as np

from woolly.plan import Step
from woolly.runtime.reference.moe import expert_weights


def routed(n_used, logits, scoring="softmax", normalize=False, weights_scale=1.0, select=None, **groups):
    attributes = {"n_used": n_used, "scoring": scoring, "normalize": normalize, "weights_scale": weights_scale}
    attributes |= {"groups": 0, "groups_used": 0, "group_top": 2, "cap": 0.0, "shared": 0} | groups
    step = Step("moe", (0,), (1,), (), tuple(attributes.items()), "")
    return expert_weights(step, np.array([logits], np.float32), select)[0]


def test_lower_index_of_equal_logits_is_chosen():
    assert np.flatnonzero(routed(3, [1, 2, 1, 2, 1, 1])).tolist() == [0, 1, 3]
    # Sigmoids of 50 and of 60 are both 1 in f32; their logits still tell them apart.
    assert np.flatnonzero(routed(2, [50, 60, 55, 60, 50, 60], "sigmoid")).tolist() == [1, 3]


def test_weights_are_scores_over_all_experts_unless_normalized_over_the_chosen():
    log = np.log([1.0, 2.0, 3.0, 2.0])
    np.testing.assert_allclose(routed(2, log), [0, 2 / 8, 3 / 8, 0], rtol=1e-6)
    np.testing.assert_allclose(routed(2, log, normalize=True, weights_scale=10), [0, 4, 6, 0], rtol=1e-6)
    odds = np.log([1.0, 3.0, 1 / 3])
    np.testing.assert_allclose(routed(2, odds, "sigmoid"), [0.5, 0.75, 0], rtol=1e-6)
    np.testing.assert_allclose(routed(2, odds, "sigmoid", normalize=True), [0.4, 0.6, 0], rtol=1e-6)


def test_experts_that_share_a_matrix_are_one_with_both_weights():
    log = np.log([1.0, 3.0, 2.0, 1.0, 2.0, 1.0])
    np.testing.assert_allclose(routed(3, log, shared=2), [3 / 10, 2 / 10, 2 / 10], rtol=1e-6)
    np.testing.assert_allclose(routed(4, log, shared=2), [4 / 10, 2 / 10, 2 / 10], rtol=1e-6)


def test_softcap_is_applied_before_the_weights():
    odds = np.log([1.0, 3.0]) / np.log(3)
    want = np.exp(2 * np.tanh(odds / 2))
    np.testing.assert_allclose(routed(2, odds, cap=2.0), want / want.sum(), rtol=1e-6)


def test_selection_bias_does_not_change_the_weights():
    odds = np.log([1.0, 3.0, 1 / 3])
    chosen = routed(1, odds, "sigmoid", select=np.array([0.3, 0.0, 0.6], np.float32))
    np.testing.assert_allclose(chosen, [0, 0, 0.25], rtol=1e-6)


def test_groups_with_lower_top_two_sums_are_excluded():
    odds = np.log([9.0, 1 / 9, 3.0, 2.0, 1.0, 1.0])
    np.testing.assert_allclose(
        routed(2, odds, "sigmoid", groups=3, groups_used=1), [0, 0, 3 / 4, 2 / 3, 0, 0], rtol=1e-6
    )
    # Of equal sums the lower group wins.
    assert np.flatnonzero(routed(2, [0, 0, 0, 0, 1, 1], groups=3, groups_used=2)).tolist() == [4, 5]
    assert np.flatnonzero(routed(3, [0, 0, 0, 0, 1, 1], groups=3, groups_used=2)).tolist() == [0, 4, 5]
    # By its best score alone the first group is the best one.
    alone = routed(2, odds, "sigmoid", groups=3, groups_used=1, group_top=1)
    np.testing.assert_allclose(alone, [0.9, 0.1, 0, 0, 0, 0], rtol=1e-6)
