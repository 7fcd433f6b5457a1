// Products of experts for many rows on Hopper, as linear_wgmma.cu computes those of one matrix, by the rings of
// wgmma_pipeline.cuh: 128 rows of weights by up to NT rows of an expert in a block. Where half as many are left,
// products are half as wide.
//
// Rows lie in the order of experts, prepared (linears.cuh), those of an item from a multiple of 8 on. Blocks work in
// pairs, with other rows of weights and the same rows of activations: each copies half of these, for both.
#include "experts/moe.cuh"
#include "linears/wgmma_pipeline.cuh"

#if WOOLLY_HOPPER

namespace {

// Items and their rows, in the order of experts.
struct Ordered {
    const Bundle* items;
    const int* members;
    const u16* x;
    const float* backs;  // of each place
    int x_stride, n_tile_stages, n_row_stages;
};
#define ORDERED                                                                                                 \
    const Bundle *items, const int *members, const u16 *x, const float *backs, int x_stride, int n_tile_stages, \
        int n_row_stages
#define ORDERED_OF {items, members, x, backs, x_stride, n_tile_stages, n_row_stages}

// An item and rows of weights of one block of the pair. Behind the last rows of weights: those again, for results that
// nobody stores.
struct Piece {
    Bundle item;
    int high;
    bool is_stored;
    __device__ __forceinline__ Piece(const Bundle* items, int number, int n_high, int rank) {
        const int n_pairs = (n_high + 1) / 2, i = number / n_pairs, mine = 2 * (number - i * n_pairs) + rank;
        const int4 v = __ldcg(reinterpret_cast<const int4*>(items + 1 + i));
        item = {v.x, v.y, v.z, v.w};
        high = min(mine, n_high - 1), is_stored = mine < n_high;
    }
};

// What becomes of the sums of rows out and out + 8: numbers of packed rows ...
struct WidePacked {
    float* y;
    int stride;
    __device__ __forceinline__ void put(float a, float b, int entry, int, int panel, int g) const {
        float* to = y + u64(entry) * stride + panel * 16 + g;
        to[0] = a, to[8] = b;
    }
};
// ... or what stands between the products.
struct WidePaired {
    Between between;
    int n;
    float* hidden;
    bool has_silu_glu;
    __device__ __forceinline__ void put(float a, float b, int entry, int expert, int panel, int g) const {
        const int column = panel * 8 + g;
        if (column >= n) return;
        hidden[u64(entry) * n + column] =
            has_silu_glu ? silu_glu(a, b) : glu_general(between, a, b, entry, expert, n, column);
    }
    static __device__ NEVER_INLINE float glu_general(const Between& between, float a, float b, int entry, int expert,
                                                     int n, int column) {
        return between.of(a, b, entry, expert, n, column);
    }
};

// What all roles of a block know.
template <class T, int NT, class Out>
struct MoeWide {
    const Rings<T, NT>& rings;
    const Ordered& wide;
    const Stack& stack;
    const Out& out;
    int first, step, n_pieces, n_high, n_tiles, lane, warp, rank;

    // Producer of tiles.
    __device__ __forceinline__ void copy_tiles() const {
        const u64 policy = evict_first_policy();
        PipelineState pipe = {rings.n_tile_stages, 0, 1};
        for (int number = first; number < n_pieces; number += step) {
            const Piece piece(wide.items, number, n_high, rank);
            // Past the last strip: reload it; the results are discarded.
            const u8* from = stack.of(piece.item.expert) +
                             u64(min(piece.high * 8 + (lane & 7), stack.n_panels - 1)) * n_tiles * Tile<T>::bytes;
            for (int tile = 0; tile < n_tiles; tile++)
                rings.copy_tiles(pipe, from + u64(tile) * Tile<T>::bytes, lane, policy);
        }
    }
    // Producer of rows.
    __device__ __forceinline__ void copy_rows() const {
        const u64 policy = evict_last_policy();
        PipelineState pipe = {rings.n_row_stages, 0, 1};
        for (int number = first; number < n_pieces; number += step) {
            const Piece piece(wide.items, number, n_high, rank);
            const int n_half = piece.item.n_rows <= NT / 2 ? NT / 4 : NT / 2;
            const u16* from = wide.x + u64(piece.item.first + rank * n_half) * 64;
            for (int block = 0; block < n_tiles * 4; block++)
                rings.copy_rows(pipe, from + u64(block) * wide.x_stride * 64, n_half * 128, rank, lane, policy);
        }
        rings.drain_rows(pipe);
    }

