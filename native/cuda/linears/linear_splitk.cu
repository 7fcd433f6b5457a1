// Split-K GEMM of 17 to 64 rows on Hopper, for matrices with too few rows for all multiprocessors: 128 weight rows by
// NT activation rows over four blocks with four slices each.
//
// Roles of a block are those of linear_wgmma.cu. Consumers keep the sums of their slices in registers. Each thread
// receives the running sum from the same thread of the previous block, adds its slices in order, and sends it to the
// next block; the last one stores it. Within a cluster the sum goes through distributed shared memory. Between clusters
// it goes through global memory and is its own ready flag: the sentinel NOT_WRITTEN, which no sum can be, means "not
// written", and the reader restores it. So there is no fence and no reduction kernel.
#include "linears/fused_prepare.cuh"

#if WOOLLY_HOPPER

namespace {

constexpr int TEAM = 4, SLICES_PER_BLOCK = N_SLICES / TEAM;
constexpr u32 NOT_WRITTEN = 0xFFFFFFFFu;  // a NaN that arithmetic never produces: its NaNs are 0x7FFFFFFF

// Loads four sums that the previous block may write at any time.
__device__ __forceinline__ float4 load_handoff(const float4* from) {
#ifdef WOOLLY_EMULATED
    return *from;
#else
    float4 v;
    asm volatile("ld.relaxed.gpu.global.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "l"(from)
                 : "memory");
    return v;
#endif
}
__device__ __forceinline__ bool is_written(float4 v) {
    return __float_as_uint(v.x) != NOT_WRITTEN && __float_as_uint(v.y) != NOT_WRITTEN &&
           __float_as_uint(v.z) != NOT_WRITTEN && __float_as_uint(v.w) != NOT_WRITTEN;
}

// Epilogue of an item; its factors, biases and residuals load before the sum arrives.
template <int NT>
struct ChainEpilogue {
    Matrix m;
    OutputRows o;
    float residual[NT / 2];
    const float* inv_scale;  // [NT], of the warp
    bool is_there;

    __device__ __forceinline__ ChainEpilogue(const Matrix (&all)[3], const Item& item, int warp, int lane,
                                             int panel_bytes, int n_rows, const EpilogueParams& epi,
                                             const float* inv_scales, float* inv_scale)
        : m(matrix_at(all, item.which)), inv_scale(inv_scale) {
        for (int i = lane; i < NT; i += 32) inv_scale[i] = __ldcg(inv_scales + min(i, n_rows - 1));
        __syncwarp();
        const int panel = item.w_block * 8 + warp;
        is_there = panel < m.n_panels;
        o = output_rows_of<false>(all, m, min(panel, m.n_panels - 1), panel_bytes, epi);
        if (epi.epilogue != RESIDUAL) return;
#pragma unroll
        for (int i = 0; i < NT / 4; i++) {
            const float* from = epi.residual + u64(min(row_in_item(i), n_rows - 1)) * m.n_rows;
            residual[2 * i] = __ldcg(from + min(o.out, m.n_rows - 1));
            residual[2 * i + 1] = __ldcg(from + min(o.out + 8, m.n_rows - 1));
        }
    }
    __device__ __forceinline__ void store(const float (&sum)[NT / 2], int n_rows, const EpilogueParams& epi) const {
        if (!is_there) return;
        const bool is_added = epi.epilogue == RESIDUAL;
#pragma unroll
        for (int i = 0; i < NT / 4; i++) {
            const int row = row_in_item(i), at = (i >> 1) * 4 + (i & 1);
            float a = scale_and_bias(sum[at], o.factor_a, inv_scale[row], o.has_bias_a, o.bias_a, epi.scale);
            float b = scale_and_bias(sum[at + 2], o.factor_b, inv_scale[row], o.has_bias_b, o.bias_b, epi.scale);
            if (is_added) a = __fadd_rn(residual[2 * i], a), b = __fadd_rn(residual[2 * i + 1], b);
            float* to = m.y + u64(row) * m.n_rows + o.out;
            if (row < n_rows && o.has_a) to[0] = a;
            if (row < n_rows && o.has_b) to[8] = b;
        }
    }
};

// The tile type with more bytes.
template <class T, class U, bool = (Tile<T>::bytes >= Tile<U>::bytes)>
struct LargerTile {
    typedef T Type;
};
template <class T, class U>
struct LargerTile<T, U, false> {
    typedef U Type;
};

// State shared by all roles of a block. The third matrix has tile type U, the others T.
template <class T, class U, int NT>
struct SplitKRoles {
    typedef typename LargerTile<T, U>::Type L;
    static constexpr bool IS_MIXED = Tile<T>::bytes != Tile<U>::bytes;
    const Rings<L, NT>& rings;
    const u16* x;
    const float* inv_scales;
    int x_stride, n_rows, n_tiles;
    const Matrix (&all)[3];
    const EpilogueParams& epi;
    const Items& items;
    float4* handoff;  // [round][block][NT / 8][256]: sums received from another cluster
    int lane, warp, rank, first_tile, end_tile;

