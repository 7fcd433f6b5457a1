"""`woolly bench` as a person types it. How fast is not tested here, but that every figure asked for is there."""

import csv
import io
import json
import os
import sys
from types import SimpleNamespace

import pytest

from tests.cases import fork_server
from tests.cases.tiny import TINY, write_tiny
from woolly._native import kernel_levels, measure_bandwidth
from woolly.cli.commands.bench_formats import Record
from woolly.cli.parse.number_list import numbers
from woolly.errors import RequestError
from woolly.machine.memory import reset_peak


def bench(*arguments, before=""):
    """The command, after some lines of Python; the bandwidth is that of few bytes, which takes no time."""
    before += "\nimport woolly.cli.commands.bench as bench; bench._BANDWIDTH_MEGABYTES = 8"
    return fork_server.run(
        [sys.executable, "-c", f"{before}\nfrom woolly.cli import main; main()", "bench", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "COLUMNS": "200"},
    )


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return write_tiny(TINY["granite"], tmp_path_factory.mktemp("bench") / "tiny.gguf")


ALL = ("-p", "20", "-n", "4", "-b", "1,3", "-d", "0,8", "-r", "2")


def test_json_has_every_number_of_every_combination(tiny):
    done = bench(tiny, *ALL, "-t", "1", "-t", "2", "--ctk", "f32", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    records = json.loads(done.stdout)
    names = ["pp20", "tg4", "tg4x3", "pp20 @ d8", "tg4 @ d8", "tg4x3 @ d8"]
    assert [(r["n_threads"], r["test"]) for r in records] == [(t, name) for t in (1, 2) for name in names]
    for record in records:
        for name in ("avg_ts", "median_ts", "avg_ns", "load_s", "peak_mib", "bandwidth_gbs", "model_size"):
            assert record[name] > 0, name
        assert record["level"] in kernel_levels()
        assert record["cpu_info"] and record["n_batch"] == record["n_ubatch"] and record["n_gpu_layers"] == 0
        assert record["load_mode"] == "mmap" and (record["no_kv_offload"], record["embeddings"]) == (False, False)
        assert (record["build_commit"], record["build_number"]) == ("unknown", 0)
        assert (record["type_k"], len(record["samples_ns"])) == ("f32", 2)
        assert (record["bandwidth_share"] is None) == record["test"].startswith("pp")
        assert (record["first_token_s"] is None) == record["test"].startswith("tg")
        assert "profile" not in record
    assert [r["n_depth"] for r in records[:6]] == [0, 0, 0, 8, 8, 8]
    assert records[2]["n_sequences"] == 3


def test_markdown_matches_llama_bench(tiny):
    done = bench(tiny, *ALL)
    assert (done.returncode, done.stderr) == (0, "")
    head, rule, *rows = done.stdout.split("\n\n")[0].splitlines()
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in (head, *rows)]
    assert cells[0] == ["model", "size", "params", "backend", "threads", "test", "t/s", "of bandwidth"]
    assert {len(line) for line in (head, rule, *rows)} == {len(head)}
    assert cells[1][0] == "granite 0.08 M F32"
    assert [row[5] for row in cells[1:]] == ["pp20", "tg4", "tg4x3", "pp20 @ d8", "tg4 @ d8", "tg4x3 @ d8"]
    assert all(" ± " in row[6] for row in cells[1:])
    for expected in ("median ± standard deviation of 2", "load to first token", "peak memory", "time to first token"):
        assert expected in done.stdout


def test_varying_settings_have_their_own_columns(tiny):
    done = bench(tiny, "-p", "8", "-n", "0", "-r", "1", "-ub", "4,8", "-ctk", "f16,f32")
    head, _, *rows = done.stdout.split("\n\n")[0].splitlines()
    assert done.returncode == 0
    assert "type_k" in head
    assert "n_ubatch" in head
    assert "of bandwidth" not in head
    assert len(rows) == 4


def test_csv_and_jsonl_have_a_line_for_each_test(tiny):
    rows = list(csv.DictReader(io.StringIO(bench(tiny, *ALL, "-o", "csv").stdout)))
    lines = [json.loads(line) for line in bench(tiny, *ALL, "-o", "jsonl").stdout.splitlines()]
    assert [row["test"] for row in rows] == [line["test"] for line in lines]
    assert len(rows) == 6
    assert set(lines[0]) - set(rows[0]) == {"samples_ns", "samples_ts"}


@pytest.mark.parametrize("form", ["table", "md"])
def test_table_names_the_machine_limit_and_where_time_goes(tiny, form):
    done = bench(tiny, "-p", "0", "-n", "3", "--reps", "1", "--profile", "-o", form)
    assert (done.returncode, done.stderr) == (0, "")
    for expected in ("read bandwidth", "tg3", "ffn_gate ffn_up (F32)", "attend", "outside of steps"):
        assert expected in done.stdout
    assert "pp" not in done.stdout.replace(str(tiny), "")


