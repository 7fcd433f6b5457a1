"""The simulation of fleets: it answers every request, whatever is lost, and its traces are what they say."""

import json
import statistics

import pytest

from benchmarks.serving.simulate import POLICIES, Fleet, simulate
from benchmarks.serving.trace import BLOCK, ideal_hits, made_up, read_trace


@pytest.fixture(scope="module")
def trace():
    return made_up(n_requests=300)


def test_synthetic_trace_has_the_published_statistics():
    trace = made_up()
    assert len(trace) == 12_031 and trace[-1].at < 3_540
    assert statistics.fmean(asked.n_prompt for asked in trace) == pytest.approx(12_035, rel=0.1)
    assert statistics.fmean(asked.n_answer for asked in trace) == pytest.approx(343, rel=0.1)
    assert ideal_hits(trace) == pytest.approx(0.37, abs=0.05)
    assert {asked.blocks[0] for asked in trace if asked.blocks} == {0}
    assert all(len(asked.blocks) == asked.n_prompt // BLOCK for asked in trace)
    assert [asked.at for asked in trace] == sorted(asked.at for asked in trace)


def test_trace_is_read_from_a_file(tmp_path):
    lines = [
        {"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [0, 1]},
        {"timestamp": 1500, "input_length": 1100, "output_length": 7, "hash_ids": [0, 2, 3]},
    ]
    (tmp_path / "trace.jsonl").write_text("\n".join(map(json.dumps, lines)))
    first, second = read_trace(tmp_path / "trace.jsonl")
    assert (first.blocks, second.blocks) == ((0,), (0, 2))  # the last ids are of blocks that are not full
    assert (second.at, second.n_prompt, second.n_answer) == (1.5, 1100, 7)
    assert ideal_hits([first, second]) == BLOCK / 1700


@pytest.mark.parametrize("policy", POLICIES)
def test_every_request_is_answered_despite_lost_machines(trace, policy):
    calm = simulate(trace, Fleet(8), policy)
    assert len(calm.first) == 300 and calm.n_unanswered == 0 and not calm.gaps
    assert 0 <= calm.hits <= ideal_hits(trace) and min(calm.first) > 0
    assert simulate(trace, Fleet(8), policy) == calm
    rough = simulate(trace, Fleet(8, slow=0.25, deaths=0.2), policy)
    assert rough.n_lost and rough.n_unanswered == 0 and len(rough.first) == 300


def test_router_finds_more_cache_hits_than_chance_and_more_with_disks(trace):
    chance, router, disk = (
        simulate(trace, Fleet(8), policy) for policy in ("two at random", "router", "router + disk")
    )
    assert chance.hits < router.hits <= disk.hits
    assert statistics.fmean(router.first) < statistics.fmean(chance.first)


def test_single_request_takes_the_computed_time():
    (asked,) = made_up(n_requests=1)
    fleet = Fleet(1, prefill=100.0)
    assert simulate([asked], fleet, "router").first == [pytest.approx(asked.n_prompt / 100)]
    with pytest.raises(ValueError, match="policy 'none' is unknown"):
        simulate([asked], fleet, "none")