    // Sums from the other block of the cluster, [NT / 8][256]; followed by two mbarriers per warp: received, and
    // consumed by the other block.
    __device__ __forceinline__ float4* inbox() const {
        return reinterpret_cast<float4*>(rings.rest() + 8 * NT) + threadIdx.x;
    }
    __device__ __forceinline__ u32 received(int warp) const {
        return shared_address(rings.rest() + 8 * NT) + NT * 512 + warp * 8;
    }
    __device__ __forceinline__ u32 consumed(int warp) const { return received(warp) + 64; }
    __device__ __forceinline__ void start() const {
        if (threadIdx.x == 0)
            for (int i = 0; i < 8; i++) mbarrier_init(received(i), 1), mbarrier_init(consumed(i), 1);
        rings.start(8);
    }

    // Calls f(item, round) for each item of the team.
    template <class F>
    __device__ __forceinline__ void each_item(F&& f) const {
        const int team = int(blockIdx.x) / TEAM, n_teams = int(gridDim.x) / TEAM;
        // none for a cluster that is not part of a complete team
        const int n_all = team < n_teams ? items.n_w_blocks : 0;
#pragma unroll 1
        for (int i = team, round = 0; i < n_all; i += n_teams, round++) f(Item(items, i, 0), round);
    }
    // Sums received by this thread of `block`.
    __device__ __forceinline__ float4* handoff_at(int round, int block) const {
        return handoff + u64(round * int(gridDim.x) + block) * (NT * 32) + threadIdx.x;
    }
    // Tile producer.
    __device__ __forceinline__ void copy_tiles() const {
        const u64 policy = evict_first_policy();
        PipelineState pipe = {rings.n_tile_stages, 0, 1};
        each_item([&](const Item& item, int) {
            const Matrix m = matrix_at(all, item.which);
            const int n_bytes = IS_MIXED && item.which == 2 ? Tile<U>::bytes : Tile<T>::bytes;
            // Past the last panel: reload it; its results are discarded.
            const u8* from = m.tiles + u64(min(item.w_block * 8 + (lane & 7), m.n_panels - 1)) * n_tiles * n_bytes;
            for (int tile = first_tile; tile < end_tile; tile++)
                rings.copy_tiles(pipe, from + u64(tile) * n_bytes, lane, policy, n_bytes);
        });
    }
    // Row producer.
    __device__ __forceinline__ void copy_rows() const {
        const u64 policy = evict_last_policy();
        PipelineState pipe = {rings.n_row_stages, 0, 1};
        each_item([&](const Item&, int) {
            for (int block = first_tile * 4; block < end_tile * 4; block++)
                rings.copy_all_rows(pipe, x + u64(block) * x_stride * 64, lane, policy);
        });
    }

    // Accumulates one slice.
    template <class Type>
    __device__ __forceinline__ void multiply(Consumer<Type, NT, L>& consumer, float (&acc)[NT / 2], int slice) const {
        int is_added = 0, before = -1;
        const int end = slice_start(slice + 1, n_tiles);
#pragma unroll 1
        for (int tile = slice_start(slice, n_tiles); tile < end; tile++) {
#pragma unroll
            for (int k64 = 0; k64 < 4; k64++) {
                const u64 operand = consumer.wait_for_rows();
                wgmma_fence();
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    Wgmma<NT>::go(acc, consumer.a[k64 & 1][e], operand + e * 2, is_added);
                    is_added = 1;
                }
                wgmma_commit();
                wgmma_wait<1>();
                if (before >= 0) free_rows(before);
                before = consumer.row.stage;
                consumer.row.advance();
                // Unpack the next fragments while wgmma runs.
                if (k64 < 3) {
                    consumer.unpack(k64 + 1);
                } else {
                    consumer.free_tile();
                    if (tile + 1 < end_tile) consumer.unpack_next_tile();
                }
            }
        }
        wgmma_wait<0>();
        if (before >= 0) free_rows(before);
    }

