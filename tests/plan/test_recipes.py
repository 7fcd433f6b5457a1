"""docs/make/add-an-op.md is true: an op is four source files, and its row and meaning are all that Python needs."""

import functools
import re
import textwrap
from types import SimpleNamespace

import numpy as np
import pytest

from tests.docs.blocks import ROOT, blocks_of
from woolly.errors import UnsupportedError
from woolly.plan import OPS, Cost, Load, Tracer, show
from woolly.plan.ops.table import op
from woolly.plan.passes.plan_memory import barriers, plan_memory
from woolly.plan.recorder import Handle
from woolly.quant import GGMLType
from woolly.runtime import Batch, Options, get_backend
from woolly.runtime.reference import REFERENCE_OPS
from woolly.runtime.reference.ops import reference

TABLE = np.arange(12, dtype=np.float32).reshape(3, 4)


class Table(SimpleNamespace):
    def dequantize(self, rows=None):
        return TABLE if rows is None else TABLE[rows]


TENSORS = {"x.weight": Table(type=GGMLType.F32, shape=TABLE.shape, data=TABLE.view(np.uint8), n_bytes=TABLE.nbytes)}


@pytest.fixture
def shifted():
    """A tracer that knows one more op, for the length of a test."""

    class Shifting(Tracer):
        @op(inputs=("x",), attributes=("by", "floor?"), writes=("sums",), part="shifts")
        def nudge(self, x: Handle, by: float, floor: int = 0) -> Handle:
            """X plus a constant."""
            return self._step("nudge", (x,), x.value.rows, x.width, by=float(by), floor=floor)

    @reference("nudge")
    def nudge(c, step, x):
        return x + np.float32(step.number("by"))

    yield Shifting
    del OPS["nudge"], REFERENCE_OPS["nudge"]


def test_row_and_reference_make_an_op(shifted):
    p = shifted("example", TENSORS)
    p.output(p.nudge(p.nudge(p.embed("x", width=4), 0.5), 2.0))
    plan = p.plan()
    step = plan.steps[-1]
    program = get_backend("reference").compile(plan, TENSORS, Options())
    y = program.run(Batch.of([([2, 0], 0, [0])]), program.new_state(1))
    np.testing.assert_array_equal(y, TABLE[[2, 0]] + 2.5)
    assert (step.part, step.matrices, step.roles) == ("shifts", [], [])
    assert step.cost(plan, Load(1, 0, 2)) == Cost(0, 0)
    assert barriers(plan, plan_memory(plan, 2)) == (False, True, True)
    assert "by=2" in show(plan) and "floor" not in show(plan)
    with pytest.raises(UnsupportedError, match=r"test_recipes\.py:\d+: op 'nudge' has no native form"):
        get_backend("cpu").compile(plan, TENSORS, Options(threads=1))


def test_op_that_its_row_does_not_describe_is_rejected(shifted):
    p = shifted("example", TENSORS)
    with pytest.raises(Exception, match="nudge was built with other inputs or attributes"):
        p._step("nudge", (), "batch", 4, by=1.0)


PLACES = (("woolly/plan/ops", "*.py"), ("woolly/runtime/reference", "*.py"), ("native", "**/*.cpp"))


@functools.cache
def sources(folder, pattern):
    """The texts of a folder, read once for all ops."""
    return {path: path.read_text() for path in (ROOT / folder).glob(pattern)}


@pytest.mark.parametrize("name", [name for name in OPS if name not in ("linear", "rope", "attention", "indexer")])
def test_op_is_named_in_four_source_files(name):
    """Besides these only passes and measurements that look for a certain op name it."""
    row = re.compile(rf'def {name}\(\s*self|OPS\["{name}"\] =')
    rows, meanings, native = (sources(*place) for place in PLACES)
    places = {
        "row": [path for path, text in rows.items() if row.search(text)],
        "meaning": [path for path, text in meanings.items() if f'@reference("{name}")' in text],
        "native": [path for path, text in native.items() if re.search(rf"\bmake_{name}\(", text)],
        "line": [path for path, text in native.items() if f"X({name})" in text],
    }
    assert {key: len(paths) for key, paths in places.items()} == dict.fromkeys(places, 1), places
    assert places["native"][0].name == f"{name}.cpp"
    for folder in ("native/bindings", "woolly/runtime/cpu"):
        text = "".join(path.read_text() for path in (ROOT / folder).glob("*.[cp]*") if path.is_file())
        assert not re.search(rf'op == "{name}"|"{name}",', text)


def test_recipe_shows_the_current_code():
    sources = [*(ROOT / "woolly").rglob("*.py"), *(ROOT / "native").rglob("*.cpp")]
    code = "\n".join("\n".join(line.strip() for line in path.read_text().splitlines()) for path in sources)
    blocks = blocks_of("docs/make/add-an-op.md")
    assert len(blocks) == 4
    for block in blocks:
        assert "\n".join(line.strip() for line in textwrap.dedent(block.text).strip().splitlines()) in code, block
