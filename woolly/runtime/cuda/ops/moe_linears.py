"""Expert products: choice of the kernels by the number of rows. All variants compute the same bits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from woolly.plan import Step, Weight
from woolly.quant import GGMLType
from woolly.runtime.cuda.ops.linear_arguments import NULL, tile_bytes
from woolly.runtime.cuda.weight_tiles import TILE_COLUMNS, Tiles, tiles_of
from woolly.runtime.gpu.device import Address, Argument
from woolly.runtime.gpu.emitter import Emitter, GridRows

# Small batches: (maximum rows of the launch, rows per routing block).
_SMALL_LAUNCHES = ((1, 1), (2, 1), (4, 1), (8, 1), (16, 1), (32, 2), (64, 4))
MAX_SMALL_ROWS = 64
SMALL_ITEM_ROWS = 8  # up to this number of rows and _MAX_CHOSEN_EXPERTS experts, product blocks run top-k themselves
_MAX_CHOSEN_EXPERTS = 256
_ITEM_BYTES = 112  # shared memory of an item
_SUM_PITCH = 20  # row pitch of sums in shared memory
# Small batches: warps per block to try, tiles in flight per warp, tiles prefetched before the rows, and blocks per
# multiprocessor (one for a single row).
_WARPS, _STAGES, _EARLY, _BLOCKS = (16, 12, 8, 6, 4, 2, 1), (3, 2), 2, 2
_GEMV_WARPS, _GEMV_STAGES = 24, 4
# Large batches without WGMMA: maximum rows per launch. The grid covers the maximum number of items.
_MMA_LAUNCHES = (512, 1 << 30)
_MMA_PANELS = 4  # panels per block
LARGE_ITEM_ROWS = 64
# WGMMA launches: (maximum rows of an item, maximum average rows per expert).
_WGMMA_LAUNCHES = ((64, 48), (128, 1 << 30))
ROW_ALIGNMENT = 8  # alignment of an item's first row


@dataclass(frozen=True)
class MoeStep:
    """Shape, routing arguments and buffers shared by all launches of a step."""

    step: Step
    weights: dict[str, Weight]
    kind: int
    n_experts: int
    n_used: int
    max_rows: int
    experts: Address  # expert of each entry
    shares: Address  # routing weight of each entry
    members: Address  # entries sorted by expert
    items: Address
    max_abs: Address  # maximum magnitude of each hidden row
    logits: Address  # router logits
    router_args: tuple[Argument, ...]  # top-k arguments
    ready: Address  # flag: routing is done
    is_wgmma: bool  # use WGMMA kernels for many rows
    places: Address  # WGMMA: position of each entry in expert order
    place_inv_scales: Address  # WGMMA: inverse power-of-two scale at each position

    @property
    def n_entries(self) -> int:
        """Maximum number of entries."""
        return self.max_rows * self.n_used

    @property
    def n_places(self) -> int:
        """Buffer positions for entries in expert order, aligned per expert, with padding for reads past the end."""
        return -(-(self.n_entries + self.n_experts * ROW_ALIGNMENT) // 128) * 128 + 128

    @property
    def weighs_input(self) -> bool:
        """True if routing weights multiply the input, not the output."""
        return self.step.text("weigh") == "input"

    def routes_in_products(self, n_rows: int) -> bool:
        """True if the product kernels, not a separate kernel, run top-k for `n_rows`."""
        types = [self.weights[role].type for role in ("gate", "up", "down") if role in self.weights]
        return (
            n_rows <= SMALL_ITEM_ROWS
            and self.n_experts <= _MAX_CHOSEN_EXPERTS
            and not self.weighs_input
            and (self.step.integer("shared") or 1) == 1
            and self.step.text("scoring") != "sparsemixer"
            and self.step.integer("groups") == 0
            and self.step.number("cap") == 0
            and len(types) == 3
            and types[0] == types[1]
            and GGMLType.F32 not in types
        )

    def routing(self, n_rows: int, *, is_first: bool = False) -> tuple[Argument, ...]:
        """Return the routing arguments of a kernel for `n_rows`. Blocks of the first kernel may run top-k."""
        is_late = self.routes_in_products(n_rows)
        logits, ready = self.logits if is_late and is_first else NULL, self.ready if is_late else NULL
        return (self.items, self.members, self.kind, logits, ready, self.experts, self.shares, *self.router_args)

    def item_rows(self, n_rows: int) -> int:
        """Return the maximum entries of an item, a power of two. Experts with a shared matrix may share a row."""
        is_shared = (self.step.integer("shared") or 1) > 1
        return SMALL_ITEM_ROWS if is_shared and n_rows > 1 else min(n_rows, SMALL_ITEM_ROWS)

    def routing_bytes(self, n_rows: int) -> int:
        """Return the shared memory of top-k for `n_rows`, in bytes."""
        return 4 * (self.n_experts + 1 + 2 * n_rows * self.n_used)

    def entries(self) -> GridRows:
        """Return the entries of a run as a grid dimension."""
        return GridRows(self.kind, 1, self.n_used)

    def small_ranges(self) -> Iterator[tuple[int, int, int]]:
        """Yield (minimum rows, maximum rows, rows per routing block) of each launch for few rows."""
        least = 1  # empty batches have no routing
        for most, n_each in _SMALL_LAUNCHES:
            if least <= self.max_rows:
                yield least, most, n_each
            least = most + 1

    def wgmma_ranges(self) -> Iterator[tuple[int, int, int]]:
        """Yield (minimum rows, maximum rows, rows per item) of each WGMMA launch."""
        least = MAX_SMALL_ROWS + 1
        for width, n_average in _WGMMA_LAUNCHES:
            most = min(n_average * self.n_experts // self.n_used, 1 << 30)
            if least <= min(most, self.max_rows):
                yield least, most, width
                least = most + 1


@dataclass(frozen=True)
class ExpertInput:
    """Input rows of expert products, in f32 and f16. The row of an entry is entry // `per`."""

    numbers: Address
    x_f16: Address
    inv_scales: Address
    width: int
    per: int


