"""Calibration and acceptance by place, by hand."""

from __future__ import annotations

import random

import pytest

from specdec.analysis.calibration import Calibration, Judged, Places, judged_nodes

#            0        1
#          2   3      4
#        5
TREE = (-1, -1, 0, 0, 1, 2)


def test_nodes_after_a_verdict():
    found = judged_nodes(TREE, (1, 4), [0.6, 0.3, 0.3, 0.2, 0.1, 0.15])
    assert found == [
        Judged(1, 0, True, True, 0.6, 0.6),
        Judged(1, 1, False, True, 0.3, 0.3),
        Judged(2, 0, False, True, 0.3, 0.5),
        Judged(2, 1, True, True, 0.2, pytest.approx(1 / 3)),
        Judged(2, 0, False, False, 0.1, pytest.approx(1 / 3)),
        Judged(3, 0, False, False, 0.15, 0.5),
    ]
    assert [node.confidence for node in judged_nodes(TREE, ())] == [None] * 6
    assert judged_nodes((-1, 0), (), [0.0, 0.0])[1].share == 0.0


def test_places():
    places = Places()
    places.add(judged_nodes(TREE, (1, 4)))
    places.add(judged_nodes(TREE, (2,)))
    places.add(judged_nodes((-1, 0), ()))
    assert places.figures() == {
        "drafts": 3,
        "accepted_by_depth": [0.6667, 0.3333, 0.0],
        "accepted_if_asked": [0.6667, 0.5, 0.0],
        "accepted_by_depth_and_rank": [[0.3333, 0.5], [0.0, 1.0]],
    }
    assert places.asked == [3, 2, 0]


def test_calibration_by_hand():
    made = Calibration(bins=4)
    for confidence, accepted in [(0.1, False), (0.2, True), (0.8, True), (1.0, True), (1.0, False)]:
        made.add(confidence, accepted)
    assert made.points() == [
        (pytest.approx(0.15), 0.5, 2),
        (pytest.approx(2.8 / 3), pytest.approx(2 / 3), 3),
    ]
    assert made.error == pytest.approx((abs(0.3 - 1) + abs(2.8 - 2)) / 5)
    assert made.bias == pytest.approx((3.1 - 3) / 5)
    assert made.brier == pytest.approx((0.01 + 0.64 + 0.04 + 0 + 1) / 5)
    assert made.figures()["nodes"] == 5 and len(made.figures()["bins"]) == 2


def test_who_says_what_is_true_is_calibrated():
    chance, honest, boastful = random.Random(0), Calibration(), Calibration()
    for _ in range(20_000):
        confidence = chance.random()
        honest.add(confidence, chance.random() < confidence)
        boastful.add(confidence, chance.random() < confidence**2)
    assert honest.error < 0.01 and abs(honest.bias) < 0.01
    assert boastful.error > 0.1 and boastful.bias > 0.1


@pytest.mark.parametrize("confidence", [-0.1, 1.1, float("nan")])
def test_what_is_no_chance_is_refused(confidence):
    with pytest.raises(ValueError, match="expected a chance"):
        Calibration().add(confidence, True)


def test_nothing_measured_is_no_error():
    assert Calibration().figures() == {
        "nodes": 0, "expected_calibration_error": 0.0, "bias": 0.0, "brier": 0.0, "bins": [],
    }  # fmt: skip
    assert Places().figures()["accepted_by_depth"] == []
