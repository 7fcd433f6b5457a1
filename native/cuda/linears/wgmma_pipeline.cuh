// Warp-specialized pipeline of the Hopper kernels (linear_wgmma.cu, linear_splitk.cu, moe_wgmma.cu): one warp copies
// weight tiles, one copies activation rows, both into multi-stage rings; eight consumer warps unpack tiles into
// registers and issue wgmma. Each kernel has its own main loop: a shared one that also zeroes the accumulators of empty
// slices makes ptxas serialize wgmma of 16 and 32 rows (C7515).
#pragma once

#include "linears/linears.cuh"
#include "primitives/wgmma.cuh"

#if WOOLLY_HOPPER

// Stage and phase parity in a ring. Producers start with phase 1 (all stages free), consumers with phase 0.
struct PipelineState {
    int n_stages, stage, phase;
    __device__ __forceinline__ void advance() {
        if (++stage == n_stages) stage = 0, phase ^= 1;
    }
};

// Rings of a block: NT rows of 64 columns per row stage, 8 tiles per tile stage. Each stage has a full and a free
// mbarrier.
template <class T, int NT>
struct Rings {
    static constexpr int ROW_BYTES = NT * 128, TILE_BYTES = Tile<T>::bytes;
    u8 *rows, *tiles;
    int n_tile_stages, n_row_stages;
    u32 barriers;

    __device__ __forceinline__ Rings(u8* raw, int n_tile_stages, int n_row_stages)
        : rows(raw + ((1024 - (shared_address(raw) & 1023)) & 1023)),
          tiles(rows + n_row_stages * ROW_BYTES),
          n_tile_stages(n_tile_stages),
          n_row_stages(n_row_stages),
          barriers(shared_address(tiles + n_tile_stages * 8 * TILE_BYTES)) {}
    __device__ __forceinline__ u32 rows_full(int stage) const { return barriers + stage * 8; }
    __device__ __forceinline__ u32 rows_free(int stage) const { return barriers + 128 + stage * 8; }
    __device__ __forceinline__ u32 tiles_full(int stage) const { return barriers + 256 + stage * 8; }
    __device__ __forceinline__ u32 tiles_free(int stage) const { return barriers + 384 + stage * 8; }
    // Shared memory after the rings and their barriers, for the consumers.
    __device__ __forceinline__ float* rest() const {
        return reinterpret_cast<float*>(tiles + n_tile_stages * 8 * TILE_BYTES + 512);
    }
    // Eight warps per block consume; rows multicast to a cluster of two are released by 16.
    __device__ __forceinline__ void start(int n_readers = 16) const {
        if (threadIdx.x == 0) {
            for (int i = 0; i < n_row_stages; i++)
                mbarrier_init(rows_full(i), 1), mbarrier_init(rows_free(i), n_readers);
            for (int i = 0; i < n_tile_stages; i++) mbarrier_init(tiles_full(i), 1), mbarrier_init(tiles_free(i), 8);
            mbarrier_init_fence();
        }
        cluster_sync();
    }

    // Tile producer: eight lanes copy one tile each, of eight panels.
    __device__ __forceinline__ void copy_tiles(PipelineState& pipe, const u8* from, int lane, u64 policy,
                                               int n_bytes = TILE_BYTES) const {
        mbarrier_wait(tiles_free(pipe.stage), pipe.phase);
        if (lane == 0) mbarrier_expect_tx(tiles_full(pipe.stage), 8 * n_bytes);
        __syncwarp();
        if (lane < 8)
            bulk_copy(shared_address(tiles + (pipe.stage * 8 + lane) * TILE_BYTES), from, n_bytes,
                      tiles_full(pipe.stage), policy);
        pipe.advance();
    }
    // Row producer: multicasts this block's half of the rows, n_bytes, to both blocks of the cluster.
    __device__ __forceinline__ void copy_rows(PipelineState& pipe, const u16* from, int n_bytes, int rank, int lane,
                                              u64 policy) const {
        mbarrier_wait(rows_free(pipe.stage), pipe.phase);
        if (lane == 0) {
            mbarrier_expect_tx(rows_full(pipe.stage), 2 * n_bytes);
            bulk_copy_multicast(shared_address(rows + pipe.stage * ROW_BYTES + rank * n_bytes), from, n_bytes,
                                rows_full(pipe.stage), policy);
        }
        __syncwarp();
        pipe.advance();
    }
    // Row producer without multicast.
    __device__ __forceinline__ void copy_all_rows(PipelineState& pipe, const u16* from, int lane, u64 policy) const {
        mbarrier_wait(rows_free(pipe.stage), pipe.phase);
        if (lane == 0) {
            mbarrier_expect_tx(rows_full(pipe.stage), ROW_BYTES);
            bulk_copy(shared_address(rows + pipe.stage * ROW_BYTES), from, ROW_BYTES, rows_full(pipe.stage), policy);
        }
        __syncwarp();
        pipe.advance();
    }
    // Waits for the releases by the other block: it must not arrive at a barrier of a block that has exited.
    __device__ __forceinline__ void drain_rows(PipelineState& pipe) const {
        for (int i = 0; i < n_row_stages; i++) {
            mbarrier_wait(rows_free(pipe.stage), pipe.phase);
            pipe.advance();
        }
    }
};

// State of a consumer warp in both rings, and the A fragments of the next wgmma. L: the larger tile type of the ring.
template <class T, int NT, class L = T>
struct Consumer {
    const Rings<L, NT>& rings;
    int lane, warp;
    PipelineState row, tile;
    const u8* packed;
    typename Tile<T>::Scales scales;
    u32 a[2][4][4];

    __device__ __forceinline__ Consumer(const Rings<L, NT>& rings, int lane, int warp)
        : rings(rings), lane(lane), warp(warp), row{rings.n_row_stages, 0, 0}, tile{rings.n_tile_stages, 0, 0} {}
    __device__ __forceinline__ void unpack(int k64) { unpack_four<T>(packed, scales, lane, k64, a[k64 & 1]); }
    __device__ __forceinline__ void unpack_next_tile() {
        mbarrier_wait(rings.tiles_full(tile.stage), tile.phase);
        packed = rings.tiles + (tile.stage * 8 + warp) * Tile<L>::bytes;
        scales = Tile<T>::scales(packed, lane);
        unpack(0);
    }
    __device__ __forceinline__ u64 wait_for_rows() const {
        mbarrier_wait(rings.rows_full(row.stage), row.phase);
        return wgmma_descriptor(shared_address(rings.rows + row.stage * Rings<L, NT>::ROW_BYTES));
    }
    __device__ __forceinline__ void free_rows(int stage) const {
        if (lane < 2) mbarrier_arrive_remote(rings.rows_free(stage), lane);
    }
    __device__ __forceinline__ void free_tile() {
        __syncwarp();
        if (lane == 0) mbarrier_arrive(rings.tiles_free(tile.stage));
        tile.advance();
    }
};

#endif
