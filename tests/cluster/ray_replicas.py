"""Replicas as actors of Ray: `pip install 'ray>=2.60,<3'`, then `python -m pytest tests/cluster/ray_replicas.py`.

Not collected with the other tests: Ray is large, and its processes take a while to start.
"""

import os
import signal
import time

import pytest

ray = pytest.importorskip("ray")

from woolly import LLM, SamplingParams  # noqa: E402
from woolly.cluster.fleet_llm import FleetLLM  # noqa: E402
from woolly.cluster.ray_launcher import ray_launchers  # noqa: E402
from woolly.errors import RequestError  # noqa: E402
from woolly.serving.settings.options import ModelOptions  # noqa: E402

PARAMS = SamplingParams(seed=5, max_tokens=200, temperature=1.0, ignore_eos=True)


@pytest.fixture(scope="module")
def cluster():
    ray.init(num_cpus=3, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


def test_cluster_exists():
    with pytest.raises(RequestError, match="no Ray cluster found at"):
        ray_launchers("127.0.0.1:1", 1, 1)


def test_killed_actors_are_replaced_transparently(cluster, tiny_model):
    with LLM(tiny_model, ctx=512, threads=1) as alone:
        whole = alone.generate("hello", PARAMS)
    launchers = ray_launchers("auto", 2, 1)
    with FleetLLM(tiny_model, ModelOptions(ctx=512, threads=1), launchers, stall=60.0) as llm:
        assert llm.generate("hello", PARAMS) == whole
        stream = llm.generate("hello", PARAMS, stream=True)
        next(stream)
        for one in llm.fleet.report():
            os.kill(one["pid"], signal.SIGKILL)
        for _ in stream:
            pass
        assert stream.completion == whole
        end = time.monotonic() + 120
        while llm.fleet.n_ready < 2:
            assert time.monotonic() < end
            time.sleep(0.1)
        before = {one["pid"] for one in llm.fleet.report()}
        assert llm.fleet.update()
        assert not before & {one["pid"] for one in llm.fleet.report()}
        assert llm.generate("hello", PARAMS) == whole
