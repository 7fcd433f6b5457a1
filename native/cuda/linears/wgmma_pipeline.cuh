// What kernels of many rows on Hopper share (linear_wgmma.cu, moe_wgmma.cu): two rings of stages in shared memory
// between producers, a warp that copies tiles of weights and one that copies rows of activations, and consumers, eight
// warps that open tiles in registers and multiply. Each kernel has its own loop of products: ptxas serializes wgmma of
// 16 and 32 rows (C7515) if they share one that also zeroes the sum of an empty slice.
#pragma once

#include "linears/linears.cuh"
#include "primitives/wgmma.cuh"

#if WOOLLY_HOPPER

// A place in a ring of stages, and the parity of its barriers: 1 for a producer, to whom all stages are free, 0 for a
// consumer.
struct PipelineState {
    int n_stages, stage, phase;
    __device__ __forceinline__ void advance() {
        if (++stage == n_stages) stage = 0, phase ^= 1;
    }
};

// The rings of a block, NT rows of 64 columns and 8 tiles in a stage. Each stage has a barrier that says that it is
// full and one that it is free.
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
    // Memory behind the rings, for numbers of the consumers.
    __device__ __forceinline__ float* rest() const {
        return reinterpret_cast<float*>(tiles + n_tile_stages * 8 * TILE_BYTES + 512);
    }
    // Eight warps of a block read tiles and rows; rows that both blocks of a pair copy are read by those of both.
    __device__ __forceinline__ void start(int n_readers = 16) const {
        if (threadIdx.x == 0) {
            for (int i = 0; i < n_row_stages; i++)
                mbarrier_init(rows_full(i), 1), mbarrier_init(rows_free(i), n_readers);
            for (int i = 0; i < n_tile_stages; i++) mbarrier_init(tiles_full(i), 1), mbarrier_init(tiles_free(i), 8);
            mbarrier_init_fence();
        }
        cluster_sync();
    }

    // Producer of tiles: one tile of each of eight strips, a lane each.
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
    // Producer of rows: this block's half of them, `n_bytes`, for both blocks.
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
    // ... all of them, for this block alone.
    __device__ __forceinline__ void copy_all_rows(PipelineState& pipe, const u16* from, int lane, u64 policy) const {
        mbarrier_wait(rows_free(pipe.stage), pipe.phase);
        if (lane == 0) {
            mbarrier_expect_tx(rows_full(pipe.stage), ROW_BYTES);
            bulk_copy(shared_address(rows + pipe.stage * ROW_BYTES), from, ROW_BYTES, rows_full(pipe.stage), policy);
        }
        __syncwarp();
        pipe.advance();
    }
    // The other block says here that it has read rows: it must not say so to a block that has left.
    __device__ __forceinline__ void drain_rows(PipelineState& pipe) const {
        for (int i = 0; i < n_row_stages; i++) {
            mbarrier_wait(rows_free(pipe.stage), pipe.phase);
            pipe.advance();
        }
    }
};

// A warp of the consumers: where it is in both rings, and the operands of the next products. L: the largest tiles of
// the ring.
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