    __device__ __forceinline__ void free_rows(int stage) const {
        if (lane == 0) mbarrier_arrive(rings.rows_free(stage));
    }

    // Consumers: products, running sum, and the epilogue.
    __device__ __forceinline__ void consume() const {
        PipelineState row = {rings.n_row_stages, 0, 0}, tile = {rings.n_tile_stages, 0, 0};
        each_item([&](const Item& item, int round) {
            if (IS_MIXED && item.which == 2)
                consume_item<U>(item, row, tile, round);
            else
                consume_item<T>(item, row, tile, round);
        });
    }
    template <class Type>
    __device__ __forceinline__ void consume_item(const Item& item, PipelineState& row, PipelineState& tile,
                                                 int round) const {
        if (rank % 2 == 1 && lane == 0) mbarrier_expect_tx(received(warp), NT * 64);
        Consumer<Type, NT, L> consumer(rings, lane, warp);
        consumer.row = row, consumer.tile = tile;
        float kept[SLICES_PER_BLOCK - 1][NT / 2], acc[NT / 2], sum[NT / 2];
        consumer.unpack_next_tile();
#pragma unroll 1
        for (int i = 0; i < SLICES_PER_BLOCK; i++) {
            multiply(consumer, acc, rank * SLICES_PER_BLOCK + i);
#pragma unroll
            for (int j = 0; j < SLICES_PER_BLOCK - 1; j++) {
                if (i != j) continue;
#pragma unroll
                for (int k = 0; k < NT / 2; k++) kept[j][k] = acc[k];
            }
        }
        row = consumer.row, tile = consumer.tile;
        auto add_slices = [&] {
#pragma unroll
            for (int k = 0; k < NT / 2; k++) {
#pragma unroll
                for (int j = 0; j < SLICES_PER_BLOCK - 1; j++) sum[k] += kept[j][k];
                sum[k] += acc[k];
            }
        };
        if (rank < TEAM - 1) {
            receive_sum(sum, round);
            add_slices();
            send_sum(sum, round);
            return;
        }
        const ChainEpilogue<NT> tail(all, item, warp, lane, n_tiles * Tile<Type>::bytes, n_rows, epi, inv_scales,
                                     rings.rest() + warp * NT);
        receive_sum(sum, round);
        add_slices();
        tail.store(sum, n_rows, epi);
    }
    // Receives the sum of the previous slices; zero for the first block.
    __device__ __forceinline__ void receive_sum(float (&sum)[NT / 2], int round) const {
        if (rank == 0) {
#pragma unroll
            for (int i = 0; i < NT / 2; i++) sum[i] = 0;
            return;
        }
        if (rank % 2 == 1) {
            mbarrier_wait(received(warp), round & 1);
            const float4* from = inbox();
#pragma unroll
            for (int i = 0; i < NT / 2; i += 4) {
                const float4 v = from[i * 64];
                sum[i] = v.x, sum[i + 1] = v.y, sum[i + 2] = v.z, sum[i + 3] = v.w;
            }
            __syncwarp();
            if (lane == 0) mbarrier_arrive_remote(consumed(warp), 0);
            return;
        }
        float4* const from = handoff_at(round, blockIdx.x);
        while (!is_written(load_handoff(from + (NT / 8 - 1) * 256))) spin_wait();
        bool is_there;
        do {
            is_there = true;
#pragma unroll
            for (int i = 0; i < NT / 2; i += 4) {
                const float4 v = load_handoff(from + i * 64);
                is_there = is_there && is_written(v);
                sum[i] = v.x, sum[i + 1] = v.y, sum[i + 2] = v.z, sum[i + 3] = v.w;
            }
        } while (!is_there);
        const float none = __uint_as_float(NOT_WRITTEN);
#pragma unroll
        for (int i = 0; i < NT / 8; i++) __stcg(from + i * 256, make_float4(none, none, none, none));
    }
    __device__ __forceinline__ void send_sum(const float (&sum)[NT / 2], int round) const {
        if (rank % 2 == 0) mbarrier_wait(consumed(warp), round & 1 ^ 1);  // the previous send was consumed
        const u32 there = shared_address(inbox());
        float4* const to = handoff_at(round, int(blockIdx.x) + 1);
#pragma unroll
        for (int i = 0; i < NT / 2; i += 4) {
            const float4 v = make_float4(sum[i], sum[i + 1], sum[i + 2], sum[i + 3]);
            if (rank % 2 == 0)
                st_async_float4(there + i * 1024, v, received(warp), 1);
            else
                __stcg(to + i * 64, v);
        }
    }
};

