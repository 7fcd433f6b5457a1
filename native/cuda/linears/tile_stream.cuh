// Weight streaming for small batches: each of the 16 warps of a block fetches tiles through its own ring in shared
// memory, so the main loop has no block barrier.
#pragma once

#include "linears/linears.cuh"

constexpr int MAX_STAGES = 8;

// Multi-stage ring of tiles of one warp.
struct Ring {
    u8* memory;
    int n_stages, stage_bytes;
#if WOOLLY_BULK
    u32 barriers;
    u64 policy;
#endif

    // `rings` holds the stages of all warps; the mbarriers are at byte 1024 of shared memory.
    __device__ __forceinline__ void start(u8* shared, u8* rings, int warp, int lane, int stages, int bytes) {
        memory = rings + warp * stages * bytes;
        n_stages = stages;
        stage_bytes = bytes;
#if WOOLLY_BULK
        barriers = shared_address(shared + 1024 + warp * MAX_STAGES * 8);
        policy = evict_first_policy();
        if (lane < n_stages) {
            mbarrier_init(barriers + lane * 8, 1);
            mbarrier_init_fence();
        }
        __syncwarp();
#endif
    }
    // Called by all lanes; `tile` is null after the last tile.
    __device__ __forceinline__ void fetch(int stage, const u8* tile, int n_bytes, int lane) {
#if WOOLLY_BULK
        if (lane == 0 && tile != nullptr) {
            mbarrier_expect_tx(barriers + stage * 8, n_bytes);
            bulk_copy(shared_address(memory + stage * stage_bytes), tile, n_bytes, barriers + stage * 8, policy);
        }
#else
        if (tile != nullptr)
            for (int i = lane * 16; i < n_bytes; i += 512) cp_async16(memory + stage * stage_bytes + i, tile + i);
        cp_async_commit();
#endif
    }
    __device__ __forceinline__ void wait(int stage, int phase) {
#if WOOLLY_BULK
        mbarrier_wait(barriers + stage * 8, phase);
#else
        cp_async_wait_stage(n_stages);
        __syncwarp();
#endif
    }
};

// Iterates over the (panel, slice) pairs of a warp: one slice of each panel of its block. Slices with one extra tile
// rotate over the warps. In a cluster of TEAM blocks each block has every TEAM-th slice, and its warps work on TEAM
// panels.
template <int TEAM>
struct PanelCursor {
    static constexpr int N = N_SLICES / TEAM;  // slices per block
    int panel, tile, end, slice;

    __device__ __forceinline__ static int rank() { return TEAM == 1 ? 0 : int(blockIdx.x) % TEAM; }
    // Number of this block's slices with an extra tile.
    __device__ __forceinline__ static int longer(int n_tiles) {
        return TEAM == 1 ? n_tiles % N_SLICES : (n_tiles % N_SLICES + TEAM - 1 - rank()) / TEAM;
    }
    __device__ __forceinline__ static int panel_at(int i) {
        return int(blockIdx.x) / TEAM + i * (int(gridDim.x) / TEAM);
    }
    __device__ __forceinline__ void seek(int i, int warp, int n_tiles) {
        panel = panel_at(TEAM == 1 ? i : i * TEAM + warp / N);
        slice = (warp + longer(n_tiles) * i) % N * TEAM + rank();
        tile = slice_start(slice, n_tiles);
        end = slice_start(slice + 1, n_tiles);
    }
    // Tiles in the block's slices before this one.
    __device__ __forceinline__ int before(int n_tiles) const {
        return slice / TEAM * (n_tiles / N_SLICES) + min(slice / TEAM, longer(n_tiles));
    }
};
typedef PanelCursor<1> SliceCursor;

// Streams the tiles of a warp from all panels of its block. Up to three matrices follow one another; the third may have
// tile type U. IS_SINGLE: one tile per slice, and the warp has the slice of its number.
template <class T, class U, int TEAM = 1, bool IS_SINGLE = false>
struct Stream {
    static constexpr bool IS_MIXED = Tile<T>::bytes != Tile<U>::bytes;
    static constexpr int STAGE_BYTES = Tile<T>::bytes > Tile<U>::bytes ? Tile<T>::bytes : Tile<U>::bytes;
    const Matrix (&all)[3];
    const int n_tiles, n_first, n_two, n_panels, warp, lane;
    Ring ring;
    PanelCursor<TEAM> ahead;
    const u8* next;
    int at, next_bytes, stage, phase;

