// Products of few rows, 1 to 8: bound by the reading of weights.
//
// Strips of 16 weight rows are dealt to blocks. Each of the 16 warps of a block takes one slice of K and streams its
// tiles through a ring of its own in shared memory, so that no barrier of the block stands in the loop; the rows of
// activations are the operand B, whose 8 columns cost as much as one. A single row is normed and halved by each block;
// several are prepared before.
// The slices of a strip meet in shared memory.
#include "ring.cuh"

namespace {

// Stages that are fetched before the rows are there.
constexpr int MOST_EARLY = 2;
// Strips whose sums wait in shared memory, times rows: 16 KB in each of two halves.
constexpr int HELD_SUMS = 16;

// Rows that linear_prepare has left, or null: then the block norms and halves them itself.
struct Prepared {
    const u16* x;
    const float* backs;
    int n_stride;
};

// The third matrix may be of another kind, U.
template <class T, class U>
__device__ __forceinline__ void linear_row(const Batch* batch, int kind, const float* x, int x_stride,
                                           const float* norm, float eps, int n_columns, const Matrix (&all)[3],
                                           int head_bytes, int y_stride, const Finish& finish, const Prepared& prepared,
                                           int n_group, int n_stages) {
    constexpr bool IS_MIXED = Tile<T>::bytes != Tile<U>::bytes;
    constexpr int STAGE_BYTES = Tile<T>::bytes > Tile<U>::bytes ? Tile<T>::bytes : Tile<U>::bytes;
    auto bytes_of = [](int which) { return IS_MIXED && which == 2 ? Tile<U>::bytes : Tile<T>::bytes; };
    DYNAMIC_SHARED(shared);
    const int first_row = int(blockIdx.z) * n_group, n_rows = min(n_group, batch->rows(kind) - first_row);
    const int n_strips = all[0].n_strips + all[1].n_strips + all[2].n_strips;
    if (n_rows <= 0 || int(blockIdx.x) >= n_strips) {
        wait_for_kernel_before();  // what comes after this kernel relies on the one before it, too
        return;
    }
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, head = blockIdx.y;
    const int n_tiles = (n_columns + 255) / 256, g = lane >> 2, t = lane & 3;
    const int n_mine = (n_strips - int(blockIdx.x) + int(gridDim.x) - 1) / int(gridDim.x);

    // Shared: barriers and reductions in 1 KB, halves [n_tiles * 8][n_group][64 bytes], sums, rings.
    float* reduced = reinterpret_cast<float*>(shared);
    u8* halves = shared + 2048;
    float* sums = reinterpret_cast<float*>(halves + n_tiles * 512 * n_group);
    u8* rings = reinterpret_cast<u8*>(sums + 2 * HELD_SUMS * N_SLICES * 16);
    Ring ring;
    ring.start(shared, rings, warp, lane, n_stages, STAGE_BYTES);

    // Where strips are: whose they are, and the first tile.
    auto strip_of = [&](int i, int& which) {
        int strip = int(blockIdx.x) + i * int(gridDim.x);
        which = strip < all[0].n_strips ? 0 : strip < all[0].n_strips + all[1].n_strips ? 1 : 2;
        return strip - (which == 0 ? 0 : which == 1 ? all[0].n_strips : all[0].n_strips + all[1].n_strips);
    };
    Cursor ahead;
    int at = 0;
    const u8* next = nullptr;
    int next_bytes = 0;
    auto seek = [&]() {  // the first tile of the next slice that has any
        for (; at < n_mine; at++) {
            ahead.seek(at, warp, n_tiles);
            if (ahead.tile < ahead.end) break;
        }
        int which;
        const int strip = strip_of(at, which);
        const u8* tiles = which == 0 ? all[0].tiles : which == 1 ? all[1].tiles : all[2].tiles;
        next_bytes = bytes_of(which);
        next =
            at >= n_mine ? nullptr : tiles + u64(head) * head_bytes + (u64(strip) * n_tiles + ahead.tile) * next_bytes;
    };
    auto fetch = [&](int stage) {
        ring.fetch(stage, next, next_bytes, lane);
        if (next == nullptr) return;
        next += next_bytes;
        if (++ahead.tile == ahead.end) at++, seek();
    };
    seek();
    // More would delay the rows: they queue behind the tiles of all blocks.
    const int n_early = min(n_stages, MOST_EARLY);
    for (int i = 0; i < n_early; i++) fetch(i);
    let_next_kernel_begin();

    float* backs = reduced + 64;  // of each row
    // Rows that are prepared: 8 columns at a time, four lanes' words of one mma.
    auto copy_rows = [&]() {
        constexpr int AT_ONCE = 4;
        const int n_pieces = n_tiles * 32;
        wait_for_kernel_before();
        for (int first = threadIdx.x; first < n_rows * n_pieces; first += AT_ONCE * ROW_THREADS) {
            uint4 v[AT_ONCE];
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++) {
                const int piece = min(first + i * ROW_THREADS, n_rows * n_pieces - 1), r = piece / n_pieces;
                const u64 from = prepared_at(first_row + r, piece % n_pieces * 8, prepared.n_stride);
                v[i] = __ldcg(reinterpret_cast<const uint4*>(prepared.x + from));
            }
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++) {
                const int piece = first + i * ROW_THREADS, r = piece / n_pieces, k = piece % n_pieces * 8;
                if (piece >= n_rows * n_pieces) break;
                u8* place = halves + ((k >> 5) * n_group + r) * 64 + (k >> 4 & 1) * 8 + (k >> 3 & 1) * 4;
                *reinterpret_cast<u32*>(place) = v[i].x;
                *reinterpret_cast<u32*>(place + 16) = v[i].y;
                *reinterpret_cast<u32*>(place + 32) = v[i].z;
                *reinterpret_cast<u32*>(place + 48) = v[i].w;
            }
        }
        if (int(threadIdx.x) < n_rows) backs[threadIdx.x] = __ldcg(prepared.backs + first_row + threadIdx.x);
    };
    auto halve_rows = [&](auto&& halver) {
        wait_for_kernel_before();
        for (int r = 0; r < n_rows; r++) {
            const float* row = x + u64(first_row + r) * x_stride + u64(head) * n_columns;
            const float back = halver.halve(row, eps, reduced + r % 2 * 32, [&](int k, u32 low, u32 high) {
                // 16 bytes of lane t: what two mma of 16 columns want.
                const int in = k & 15, to = ((in & 7) >> 1) * 16 + (k >> 4 & 1) * 8 + (in >> 3) * 4;
                u8* place = halves + ((k >> 5) * n_group + r) * 64 + to;
                *reinterpret_cast<u32*>(place) = low;
                *reinterpret_cast<u32*>(place + 16) = high;
            });
            if (threadIdx.x == 0) backs[r] = back;
        }
    };
    if (prepared.x != nullptr)
        copy_rows();
    else if (n_tiles <= 16)
        halve_rows(RowHalver<2>(norm, n_columns, n_tiles * 256));
    else
        halve_rows(RowHalver<7>(norm, n_columns, n_tiles * 256));
    for (int i = n_early; i < n_stages; i++) fetch(i);
    __syncthreads();

    const int per_round = HELD_SUMS / n_group, n_each = finish.epilogue == GLU ? 8 : 16;
    const u8* mine = halves + min(g, n_rows - 1) * 64 + t * 16;
    // With one tile in each slice, a warp meets the same columns in all strips: their halves stay in registers.
    const bool is_one = n_tiles == N_SLICES;
    Words4 kept[8];
    if (is_one) {
#pragma unroll
        for (int i = 0; i < 8; i++) kept[i] = *reinterpret_cast<const Words4*>(mine + (warp * 8 + i) * 64 * n_group);
    }
    int stage = 0, phase = 0;
    for (int first = 0, half = 0; first < n_mine; first += per_round, half ^= 1) {
        float* held = sums + half * HELD_SUMS * N_SLICES * 16;
        const int last = min(first + per_round, n_mine);

        // The element that this thread finishes after the round; what it needs comes while tiles do.
        const int r = threadIdx.x, i = r / (n_rows * n_each), row = r / n_each % n_rows, e = r % n_each;
        int which;
        const int strip = strip_of(first + i, which), out = strip * n_each + e;
        const Matrix m = chosen(all, which);
        const bool is_mine = i < last - first && out < m.n_rows;
        const float* biases[2] = {m.bias, all[1].bias};
        const u64 to = u64(first_row + row) * (y_stride != 0 ? y_stride : m.n_rows) + u64(head) * m.n_rows + out;
        float factor[2] = {1, 1}, bias[2] = {0, 0}, residual = 0;
        if (is_mine) {
            const float* factors = reinterpret_cast<const float*>(m.tiles + u64(head) * head_bytes +
                                                                  u64(m.n_strips) * n_tiles * bytes_of(which));
            factor[0] = factors[strip * 16 + e];
            if (biases[0] != nullptr) bias[0] = biases[0][out];
            if (finish.epilogue == GLU) {
                factor[1] = factors[strip * 16 + e + 8];
                if (biases[1] != nullptr) bias[1] = biases[1][out];
            }
            if (finish.epilogue == RESIDUAL) residual = __ldcg(finish.residual + to);
        }

        for (int i = first; i < last; i++) {
            float acc[4] = {0, 0, 0, 0};
            auto product = [&](auto opener, auto&& columns) {
                typedef decltype(opener) Opener;
                const u8* tile = ring.memory + stage * STAGE_BYTES;
                ring.wait(stage, phase);
                const typename Opener::Scales scales = Opener::scales(tile, lane);
                Words4 two = {};
#pragma unroll
                for (int k16 = 0; k16 < 16; k16++) {
                    u32 a[4];
                    Opener::open(tile, scales, lane, k16, a);
                    if ((k16 & 1) == 0) two = columns(k16 >> 1);
                    mma(acc, a, k16 & 1 ? two.z : two.x, k16 & 1 ? two.w : two.y);
                }
                __syncwarp();
                fetch(stage);
                if (++stage == n_stages) stage = 0, phase ^= 1;
            };
            int slice = warp;
            auto products = [&](auto opener) {
                if (is_one) {
                    product(opener, [&](int k32) { return kept[k32]; });
                    return;
                }
                Cursor c;
                c.seek(i, warp, n_tiles);
                slice = c.slice;
                for (; c.tile < c.end; c.tile++) {
                    const u8* b = mine + c.tile * 512 * n_group;
                    product(opener, [&](int k32) { return *reinterpret_cast<const Words4*>(b + k32 * 64 * n_group); });
                }
            };
            int kind_of_strip = 0;
            if (IS_MIXED) strip_of(i, kind_of_strip);
            if (kind_of_strip == 2)
                products(Tile<U>());
            else
                products(Tile<T>());
            float* sum = held + ((i - first) * N_SLICES + slice) * 16 * n_group + 2 * t * 16 + g;
            if (2 * t < n_rows) sum[0] = acc[0], sum[8] = acc[2];
            if (2 * t + 1 < n_rows) sum[16] = acc[1], sum[24] = acc[3];
        }
        __syncthreads();  // the other half of the sums is free: who comes here has read it
        if (!is_mine) continue;
        auto summed = [&](int element) {
            const float* from = held + i * N_SLICES * 16 * n_group + row * 16 + element;
            float sum = 0;
#pragma unroll
            for (int s = 0; s < N_SLICES; s++) sum += from[s * 16 * n_group];
            return sum;
        };
        float y = finished(summed(e), factor[0], backs[row], biases[0] != nullptr, bias[0], finish.scale);
        if (finish.epilogue == GLU)
            y = gated_sum(finish.gate, finish.limit, y,
                          finished(summed(e + 8), factor[1], backs[row], biases[1] != nullptr, bias[1], finish.scale));
        m.y[to] = finish.epilogue == RESIDUAL ? __fadd_rn(residual, y) : y;
    }
}

}  // namespace

