"""NUMA nodes, as the system names them."""

import os

from woolly.machine.numa import cpu_list, numa_nodes


def test_cpu_lists_are_parsed():
    assert cpu_list("0-2,8\n") == {0, 1, 2, 8}
    assert cpu_list("\n") == set()


def test_nodes_contain_the_cpus_of_this_process(tmp_path):
    allowed = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count()))
    assert numa_nodes(tmp_path) == [allowed]
    for name, cpus in (("node0", f"{allowed[0]}"), ("node2", "4000-4001"), ("node10", f"{allowed[-1]}")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "cpulist").write_text(cpus)
    (tmp_path / "node11").mkdir()
    assert numa_nodes(tmp_path) == [[allowed[0]], [allowed[-1]]]
