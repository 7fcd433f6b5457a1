"""Indexer of sparse attention. Kernel: native/gpu/attention/index_topk.slang."""

from __future__ import annotations

from woolly.errors import UnsupportedError
from woolly.plan import Step
from woolly.runtime.gpu.batch_checks import MAX_CONTEXT
from woolly.runtime.gpu.device import Address
from woolly.runtime.gpu.emitter import Emitter, GridRows
from woolly.runtime.gpu.state import room
from woolly.runtime.options import kv_type_pair
from woolly.runtime.vulkan.emitters import emits
from woolly.runtime.vulkan.ops.attention import KINDS
from woolly.runtime.vulkan.ops.linears import MAX_SPLIT_ROWS

# As in index_topk.slang: threads, groups that share the candidates of a row, maximum columns of a head.
_THREADS, _SHARERS, _MAX_COLUMNS = 256, 128, 256
_SCORES = 16 << 20  # scores of a batch: 64 MB, as in the CPU backend
_SCORE, _CHOOSE, _BOTH = 0, 1, 2  # phases of the kernel


@emits("index_topk")
def _index_topk(e: Emitter, step: Step) -> None:
    q, *weights = step.inputs
    head_dim, block, every = (step.integer(name) for name in ("head_dim", "block", "every"))
    if head_dim > _MAX_COLUMNS:
        raise UnsupportedError(f"Vulkan and Metal do not support indexer heads of more than {_MAX_COLUMNS}")
    heads = e.width(q) // head_dim
    choices = 1 if weights else heads
    n_scores = max(_SCORES, MAX_SPLIT_ROWS * choices * -(-MAX_CONTEXT // max(block, every)))
    first = (
        *(e.value(q), e.value(weights[0]) if weights else Address(0), e.value(step.output)),
        *(e.scratch("scores of an index", 4 * n_scores), n_scores),
    )
    kind = KINDS.index(kv_type_pair(e.kv_type)[0])
    last = (
        *(step.integer("entry"), heads, head_dim, room(head_dim, e.kv_type), step.integer("n"), block),
        *(step.integer("local"), max(1, every), step.integer("whole"), e.width(step.output) // choices, kind, kind),
    )
    rows = GridRows(0)
    e.launch("index_topk", (rows, 1, _SHARERS), _THREADS, *first, _SCORE, *last, most=MAX_SPLIT_ROWS)
    e.launch("index_topk", (rows, choices), _THREADS, *first, _CHOOSE, *last, most=MAX_SPLIT_ROWS)
    e.launch("index_topk", (rows,), _THREADS, *first, _BOTH, *last, least=MAX_SPLIT_ROWS + 1)
