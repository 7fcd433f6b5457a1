"""The best file of a size: the choice is the best there is, measurements are those of whole files."""

import itertools
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from tests.cases.tiny import TINY, write_tiny
from woolly.errors import RequestError
from woolly.gguf import open_gguf
from woolly.measure.bit_allocation.groups import groups_of, n_bytes_of, types_for
from woolly.measure.bit_allocation.kl_meter import KlMeter, Loss
from woolly.measure.bit_allocation.knapsack import TypeOption, choose_types
from woolly.measure.bit_allocation.measurement_cache import Records
from woolly.measure.bit_allocation.plot import plot_allocation
from woolly.measure.bit_allocation.search import allocate_bits
from woolly.quant import GGMLType
from woolly.quantize import Change, Recipe, find_mix, quantize_file

WIDE = replace(TINY["llama"], width=256, ffn=512, head_dim=64, n_layers=4, type=GGMLType.F16)
WINDOWS = [list(range(40, 72)), list(range(100, 132))]


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return write_tiny(WIDE, tmp_path_factory.mktemp("pick") / "wide.gguf")


@pytest.fixture(scope="module")
def file(source):
    with open_gguf(source) as opened:
        yield opened


@pytest.fixture(scope="module")
def meter(file):
    return KlMeter(file, WINDOWS, threads=1)


def test_selection_is_optimal_among_all_that_fit():
    random = np.random.default_rng(0)
    groups = [
        [TypeOption(GGMLType.F16, int(size), float(loss)) for size, loss in zip(sizes, losses, strict=True)]
        for sizes, losses in zip(random.integers(1, 100, (5, 4)), random.random((5, 4)), strict=True)
    ]
    for limit in (60, 150, 250, 500):
        fitting = [
            sum(own[i].loss for own, i in zip(groups, allocation, strict=True))
            for allocation in itertools.product(range(4), repeat=5)
            if sum(own[i].n_bytes for own, i in zip(groups, allocation, strict=True)) <= limit
        ]
        chosen = choose_types(groups, limit)
        assert (chosen is None) is (not fitting)
        if chosen is not None:
            assert sum(own[i].n_bytes for own, i in zip(groups, chosen, strict=True)) <= limit
            assert sum(own[i].loss for own, i in zip(groups, chosen, strict=True)) == pytest.approx(min(fitting))


def test_groups_hold_every_weight_once(file):
    groups = groups_of(file, 2)
    names = [tensor.name for group in groups for tensor in group.tensors]
    assert len(names) == len(set(names)) == 4 * 7 + 2
    assert {group.name for group in groups} >= {"attn_v 0-1", "attn_v 2-3", "token_embd", "output"}
    ladder = types_for(groups[0], has_importance=False)
    assert ladder == sorted(ladder, key=lambda type: type.type_size / type.block_size)
    assert GGMLType.IQ2_S in types_for(groups[0], has_importance=True)
    assert GGMLType.IQ2_S not in ladder


@pytest.mark.parametrize("name", ["blk.0.attn_v.weight", "blk.3.ffn_down.weight", "output.weight", "token_embd.weight"])
def test_change_is_measured_as_in_a_complete_file(file, meter, tmp_path, name):
    """Layers before the change are not computed: the divergence is that of the written file all the same."""
    types = {name: GGMLType.Q4_0}
    changes = tuple(Change(tensor, types.get(own, tensor.type)) for own, tensor in file.tensors.items())
    quantize_file(file, Recipe(find_mix("Q4_0"), changes), tmp_path / "out.gguf", threads=1)
    found = meter.measure(types)
    with open_gguf(tmp_path / "out.gguf") as written:
        other = KlMeter(written, WINDOWS, threads=1)
    kl = []
    for ours, theirs in zip(meter._windows, other._windows, strict=True):
        p, q = (x.logits - x.totals[:, None] for x in (ours, theirs))
        kl.append(np.sum(np.exp(p) * (p - q), axis=1))
    assert found.kl == pytest.approx(np.concatenate(kl).mean(), rel=1e-3, abs=1e-7)
    assert found.kl > 0
    # The weights in memory are still there for the next program.
    assert meter.measure(types) == found


