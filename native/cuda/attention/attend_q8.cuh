// KV tiles of q8_0 in shared memory, in cache format: bytes, then scales. Lanes dequantize into mma operands in
// registers.
#pragma once

#include "attention/attend_mma.cuh"

namespace {

// cp.async of 4 or 8 bytes.
template <int n>
__device__ __forceinline__ void cp_async_small(void* to, const void* from) {
#ifdef WOOLLY_EMULATED
    std::memcpy(to, from, n);
#else
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(shared_address(to)), "l"(from), "n"(n) : "memory");
#endif
}

template <int D>  // head size, a multiple of 32
struct Q8Tile {
    static constexpr int chunks = D / 16, blocks = D / 32, bytes = KV_TILE * (D + D / 8);  // chunks: 16 bytes of a row

    // Offset of a column; the same chunk of eight rows falls into different banks.
    static __device__ __forceinline__ int place(int row, int column) {
        const int mixed = D == 128 ? row & 7 : D == 64 ? row >> 1 & 3 : 0;
        return row * D + (column / 16 ^ mixed) * 16 + column % 16;
    }
    static __device__ __forceinline__ int scale_place(int row, int block) {
        return KV_TILE * D + (row * blocks + block) * 4;
    }

    // Starts the copy of a tile of K or V; `heads` are its two pages. Skips row `fresh`.
    template <bool EVICT_FIRST, int n_threads>
    static __device__ __forceinline__ void copy(u8* to, const u8* const (&heads)[2], int fresh) {
        static_assert(KV_TILE * chunks % n_threads == 0 && n_threads >= KV_TILE, "threads share a group evenly");
        constexpr int step = n_threads / chunks;               // rows per step
        if (PAGE % step == 0 && step % 8 == 0 && fresh < 0) {  // compile-time constant except `fresh`
            const int row = threadIdx.x / chunks, chunk = threadIdx.x % chunks;
            u8* const into = to + place(row, chunk * 16);
            const int from = row * D + chunk * 16;
#pragma unroll
            for (int i = 0; i < KV_TILE / step; i++)
                cp_async16_hint<EVICT_FIRST>(into + i * step * D, heads[i * step / PAGE] + from + i * step % PAGE * D);
        } else {
#pragma unroll 1
            for (int at = threadIdx.x; at < KV_TILE * chunks; at += n_threads) {
                const int row = at / chunks, chunk = at % chunks;
                const u8* const from = (row < PAGE ? heads[0] : heads[1]) + row % PAGE * D + chunk * 16;
                if (row != fresh) cp_async16(to + place(row, chunk * 16), from);
            }
        }
        const int row = threadIdx.x;
        if (row >= KV_TILE || row == fresh) return;
        const u8* const from = (row < PAGE ? heads[0] : heads[1]) + PAGE * D + row % PAGE * (4 * blocks);
        u8* const into = to + scale_place(row, 0);
        if (D == 128)
            cp_async16(into, from);
        else if (D == 64)
            cp_async_small<8>(into, from);
        else
            for (int i = 0; i < blocks; i++) cp_async_small<4>(into + 4 * i, from + 4 * i);
    }