    __device__ __forceinline__ Stream(const Matrix (&all)[3], int n_tiles, int warp, int lane)
        : all(all),
          n_tiles(n_tiles),
          n_first(all[0].n_panels),
          n_two(n_first + all[1].n_panels),
          n_panels(n_two + all[2].n_panels),
          warp(warp),
          lane(lane),
          at(0),
          stage(0),
          phase(0) {}
    __device__ __forceinline__ void start(u8* shared, u8* rings, int n_stages) {
        ring.start(shared, rings, warp, lane, n_stages, STAGE_BYTES);
        ahead.panel = ahead.panel_at(0);
        seek();
    }
    __device__ __forceinline__ static int bytes_of(int which) {
        return IS_MIXED && which == 2 ? Tile<U>::bytes : Tile<T>::bytes;
    }
    // Panel within its matrix; sets `which` to the matrix.
    __device__ __forceinline__ int panel_of(int panel, int& which) const {
        which = panel < n_first ? 0 : panel < n_two ? 1 : 2;
        return panel - (which == 0 ? 0 : which == 1 ? n_first : n_two);
    }
    // Moves to the first tile of the next non-empty slice or, if IS_SINGLE, of the next matrix.
    __device__ __forceinline__ void seek() {
        if (IS_SINGLE) {
            ahead.tile = warp;
        } else {
            for (ahead.seek(at, warp, n_tiles); ahead.panel < n_panels && ahead.tile >= ahead.end;)
                ahead.seek(++at, warp, n_tiles);
        }
        int which;
        const int panel = panel_of(ahead.panel, which);
        if (IS_SINGLE) ahead.end = which == 0 ? n_first : which == 1 ? n_two : n_panels;
        const u8* tiles = which == 0 ? all[0].tiles : which == 1 ? all[1].tiles : all[2].tiles;
        next_bytes = bytes_of(which);
        next = ahead.panel < n_panels ? tiles + (u64(panel) * n_tiles + ahead.tile) * next_bytes : nullptr;
    }
    __device__ __forceinline__ void fetch(int to) {
        ring.fetch(to, next, next_bytes, lane);
        if (next == nullptr) return;
        if (IS_SINGLE) {
            next += u32(gridDim.x) * N_SLICES * next_bytes;
            ahead.panel += int(gridDim.x);
            if (ahead.panel >= ahead.end) seek();
            return;
        }
        next += next_bytes;
        if (++ahead.tile == ahead.end) at++, seek();
    }
    // Multiplies the next tile; columns(k32) returns the B fragments of two mma. Then refills its stage.
    template <class Unpacker, class Columns>
    __device__ __forceinline__ void multiply(Unpacker, float (&acc)[4], Columns&& columns) {
        const u8* tile = ring.memory + stage * STAGE_BYTES;
        ring.wait(stage, phase);
        const typename Unpacker::Scales scales = Unpacker::scales(tile, lane);
        Words4 two = {};
#pragma unroll
        for (int k16 = 0; k16 < 16; k16++) {
            u32 a[4];
            Unpacker::unpack(tile, scales, lane, k16, a);
            if ((k16 & 1) == 0) two = columns(k16 >> 1);
            mma(acc, a, k16 & 1 ? two.z : two.x, k16 & 1 ? two.w : two.y);
        }
        __syncwarp();
        fetch(stage);
        if (++stage == ring.n_stages) stage = 0, phase ^= 1;
    }
};

// Byte offset of columns k to k + 3 (k a multiple of 4) of a row in B fragment order: 16 bytes per lane t hold two k16
// steps.
__device__ __forceinline__ int f16_row_offset(int k, int row, int n_rows) {
    return (((k >> 8) * 8 + (k >> 3 & 7)) * n_rows + row) * 64 + (k >> 6 & 3) * 16 + (k >> 2 & 1) * 8;
}

// One output element of a thread. Its factor, bias and residual are loaded while tiles stream.
struct EpilogueElement {
    Matrix m;
    u64 to;
    const float* other_bias;
    float factor[2], bias[2], residual;
    bool is_active;

    // Element `e` of a panel, for activation row `row`. Loads nothing if the thread has no element.
    __device__ __forceinline__ EpilogueElement(const Matrix (&all)[3], int which, int panel, int e, int row,
                                               int n_tiles, int tile_bytes, bool is_active_if_valid,
                                               const EpilogueParams& epi)
        : m(matrix_at(all, which)), other_bias(all[1].bias), factor{1, 1}, bias{0, 0}, residual(0) {
        const bool is_glu = epi.epilogue == GLU;
        const int out = panel * (is_glu ? 8 : 16) + e;
        to = u64(row) * m.n_rows + out;
        is_active = is_active_if_valid && out < m.n_rows;
        if (!is_active) return;
        const float* factors =
            reinterpret_cast<const float*>(m.tiles + u64(m.n_panels) * n_tiles * tile_bytes) + panel * 16 + e;
        factor[0] = factors[0];
        if (m.bias != nullptr) bias[0] = m.bias[out];
        if (is_glu) {
            factor[1] = factors[8];
            if (other_bias != nullptr) bias[1] = other_bias[out];
        }
        if (epi.epilogue == RESIDUAL) residual = __ldcg(epi.residual + to);
    }
    // summed(e) returns the sum over all slices of row e of the panel.
    template <class Summed>
    __device__ __forceinline__ void store(Summed&& summed, int e, float inv_scale, const EpilogueParams& epi) const {
        float y = scale_and_bias(summed(e), factor[0], inv_scale, m.bias != nullptr, bias[0], epi.scale);
        if (epi.epilogue == GLU)
            y = apply_glu(
                epi.gate, epi.limit, y,
                scale_and_bias(summed(e + 8), factor[1], inv_scale, other_bias != nullptr, bias[1], epi.scale));
        m.y[to] = epi.epilogue == RESIDUAL ? __fadd_rn(residual, y) : y;
    }
};
