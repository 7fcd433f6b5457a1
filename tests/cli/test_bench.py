"""`woolly bench` as a person types it. How fast is not tested here, but that every figure asked for is there."""

import json
import os
import subprocess
import sys

import pytest

from tests.cases.tiny import TINY, write_tiny
from woolly._native import kernel_levels, measure_bandwidth


def bench(*arguments):
    return subprocess.run(
        [sys.executable, "-c", "from woolly.cli import main; main()", "bench", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "COLUMNS": "200"},
        check=False,
    )


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return write_tiny(TINY["granite"], tmp_path_factory.mktemp("bench") / "tiny.gguf")


def test_json_has_every_figure_under_its_name(tiny):
    done = bench(tiny, "-p", "20", "-n", "4", "-t", "2", "--batch", "1,3", "--reps", "2", "--ctk", "f32", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    facts = json.loads(done.stdout)
    for name in ("pp20", "tg4_b1", "tg4_b3", "load_s", "peak_mib", "bandwidth_gbs"):
        assert facts[name] > 0, name
    assert facts["level"] in kernel_levels()
    assert (facts["threads"], facts["kv_type"]) == (2, "f32")
    assert [len(rates) for rates in facts["reps"].values()] == [2, 2, 2]
    assert set(facts["bandwidth_share"]) == {"tg4_b1", "tg4_b3"}
    assert "profile" not in facts


def test_a_table_names_the_machines_limit_and_where_time_goes(tiny):
    done = bench(tiny, "-p", "0", "-n", "3", "--reps", "1", "--profile")
    assert (done.returncode, done.stderr) == (0, "")
    for expected in ("read bandwidth", "tg3_b1", "ffn_gate ffn_up (F32)", "attend", "outside of steps"):
        assert expected in done.stdout
    assert "pp" not in done.stdout.replace(str(tiny), "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("-p", "600"), "600 tokens were asked for, but this model's context holds 512"),
        (("-n", "513"), "513 tokens were asked for"),
        (("-p", "-1"), "-p is -1"),
        (("-n", "-1"), "-n is -1"),
        (("-p", "0", "-n", "0"), "nothing to measure"),
        (("--batch", "1,0"), "--batch is '1,0'"),
        (("--batch", "eight"), "--batch is 'eight'"),
        (("--batch", "1000"), "at most 512 run at once"),
        (("--reps", "0"), "--reps is 0"),
        (("-t", "0"), "threads is 0"),
        (("--ctk", "f8"), "kv_type is 'f8'"),
    ],
)
def test_a_wrong_number_is_one_sentence(tiny, arguments, message):
    done = bench(tiny, *arguments)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("woolly: error: ")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


def test_bandwidth_is_measured_by_any_number_of_threads():
    assert all(measure_bandwidth(threads, 2) > 0 for threads in (1, 2, 3))


@pytest.mark.parametrize(("threads", "megabytes"), [(0, 1), (2000, 1), (1, 0)])
def test_bandwidth_of_nothing_is_refused(threads, megabytes):
    with pytest.raises(ValueError, match=r"must be"):
        measure_bandwidth(threads, megabytes)