    // Scores of 16 positions from `first` on.
    static __device__ __forceinline__ void multiply(float (&scores)[2][4], const u32 (&queries)[D / 16][4],
                                                    const u8* kv_tile, int first, int lane) {
        const int row = first + (lane & 7) + (lane >> 3 & 1) * 8;
#pragma unroll
        for (int b = 0; b < blocks; b++) {
            u32 words[4];  // of positions g and g + 8, then of the next 16 columns
            ldmatrix_x4<false>(words, kv_tile + place(row, 32 * b + (lane >> 4) * 16));
#pragma unroll
            for (int n = 0; n < 2; n++) {
                const float scale = *reinterpret_cast<const float*>(kv_tile + scale_place(first + 8 * n + lane / 4, b));
                const u32 scales = scales_of(scale, scale);
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    const u32 word = words[2 * i + n] ^ TOP_BITS;
                    mma(scores[n], queries[2 * b + i], half_mul(whole_numbers<0>(word), scales),
                        half_mul(whole_numbers<2>(word), scales));
                }
            }
        }
    }

    // Scales of V for this lane's two positions, zero where masked.
    static __device__ __forceinline__ u32 scales(const u8* kv_tile, int block, KvRange rows, int lane) {
        float two[2];
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const int row = 2 * lane + e;
            const float scale = *reinterpret_cast<const float*>(kv_tile + scale_place(row, block));
            two[e] = row >= rows.first && row <= rows.last ? scale : 0.f;
        }
        return scales_of(two[0], two[1]);
    }

    // V operands of 16 positions: a lane loads bytes of columns 4 g to 4 g + 3 of a block, one for each of the mma
    // tiles from `first` on.
    template <int n>
    static __device__ __forceinline__ void dequantize(u32 (&out)[n][2], const u8* kv_tile, int from, int block,
                                                      int first, u32 of_lanes, int lane) {
        const int row = from + 2 * (lane % 4), column = 32 * block + lane / 4 * 4;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const u32 one = *reinterpret_cast<const u32*>(kv_tile + place(row + 8 * i, column)) ^ TOP_BITS,
                      other = *reinterpret_cast<const u32*>(kv_tile + place(row + 8 * i + 1, column)) ^ TOP_BITS;
            const u32 scales = __shfl_sync(ALL_LANES, of_lanes, from / 2 + 4 * i + lane % 4);
            const u32 low = pick_bytes(one, other, 0x5140), high = pick_bytes(one, other, 0x7362);
            // two of the four tiles, or all
            const u32 mine = n == 2 && first != 0 ? high : low;
            out[0][i] = half_mul(whole_numbers<0>(mine), scales);
            out[1][i] = half_mul(whole_numbers<2>(mine), scales);
            if (n == 4) {
                out[n - 2][i] = half_mul(whole_numbers<0>(high), scales);
                out[n - 1][i] = half_mul(whole_numbers<2>(high), scales);
            }
        }
    }
};

// Loads a q4 tile through registers, one tile ahead of use, and decodes it to the q8_0 tile format: 32 codes and a
// scale per block, K, then V.
template <int D, int n_threads>
struct Q4Loader {
    static constexpr int blocks = D / 32, all = KV_TILE * blocks, of_page = PAGE * blocks;
    static constexpr int n = (all + n_threads - 1) / n_threads;
    Words4 codes[2][n];
    u32 scales[2][n];

    static __device__ __forceinline__ bool is_one(int i) {
        return all % n_threads == 0 || int(threadIdx.x) + i * n_threads < all;
    }
    __device__ __forceinline__ void request(int is_v, const u8* const (&heads)[2]) {
#pragma unroll
        for (int i = 0; i < n; i++) {
            const int at = int(threadIdx.x) + i * n_threads, in_page = at < of_page ? at : at - of_page;
            const u8* const head = at < of_page ? heads[0] : heads[1];
            if (!is_one(i)) continue;
            codes[is_v][i] = *reinterpret_cast<const Words4*>(head + in_page * 16);
            scales[is_v][i] = *reinterpret_cast<const u16*>(head + PAGE * D / 2 + in_page * 2);
        }
    }
    static __device__ __forceinline__ Words4 decoded(u32 low, u32 high) {
        return Words4{iq4_values(low & 0xffffu) ^ TOP_BITS, iq4_values(low >> 16) ^ TOP_BITS,
                      iq4_values(high & 0xffffu) ^ TOP_BITS, iq4_values(high >> 16) ^ TOP_BITS};
    }
    __device__ __forceinline__ void put(int is_v, u8* to) const {
#pragma unroll
        for (int i = 0; i < n; i++) {
            const int at = int(threadIdx.x) + i * n_threads, row = at / blocks, block = at % blocks;
            if (!is_one(i)) continue;
            const Words4& mine = codes[is_v][i];
            *reinterpret_cast<Words4*>(to + Q8Tile<D>::place(row, 32 * block)) = decoded(mine.x, mine.y);
            *reinterpret_cast<Words4*>(to + Q8Tile<D>::place(row, 32 * block + 16)) = decoded(mine.z, mine.w);
            *reinterpret_cast<float*>(to + Q8Tile<D>::scale_place(row, block)) =
                __int_as_float(int(scales[is_v][i] << 16));
        }
    }
};

}  // namespace