def launch_rows8_glu(
    e: Emitter, m: MoeStep, x: ExpertInput, tiles: Tiles, glu: tuple[Argument, ...], out: ExpertInput
) -> None:
    """Launch gate, up and activation for small batches."""
    args = (x.x_f16, x.inv_scales, *glu, out.width, out.numbers, m.max_abs)
    for least, most, _ in m.small_ranges():
        _launch_rows8(e, m, "moe_gemv_glu" if most == 1 else "moe_rows8_glu", tiles, args, least, most, is_first=True)


def launch_rows8_up(e: Emitter, m: MoeStep, x: ExpertInput, tiles: Tiles, y: Address) -> None:
    """Launch one matrix for small batches."""
    for least, most, _ in m.small_ranges():
        _launch_rows8(e, m, "moe_rows8_up", tiles, (x.x_f16, x.inv_scales, y), least, most)


def launch_rows8_down(e: Emitter, m: MoeStep, x: ExpertInput, tiles: Tiles, y: Address, first: int) -> None:
    """Launch the down matrix for small batches of at least `first` rows."""
    for least, most, _ in m.small_ranges():
        if most >= first:
            args = (x.numbers, m.max_abs, x.width, y)
            _launch_rows8(e, m, "moe_rows8_down", tiles, args, max(least, first), most)