    // The sums of a piece with W rows.
    template <int W>
    __device__ __forceinline__ void multiply(Consumer<T, NT>& consumer, float (&sum)[W / 2]) const {
        float acc[W / 2];
#pragma unroll
        for (int i = 0; i < W / 2; i++) sum[i] = 0;
        consumer.unpack_next_tile();
        for (int slice = 0; slice < min(n_tiles, N_SLICES); slice++) {
            int is_added = 0, before = -1;
            for (int tile = slice_start(slice, n_tiles); tile < slice_start(slice + 1, n_tiles); tile++) {
#pragma unroll
                for (int k64 = 0; k64 < 4; k64++) {
                    const u64 operand = consumer.wait_for_rows();
                    wgmma_fence();
#pragma unroll
                    for (int e = 0; e < 4; e++) {
                        Wgmma<W>::go(acc, consumer.a[k64 & 1][e], operand + e * 2, is_added);
                        is_added = 1;
                    }
                    wgmma_commit();
                    wgmma_wait<1>();
                    if (before >= 0) consumer.free_rows(before);
                    before = consumer.row.stage;
                    consumer.row.advance();
                    // While this runs, what follows is opened.
                    if (k64 < 3) {
                        consumer.unpack(k64 + 1);
                    } else {
                        consumer.free_tile();
                        if (tile + 1 < n_tiles) consumer.unpack_next_tile();
                    }
                }
            }
            wgmma_wait<0>();
            consumer.free_rows(before);
#pragma unroll
            for (int i = 0; i < W / 2; i++) sum[i] += acc[i];
        }
    }
    // A piece of at most W rows: products, and the epilogue. `back` and `entry` are of its rows, in shared memory.
    template <int W>
    __device__ __forceinline__ void compute(Consumer<T, NT>& consumer, const Piece& piece, const float* back,
                                            const int* entry) const {
        float sum[W / 2];
        multiply<W>(consumer, sum);
        const int panel = piece.high * 8 + warp, g = lane >> 2, t = lane & 3;
        if (!piece.is_stored || panel >= stack.n_panels) return;
        const float* factors = reinterpret_cast<const float*>(stack.of(piece.item.expert) +
                                                              u64(stack.n_panels) * n_tiles * Tile<T>::bytes) +
                               panel * 16 + g;
        const float low = factors[0], high = factors[8];
#pragma unroll
        for (int i = 0; i < W / 4; i++) {
            const int row = (i >> 1) * 8 + 2 * t + (i & 1), at = (i >> 1) * 4 + (i & 1);
            if (row < piece.item.n_rows)
                out.put(__fmul_rn(__fmul_rn(sum[at], low), back[row]),
                        __fmul_rn(__fmul_rn(sum[at + 2], high), back[row]), entry[row], piece.item.expert, panel, g);
        }
    }
    // Consumers.
    __device__ __forceinline__ void consume() const {
        // Inverses of the powers of an item's rows, and their entries, of each warp by itself.
        float* back = rings.rest() + warp * 2 * NT;
        int* entry = reinterpret_cast<int*>(back + NT);
        Consumer<T, NT> consumer(rings, lane, warp);
        for (int number = first; number < n_pieces; number += step) {
            const Piece piece(wide.items, number, n_high, rank);
            __syncwarp();
            for (int i = lane; i < piece.item.n_rows; i += 32) {
                back[i] = __ldcg(wide.backs + piece.item.first + i);
                entry[i] = __ldcg(wide.members + piece.item.first + i);
            }
            __syncwarp();
            if (piece.item.n_rows <= NT / 2)
                compute<NT / 2>(consumer, piece, back, entry);
            else
                compute<NT>(consumer, piece, back, entry);
        }
    }
};

template <class T, int NT, class Out>
__device__ __forceinline__ void moe_wide(const Ordered& wide, const Stack& stack, const Out& out) {
    DYNAMIC_SHARED(raw);
    const Rings<T, NT> rings(raw, wide.n_tile_stages, wide.n_row_stages);
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, rank = blockIdx.x & 1;
    rings.start();
    launch_dependents();
    // Items were made before the kernel that this one waits for.
    const int n_high = (stack.n_panels + 7) / 8, n_pieces = __ldcg(&wide.items[0].expert) * ((n_high + 1) / 2);
    const int first = blockIdx.x >> 1, step = gridDim.x >> 1;
    const MoeWide<T, NT, Out> roles = {rings,    wide,   stack,         out,  first, step,
                                       n_pieces, n_high, stack.n_tiles, lane, warp,  rank};
    if (warp >= 8) {
        setmaxnreg_dec<40>();
        if (warp == 8) {
            roles.copy_tiles();
        } else if (warp == 9) {
            wait_for_previous_kernel();
            roles.copy_rows();
        }
    } else {
        setmaxnreg_inc<232>();
        wait_for_previous_kernel();
        roles.consume();
    }
    // Copies of one block go to the other, too.
    cluster_sync();
}

}  // namespace

// grid: pairs of blocks that share the items. x: prepared rows, with x_stride rows in a block of 64 columns.
#define MOE_WIDE_AT(name, Type, NT)                                                                  \
    KERNEL_CLUSTER2(384, moe_wide_pairs__##name##_##NT)                                              \
    (const Batch*, ORDERED, STACK, BETWEEN, int n, float* hidden) {                                  \
        const Between between = BETWEEN_OF;                                                          \
        const bool is_plain = gate_bias == nullptr && gate_scale == nullptr && up_bias == nullptr && \
                              up_scale == nullptr && shares == nullptr && is_silu_glu(act, limit);   \
        moe_wide<Type, NT>(ORDERED_OF, STACK_OF, WidePaired{between, n, hidden, is_plain});          \
    }                                                                                                \
    KERNEL_CLUSTER2(384, moe_wide_rows__##name##_##NT)(const Batch*, ORDERED, STACK, float* y) {     \
        moe_wide<Type, NT>(ORDERED_OF, STACK_OF, WidePacked{y, n_panels * 16});                      \
    }
#define MOE_WIDE(name, Type) MOE_WIDE_AT(name, Type, 64) MOE_WIDE_AT(name, Type, 128)
#define MOE_WIDE_OF(name, Type) MOE_WIDE(name, Type)
#ifdef WOOLLY_TYPE
MOE_WIDE_OF(WOOLLY_NAME, WOOLLY_TYPE)
#else
TILE_TYPES(MOE_WIDE)
#endif

#endif