// Values [rows][columns of x] to up to three values. grid: blocks that share the strips, heads, groups of rows.
#define LINEAR_ROW_MIXED(name, Type, Other)                                                                        \
    KERNEL_OF(512, linear_row__##name)                                                                             \
    (const Batch* batch, int kind, const float* x, int x_stride, const float* norm, float eps, int n_columns,      \
     MATRIX(0), MATRIX(1), MATRIX(2), int head_bytes, int y_stride, FINISH, const u16* prepared_x,                 \
     const float* prepared_backs, int prepared_stride, int n_group, int n_stages) {                                \
        const Matrix all[3] = {MATRIX_OF(0), MATRIX_OF(1), MATRIX_OF(2)};                                          \
        const Finish finish = FINISH_OF;                                                                           \
        const Prepared prepared = {prepared_x, prepared_backs, prepared_stride};                                   \
        linear_row<Type, Other>(batch, kind, x, x_stride, norm, eps, n_columns, all, head_bytes, y_stride, finish, \
                                prepared, n_group, n_stages);                                                      \
    }
#define LINEAR_ROW(name, Type) LINEAR_ROW_MIXED(name, Type, Type)
#define LINEAR_ROW_OF(name, Type) LINEAR_ROW(name, Type)
#ifdef WOOLLY_TYPE
LINEAR_ROW_OF(WOOLLY_NAME, WOOLLY_TYPE)
#else
TILE_TYPES(LINEAR_ROW)
// Files of mixed types have q and k of one kind and v of the other.
LINEAR_ROW_MIXED(q4_k_q6_k, Q4_K, Q6_K)
LINEAR_ROW_MIXED(q5_k_q6_k, Q5_K, Q6_K)
#endif