def test_profile_is_in_json_too(tiny):
    done = bench(tiny, "-p", "4", "-n", "0", "-r", "1", "--profile", "-o", "jsonl")
    assert "attend" in {kind["step"] for kind in json.loads(done.stdout)["profile"]}


# The first setting holds 256 MiB for a moment.
WASTE = """
from woolly.measure.bench import Bench
warm_up = Bench.warm_up
def waste(self):
    Bench.warm_up = warm_up
    held = bytearray(256 << 20)
    held[::4096] = bytes(len(held) // 4096)
    del held
    warm_up(self)
Bench.warm_up = waste
"""


def peaks(tiny, before):
    done = bench(tiny, "-p", "4", "-n", "0", "-r", "1", "-ctk", "f16,f32", "-o", "jsonl", before=before)
    assert (done.returncode, done.stderr) == (0, "")
    return [json.loads(line)["peak_mib"] for line in done.stdout.splitlines()]


def test_peak_is_specific_to_a_setting(tiny):
    if not reset_peak():
        pytest.skip("this system keeps the peak of a process")
    first, second = peaks(tiny, WASTE)
    assert second < first - 200


NO_RESET = "import woolly.machine.memory as m; m.reset_peak = lambda: False"


def test_unknown_peak_is_omitted(tiny):
    first, second = peaks(tiny, NO_RESET)
    assert first > 0
    assert second is None
    arguments = ("-p", "4", "-n", "0", "-r", "1", "-ctk", "f16,f32")
    rows = list(csv.DictReader(io.StringIO(bench(tiny, *arguments, "-o", "csv", before=NO_RESET).stdout)))
    assert rows[0]["peak_mib"] != "" == rows[1]["peak_mib"]
    for form in ("md", "table"):
        assert bench(tiny, *arguments, "-o", form, before=NO_RESET).stdout.count("peak memory") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("-p", "600"), "600 tokens were requested, but this model's context is 512"),
        (("-n", "513"), "513 tokens were requested"),
        (("-d", "500", "-n", "13"), "tokens were requested"),
        (("-p", "-1"), "-p is '-1'"),
        (("-n", "-1"), "-n is '-1'"),
        (("-d", "x"), "-d is 'x'"),
        (("-p", "0", "-n", "0"), "nothing to measure"),
        (("--batch", "1,0"), "-b is '1,0'"),
        (("--batch", "eight"), "-b is 'eight'"),
        (("--batch", "1000"), "-b is 1000, but at most 512 sequences run concurrently"),
        (("--reps", "0"), "-r is 0"),
        (("-t", "0"), "-t is '0'"),
        (("-t", "1000000"), "-t is 1000000"),
        (("--ctk", "f8"), "--ctk is 'f8'"),
        (("-o", "xml"), "-o is 'xml'"),
        (("-o", "csv", "--profile"), "not supported in csv"),
        (("-o", "csv", "--json"), "--json is the same as -o json, but -o is 'csv'"),
        (("-o", "md", "--json"), "--json is the same as -o json, but -o is 'md'"),
        (("-n", "0", "-b", "8"), "-b is the number of concurrent sequences, but -n is 0"),
        (("--grp-attn-n", "4"), "woolly bench does not support --grp-attn-n 4: the GGUF file determines"),
        (("-pg", "512,128"), "-p and -n measure a prompt and an answer"),
        (("-m", "x.gguf"), "two models are given"),
    ],
)
def test_wrong_option_gives_a_one_line_error(tiny, arguments, message):
    done = bench(tiny, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("woolly: error: ")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["512"], [512]),
        (["1,8", "8,2"], [1, 8, 2]),
        (["1-4"], [1, 2, 3, 4]),
        (["1-9+4"], [1, 5, 9]),
        (["1-20*2,3"], [1, 2, 4, 8, 16, 3]),
    ],
)
def test_lists_and_ranges_of_numbers(texts, expected):
    assert numbers("-t", texts, 1) == expected


@pytest.mark.parametrize("text", ["", "1,", "4-1", "1-8*1", "0-8*2", "1-8+0", "1--8", "1.5", "0", "1-99999999"])
def test_invalid_number_list_is_rejected(text):
    with pytest.raises(RequestError, match="-t is "):
        numbers("-t", [text], 1)


def test_bandwidth_can_be_measured_with_any_number_of_threads():
    assert all(measure_bandwidth(threads, 2) > 0 for threads in (1, 2, 3))


@pytest.mark.parametrize(("threads", "megabytes"), [(0, 1), (2000, 1), (1, 0)])
def test_bandwidth_of_zero_bytes_is_rejected(threads, megabytes):
    with pytest.raises(ValueError, match=r"must be"):
        measure_bandwidth(threads, megabytes)


@pytest.mark.parametrize(("kind", "rate", "share"), [("decode", 8, 0.8), ("decode", 14.5, None), ("prompt", 8, None)])
def test_share_above_the_bandwidth_is_not_shown(kind, rate, share):
    measured = SimpleNamespace(work=SimpleNamespace(kind=kind), gb_per_second=rate)
    assert Record.share.fget(SimpleNamespace(measured=measured, bandwidth_gbs=10)) == share
