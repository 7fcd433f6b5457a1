// What kernels of few rows share: each of the 16 warps of a block streams tiles through a ring of its own in shared
// memory, so that no barrier of the block stands in the loop.
#pragma once

#include "linears.cuh"

constexpr int MOST_STAGES = 8;

// Tiles on their way to one warp, stage by stage.
struct Ring {
    u8* memory;
    int n_stages, stage_bytes;
#if WOOLLY_BULK
    u32 barriers;
    u64 policy;
#endif

    // `rings` has those of all warps; barriers are in the second KB of shared memory.
    __device__ __forceinline__ void start(u8* shared, u8* rings, int warp, int lane, int stages, int bytes) {
        memory = rings + warp * stages * bytes;
        n_stages = stages;
        stage_bytes = bytes;
#if WOOLLY_BULK
        barriers = shared_address(shared + 1024 + warp * MOST_STAGES * 8);
        policy = read_once();
        if (lane < n_stages) {
            barrier_start(barriers + lane * 8, 1);
            barriers_started();
        }
        __syncwarp();
#endif
    }
    // All lanes call it, with null if nothing is left to fetch.
    __device__ __forceinline__ void fetch(int stage, const u8* tile, int n_bytes, int lane) {
#if WOOLLY_BULK
        if (lane == 0 && tile != nullptr) {
            barrier_expect(barriers + stage * 8, n_bytes);
            bulk_copy(shared_address(memory + stage * stage_bytes), tile, n_bytes, barriers + stage * 8, policy);
        }
#else
        if (tile != nullptr)
            for (int i = lane * 16; i < n_bytes; i += 512) copy16(memory + stage * stage_bytes + i, tile + i);
        copies_commit();
#endif
    }
    __device__ __forceinline__ void wait(int stage, int phase) {
#if WOOLLY_BULK
        barrier_wait(barriers + stage * 8, phase);
#else
        wait_for_stage(n_stages);
        __syncwarp();
#endif
    }
};

// Which tiles a warp takes: strip after strip of its block; of each, one slice. Slices that are one tile longer go
// round the warps.
struct Cursor {
    int strip, tile, end, slice;

    __device__ __forceinline__ void seek(int i, int warp, int n_tiles) {
        strip = int(blockIdx.x) + i * int(gridDim.x);
        slice = (warp + n_tiles % N_SLICES * i) % N_SLICES;
        tile = slice_start(slice, n_tiles);
        end = slice_start(slice + 1, n_tiles);
    }
};