template <class T, class U, int NT>
__device__ __forceinline__ void linear_splitk(const Batch* batch, int kind, const u16* x, const float* inv_scales,
                                              int x_stride, int n_columns, const Matrix (&all)[3],
                                              const EpilogueParams& epi, float4* handoff, int n_tile_stages,
                                              int n_row_stages, const FusedRows& fused) {
    DYNAMIC_SHARED(raw);
    const Rings<typename LargerTile<T, U>::Type, NT> rings(raw, n_tile_stages, n_row_stages);
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, rank = int(blockIdx.x) % TEAM;
    const int n_rows = batch->rows(kind), n_tiles = (n_columns + 255) / 256;
    const Items items(all, n_rows, NT, 1);
    const SplitKRoles<T, U, NT> roles = {rings,
                                         x,
                                         inv_scales,
                                         x_stride,
                                         n_rows,
                                         n_tiles,
                                         all,
                                         epi,
                                         items,
                                         handoff,
                                         lane,
                                         warp,
                                         rank,
                                         slice_start(rank * SLICES_PER_BLOCK, n_tiles),
                                         slice_start((rank + 1) * SLICES_PER_BLOCK, n_tiles)};
    roles.start();
    launch_dependents();
    const bool is_fused = fused.x != nullptr;
    if (warp >= 8) {
        setmaxnreg_dec<40>();
        if (warp == 8) {
            roles.copy_tiles();
        } else if (warp == 9) {
            wait_for_previous_kernel();
            if (is_fused) await_fused_rows();
            roles.copy_rows();
        }
    } else {
        setmaxnreg_inc<232>();
        wait_for_previous_kernel();
        if (is_fused) prepare_fused_rows(fused, n_rows, rings.rest());
        roles.consume();
    }
    // The other block writes to the shared memory of this one.
    cluster_sync();
    if (is_fused) reset_arrivals(fused);
}

}  // namespace

// grid: teams of two clusters. Up to NT rows, at least 16 tiles of columns. `handoff` holds NOT_WRITTEN between
// kernels; other arguments as in linear_wgmma.cu.
#define LINEAR_SPLITK(name, Type, Other, NT)                                                                     \
    KERNEL_CLUSTER2(384, linear_splitk__##name##_##NT)                                                           \
    (const Batch* batch, int kind, u16* x, float* inv_scales, int x_stride, int n_columns, MATRIX(0), MATRIX(1), \
     MATRIX(2), EPILOGUE_PARAMS, float4* handoff, int n_tile_stages, int n_row_stages, const float* fused_x,     \
     const float* norm, float eps, u32* arrivals) {                                                              \
        const Matrix all[3] = {MATRIX_OF(0), MATRIX_OF(1), MATRIX_OF(2)};                                        \
        const EpilogueParams epi = EPILOGUE_ARGS;                                                                \
        const FusedRows fused = {fused_x, norm, eps, x, inv_scales, arrivals, n_columns, x_stride};              \
        linear_splitk<Type, Other, NT>(batch, kind, x, inv_scales, x_stride, n_columns, all, epi, handoff,       \
                                       n_tile_stages, n_row_stages, fused);                                      \
    }
#define LINEAR_SPLITKS(name, Type) LINEAR_SPLITK(name, Type, Type, 32) LINEAR_SPLITK(name, Type, Type, 64)
#define LINEAR_SPLITKS_OF(name, Type) LINEAR_SPLITKS(name, Type)
// Mixed-type files have q and k of one type and v of the other.
#define SPLITK_IS_MIXED_q4_k 1
#define SPLITK_IS_MIXED_q5_k 1
#ifdef WOOLLY_TYPE
LINEAR_SPLITKS_OF(WOOLLY_NAME, WOOLLY_TYPE)
#define SPLITK_WITH_Q6_K(name, Type) LINEAR_SPLITK(name##_q6_k, Type, Q6_K, 64)
#define SPLITK_NAMED_WITH_Q6_K(name, Type) SPLITK_WITH_Q6_K(name, Type)
#if CONCAT(SPLITK_IS_MIXED_, WOOLLY_NAME)
SPLITK_NAMED_WITH_Q6_K(WOOLLY_NAME, WOOLLY_TYPE)
#endif
#else
TILE_TYPES(LINEAR_SPLITKS)
LINEAR_SPLITK(q4_k_q6_k, Q4_K, Q6_K, 64)
LINEAR_SPLITK(q5_k_q6_k, Q5_K, Q6_K, 64)
#endif

#endif