def test_only_a_change_and_its_successors_are_prepared(file, monkeypatch):
    meter, open_now, most = KlMeter(file, WINDOWS, threads=1), [], []
    real = meter._backend.compile

    def compile(plan, *given):
        program = real(plan, *given)
        end = program.close
        open_now.append(program)
        most.append(len(open_now))
        monkeypatch.setattr(program, "close", lambda: (end(), open_now.remove(program)))
        return program

    monkeypatch.setattr(meter, "_backend", SimpleNamespace(compile=compile))
    early, all_of_it = {"blk.0.attn_v.weight": GGMLType.Q4_0}, {"output.weight": GGMLType.Q4_0}
    found = meter.measure(early)
    assert (len(open_now), most) == (1, [1, 2])  # the layers behind it stay
    meter.measure(all_of_it)
    assert (len(open_now), most) == (0, [1, 2, 1])
    meter.measure(early)
    with monkeypatch.context() as broken:
        broken.setattr(meter, "_backend", SimpleNamespace(compile=lambda *_: pytest.fail("no memory", pytrace=False)))
        with pytest.raises(pytest.fail.Exception):
            meter.measure({"blk.1.attn_v.weight": GGMLType.Q4_0})
    assert meter.measure(early) == found and len(open_now) == 1  # not that which was closed
    meter.close()
    assert not open_now and max(most) == 2


def test_result_fits_the_size_and_is_no_worse_than_known_mixes(file, meter, tmp_path):
    records = Records(tmp_path / "x.kl.json", {"model": "m"})
    whole = n_bytes_of(file.tensors.values(), {})
    found = allocate_bits(file, whole * 5 // 16, records, lambda: meter, lambda: meter, max_exchanges=4)
    assert found.best.n_bytes <= whole * 5 // 16
    fitting = [mix for mix in found.known if mix.n_bytes <= whole * 5 // 16]
    assert fitting
    assert all(found.best.loss.kl <= mix.loss.kl for mix in fitting)
    assert found.best.held_out == found.best.loss
    assert "<svg" in plot_allocation(found, "m.gguf", 0)

    def never():
        raise AssertionError("everything was measured before")

    again = Records(tmp_path / "x.kl.json", {"model": "m"})
    assert allocate_bits(file, whole * 5 // 16, again, never, never, max_exchanges=4) == found
    with pytest.raises(RequestError, match="needs at least"):
        allocate_bits(file, whole // 16, Records(tmp_path / "new.kl.json", {"model": "m"}), never, never)


def test_mixed_group_without_a_smaller_type_stays(file, tmp_path):
    few = {"blk.0.attn_v.weight": GGMLType.Q2_K, "blk.1.attn_v.weight": GGMLType.TQ2_0}
    changes = tuple(Change(tensor, few.get(name, tensor.type)) for name, tensor in file.tensors.items())
    quantize_file(file, Recipe(find_mix("Q2_K"), changes), tmp_path / "mixed.gguf", threads=1)

    closed = []

    class Meter:
        def measure(self, types):
            assert not few.keys() & types.keys() or len(types) > 4  # alone; known mixes change all
            return Loss(1e-3 * len(types), 1.0)

        def close(self):
            closed.append(self)

    with open_gguf(tmp_path / "mixed.gguf") as mixed:
        limit = n_bytes_of(mixed.tensors.values(), {}) * 6 // 16
        found = allocate_bits(mixed, limit, Records(tmp_path / "x.json", {}), Meter, None, max_exchanges=1)
        assert n_bytes_of(mixed.tensors.values(), found.best.types) <= limit
    assert len(closed) == 1
    assert "attn_v 2-3" in {one.group for one in found.measured}
    assert "attn_v 0-1" not in {one.group for one in found.measured}


def test_measurements_of_another_model_are_rejected(tmp_path):
    Records(tmp_path / "a.json", {"model": "m"}).put("text", {"w": GGMLType.Q4_0}, Loss(0.5, 0.9))
    assert Records(tmp_path / "a.json", {"model": "m"}).get("text", {"w": GGMLType.Q4_0}) == Loss(0.5, 0.9)
    with pytest.raises(RequestError, match="of another model"):
        Records(tmp_path / "a.json", {"model": "n"})
    (tmp_path / "b.json").write_text("[]")
    with pytest.raises(RequestError, match="is not a file of measurements"):
        Records(tmp_path / "b.json", {"model": "m"})