def _launch_rows8(
    e: Emitter,
    m: MoeStep,
    name: str,
    tiles: Tiles,
    args: tuple[Argument, ...],
    least: int,
    most: int,
    *,
    is_first: bool = False,
) -> None:
    n_slices, n_bytes = min(tiles.n_tiles, 16), tile_bytes(tiles)
    group = m.item_rows(most).bit_length() - 1
    n_panels = n_items(min(most, m.max_rows) * m.n_used, m.n_experts, SMALL_ITEM_ROWS) * tiles.n_panels
    min_space = m.routing_bytes(most) if is_first and m.routes_in_products(most) else 0
    n_blocks = 1 if most == 1 else _BLOCKS
    while True:
        grid = min(n_blocks * e.device.n_processors, min(most, m.max_rows) * m.n_used * tiles.n_panels)
        # The panels of a block may start and end in the middle of items.
        max_items = (-(-n_panels // grid) - 2) // tiles.n_panels + 2
        room = (e.device.shared_bytes + 1024) // n_blocks - 1024 - 2048 - max_items * _ITEM_BYTES
        found = _fit(n_slices, n_bytes, group, min_space, room)
        if found is not None:
            break
        n_blocks -= 1
    n_warps, panels_per_round, n_stages, sum_bytes = found
    e.launch(
        f"{name}__{tiles.kind}",
        grid,
        32 * n_warps,
        *(
            *m.routing(most, is_first=is_first),
            group,
            max_items,
            sum_bytes,
            panels_per_round,
            n_stages,
            min(n_stages, _EARLY),
        ),
        *(tiles.address, tiles.stride // 16, tiles.n_panels, tiles.n_tiles, *args),
        shared=2048 + max_items * _ITEM_BYTES + 128 * panels_per_round + sum_bytes + n_warps * n_stages * n_bytes,
        least=least,
        most=most,
        kind=m.kind,
        early=True,
    )


def _fit(n_slices: int, n_bytes: int, group: int, least: int, room: int) -> tuple[int, int, int, int] | None:
    """Return (warps, panels per round, tiles in flight per warp, bytes of sums). Sums take at least `least` bytes."""
    for n_warps in _WARPS:
        at_once = max(1, n_warps // n_slices)
        for n_stages in _STAGES:
            for panels_per_round in (4 * at_once, 2 * at_once, at_once):
                sum_bytes = -(-max(2 * panels_per_round * (n_slices << group) * _SUM_PITCH * 4, least) // 128) * 128
                if 128 * panels_per_round + sum_bytes + n_warps * n_stages * n_bytes <= room:
                    return n_warps, panels_per_round, n_stages, sum_bytes
    return None


def launch_down_gemv(e: Emitter, m: MoeStep, x: ExpertInput, last: tuple[Argument, ...]) -> int:
    """Launch the down product of one row fused with the sum over its experts. Return the rows it covers: 1 or 0."""
    weight = m.weights["down"]
    if weight.type == GGMLType.F32:
        return 0
    tiles = tiles_of(e, weight)
    n_bytes, n_units = tile_bytes(tiles), m.n_used * min(tiles.n_tiles, 16)
    n_warps = -(-n_units // -(-n_units // _GEMV_WARPS))
    fixed = 3072 + 16 * -(-m.n_used // 4) + 64 * (n_units + m.n_used) + 512 * n_warps
    room = (e.device.shared_bytes - fixed) // (n_warps * n_bytes)
    n_stages = min(_GEMV_STAGES, -(-m.n_used * tiles.n_tiles // n_warps), room)
    if n_stages < 1:
        return 0
    e.launch(
        f"moe_down_gemv__{tiles.kind}",
        tiles.n_panels,
        32 * n_warps,
        *m.routing(1),
        *(tiles.address, tiles.stride // 16, tiles.n_panels, tiles.n_tiles, n_stages, x.numbers, m.max_abs, x.width),
        *(int(not m.weighs_input), vector(e, m, "down_bias"), vector(e, m, "down_scale"), *last),
        shared=fixed + n_warps * n_stages * n_bytes,
        least=1,
        most=1,
        kind=m.kind,
        early=True,
    )
    return 1


def launch_mma(e: Emitter, m: MoeStep, x: ExpertInput, tiles: Tiles, y: Address) -> None:
    """Launch one matrix for large batches without WGMMA."""
    last = (x.x_f16, x.inv_scales, x.per, tiles.address, tiles.stride // 16, tiles.n_panels, tiles.n_tiles, y)
    least = MAX_SMALL_ROWS + 1
    for most in _MMA_LAUNCHES:
        if least > m.max_rows:
            break
        count = n_items(min(most, m.max_rows) * m.n_used, m.n_experts, LARGE_ITEM_ROWS)
        e.launch(
            *(f"moe_mma__{tiles.kind}", (count, -(-tiles.n_panels // _MMA_PANELS)), 128),
            *(m.members, m.items, *last),
            least=least,
            most=most,
            kind=m.kind,
            early=True,
        )
        least = most + 1


def launch_wgmma_glu(e: Emitter, m: MoeStep, tiles: Tiles, glu: tuple[Argument, ...], out: ExpertInput) -> None:
    """Launch gate, up and activation for large batches with WGMMA."""
    _launch_wgmma(e, m, "moe_wgmma_glu", tiles, (*glu, out.width, out.numbers))


def launch_wgmma(e: Emitter, m: MoeStep, tiles: Tiles, y: Address) -> None:
    """Launch one matrix for large batches with WGMMA."""
    _launch_wgmma(e, m, "moe_wgmma_plain", tiles, (y,))


def _launch_wgmma(e: Emitter, m: MoeStep, name: str, tiles: Tiles, args: tuple[Argument, ...]) -> None:
    n_bytes, n_pairs = tile_bytes(tiles), e.device.n_processors // 2
    for least, most, width in m.wgmma_ranges():
        row_stages = 8 if width < 128 else 6 if n_bytes < 4608 else 4
        fixed = 1024 + 512 + 64 * width + row_stages * width * 128  # alignment, barriers, powers and entries, rows
        tile_stages = min(4, (e.device.shared_bytes - fixed) // (8 * n_bytes))
        e.launch(
            *(f"{name}__{tiles.kind}_{width}", 2 * n_pairs, 384, m.items, m.members),
            *(prepared(e, m, tiles.n_tiles * TILE_COLUMNS), m.place_inv_scales, m.n_places, tile_stages, row_stages),
            *(tiles.address, tiles.stride // 16, tiles.n_panels, tiles.n_tiles, *args),
            shared=fixed + tile_stages * 8 * n_bytes,
            least=least,
            most=most,
            kind=m.kind,
            early=True,
            group=2,
        )


def prepared(e: Emitter, m: MoeStep, n_columns: int) -> Address:
    """Return the buffer of f16 rows in expert order, read by the WGMMA kernels."""
    return e.scratch("moe prepared", 2 * m.n_places * n_columns)


def n_items(n_entries: int, n_experts: int, n_rows: int) -> int:
    """Return the maximum number of items. Each expert may have one partly filled item."""
    return min(n_entries, n_experts + n_entries // n_rows)


def padded(n_columns: int) -> int:
    """Round columns up to complete tiles."""
    return -(-n_columns // TILE_COLUMNS) * TILE_COLUMNS


def vector(e: Emitter, m: MoeStep, role: str) -> Address:
    """Return an optional weight of the step as f32, or NULL."""
    return e.vector(m.weights[role]) if role in m.weights else NULL
