// Fused store for the decode kernels: norm and RoPE of one row's heads with the functions of store.cuh. Every block
// prepares q; the block with the newest position also prepares k and writes k and v to the cache.
#pragma once

#include "attention/attend_stream.cuh"
#include "attention/store.cuh"

namespace {

// Heads of a row.
template <int D, class G = KvStream<D>>
struct FusedHeads {
    static constexpr int bytes = G::bytes, kv_type = G::kv_type;  // kv_type: type of the cache
    static constexpr int pairs_per_lane = (D + 63) / 64;          // RoPE pairs of a head per lane

    const G& stream;
    const NormRope& norm_rope;
    const float *const k, *const v;  // of all rows
    const int row;
    // All columns rotate and fit into registers; a lane also sums squares in the order of norm().
    const bool is_in_registers;
    float cosine_registers[pairs_per_lane], sine_registers[pairs_per_lane];
    float norm_registers[2][pairs_per_lane][2];  // of q and k, if pairs are not adjacent

    // Loads cosines, sines and norm weights ahead of the K/V copies.
    __device__ __forceinline__ FusedHeads(const G& stream, const NormRope& norm_rope, const float* k, const float* v,
                                          int row = 0)
        : stream(stream),
          norm_rope(norm_rope),
          k(k),
          v(v),
          row(row),
          is_in_registers(D % 64 == 0 && stream.a.k_dim == D && stream.a.v_dim == D && norm_rope.n_rot == D &&
                          (!norm_rope.is_adjacent || (norm_rope.q_norm == nullptr && norm_rope.k_norm == nullptr))) {
        const long long angles = norm_rope.table(row) + threadIdx.x % 32;
#pragma unroll
        for (int i = 0; i < pairs_per_lane; i++) {
            cosine_registers[i] = is_in_registers ? stream.a.b->cosines[angles + 32 * i] : 0.f;
            sine_registers[i] = is_in_registers ? stream.a.b->sines[angles + 32 * i] : 0.f;
        }
#pragma unroll
        for (int i = 0; i < 4 * pairs_per_lane; i++) {
            const float* const norm = i < 2 * pairs_per_lane ? norm_rope.q_norm : norm_rope.k_norm;
            const int column = i / 2 % pairs_per_lane * 32 + i % 2 * (D / 2) + int(threadIdx.x % 32);
            norm_registers[i / (2 * pairs_per_lane)][i / 2 % pairs_per_lane][i % 2] =
                is_in_registers && norm != nullptr ? norm[column] : 0.f;
        }
    }

    __device__ __forceinline__ const float* q_of(int head, int dim) const {
        return stream.a.q + ((long long)row * stream.a.heads + head) * dim;
    }
    __device__ __forceinline__ const float* of_kv(const float* of_rows, int kv_head, int dim) const {
        return of_rows + ((long long)row * stream.a.kv_heads + kv_head) * dim;
    }

    // Converts q to queries; stores k and v in the cache and, if their tile is in the ring, there as well.
    __device__ __forceinline__ void prepare(const Entry& entry, const int* table, int first_head, int kv_head,
                                            int first, int last, KvRange range) const {
        const int tid = threadIdx.x, lane = tid % 32, warp = tid / 32, position = range.last;
        const AttendParams& a = stream.a;
        u8 *const q = stream.q, *const copies = stream.copies;
        // Heads that do not fit into registers use the last stage of the ring, still free.
        float* const rotated = reinterpret_cast<float*>(copies + (G::stages - 1) * 2 * bytes);
        const int n = min(QUERIES, kv_head * a.gqa() + a.gqa() - first_head), newest = position / KV_TILE;
        const bool is_newest = newest >= first && newest <= last;
        u8* const kv_tile = newest - first < G::stages - 1 ? copies + (newest - first) * 2 * bytes : nullptr;
        const int page = is_newest ? table[position / PAGE] : 0;
        const long long angles = norm_rope.table(row);
        const float *const cosines = a.b->cosines + angles, *const sines = a.b->sines + angles;
        for (int i = tid; i < G::q_bytes / 16; i += THREADS) reinterpret_cast<Words4*>(q)[i] = Words4{0, 0, 0, 0};
        if (tid < QUERIES)
            stream.shared.queries[tid] =
                tid < n ? Query{row, first_head + tid, position, range, 0.f} : Query{0, 0, 0, {1, 0}, 0.f};
        __syncthreads();
        wait_for_previous_kernel();
        const float temper = tempered(a, row);
        u8 *const k_row = const_cast<u8*>(head_of<kv_type>(entry.k, page, a.kv_heads, kv_head, D)),
                  *const v_row = const_cast<u8*>(head_of<kv_type>(entry.v, page, a.kv_heads, kv_head, D));
        if (is_in_registers) {
            // The next head loads while one is prepared.
            HeadRegisters now, next;
            if (warp < n + is_newest) fetch(now, warp, warp < n, first_head, kv_head);
#pragma unroll 1
            for (int i = warp; i < n + is_newest; i += WARPS, now = next) {
                if (i + WARPS < n + is_newest) fetch(next, i + WARPS, i + WARPS < n, first_head, kv_head);
                prepare_in_registers(now, i, i < n, temper, k_row, v_row, position, kv_tile);
            }
            return;
        }
        for (int i = warp; i < n + is_newest; i += WARPS) {
            const bool is_q = i < n;
            const float* const from = is_q ? q_of(first_head + i, a.k_dim) : of_kv(k, kv_head, a.k_dim);
            const float* const value = of_kv(v, kv_head, a.v_dim);
            const float* const norm = is_q ? norm_rope.q_norm : norm_rope.k_norm;
            float* const head = rotated + i * D;
            load_head(norm_rope, head, from, norm, a.k_dim, cosines, sines, lane);
            if (is_q) {
                float max_abs = 0.f;
                for (int c = lane; c < a.k_dim; c += 32) max_abs = fmaxf(max_abs, fabsf(__fmul_rn(head[c], temper)));
                for (int j = 16; j > 0; j >>= 1) max_abs = fmaxf(max_abs, __shfl_xor_sync(ALL_LANES, max_abs, j));
                const QueryScale query_scale(max_abs);
                for (int c = lane; c < a.k_dim; c += 32)
                    reinterpret_cast<u16*>(q + i * G::q_stride)[G::q_column(c)] =
                        u16(to_half2(__fmul_rn(__fmul_rn(head[c], temper), query_scale.up), 0.f));
                if (lane == 0) stream.shared.queries[i].score_scale = query_scale.score_scale(a);
                continue;
            }
            const int n_values = check_value(head, a.k_dim, value, a.v_dim, lane) ? a.v_dim : 0;
            if constexpr (kv_type != F16) {
                store_q8_0(head, a.k_dim, k_row, kv_tile, position, lane);
                store_q8_0(value, n_values, v_row, kv_tile == nullptr ? nullptr : kv_tile + bytes, position, lane);
            } else {
                put<F16>(head, a.k_dim, D, k_row, position % PAGE, lane);
                put<F16>(value, n_values, D, v_row, position % PAGE, lane);
                if (kv_tile == nullptr) continue;
                for (int c = 2 * lane; c < D; c += 64) {
                    u8* const to = kv_tile + G::place(position % KV_TILE, c / 8) + c % 8 * 2;
                    *reinterpret_cast<u32*>(to) =
                        to_half2_saturated(c < a.k_dim ? head[c] : 0.f, c + 1 < a.k_dim ? head[c + 1] : 0.f);
                    *reinterpret_cast<u32*>(to + bytes) =
                        to_half2_saturated(c < n_values ? value[c] : 0.f, c + 1 < n_values ? value[c + 1] : 0.f);
                }
            }
        }
    }

    // Stores a head as q8_0 in its page and, if its tile is in the ring, there as well.
    __device__ __forceinline__ void store_q8_0(const float* head, int n, u8* page, u8* kv_tile, int position,
                                               int lane) const {
        const int row = position % PAGE, at = position % KV_TILE;
        for (int c = lane; c < D; c += 32) {
            const float x = c < n ? head[c] : 0.f;
            const Scale scale = scale_of_block(x);
            const signed char number = whole_number(x, scale.inverse, scale.is_one());
            reinterpret_cast<signed char*>(page)[row * D + c] = number;
            if (lane == 0) reinterpret_cast<float*>(page + PAGE * D)[row * (D / 32) + c / 32] = scale.scale;
            if (kv_tile == nullptr) continue;
            reinterpret_cast<signed char*>(kv_tile)[Q8Tile<D>::place(at, c)] = number;
            if (lane == 0) *reinterpret_cast<float*>(kv_tile + Q8Tile<D>::scale_place(at, c / 32)) = scale.scale;
        }
    }
    // Stores k and v as q8_0 from registers. A 32-column block has one column in each lane or, IS_ADJACENT, two in each
    // of 16 lanes. Each lane computes the scale of one block.
    template <bool IS_ADJACENT>
    __device__ __forceinline__ void store_registers(const float (&k)[pairs_per_lane][2],
                                                    const float (&v)[pairs_per_lane][2], u8* k_page, u8* v_page,
                                                    u8* kv_tile, int position) const {
        constexpr int of_head = IS_ADJACENT ? pairs_per_lane : 2 * pairs_per_lane, n = 2 * of_head;  // blocks per lane
        const int lane = threadIdx.x % 32, row = position % PAGE, at = position % KV_TILE;
        const int first = IS_ADJACENT ? lane & 16 : 0;  // first lane of the block
        const u32 sharing = IS_ADJACENT ? 0xFFFFu << first : ALL_LANES;
        auto number = [&](int i, int e) { return i < of_head ? k[i % pairs_per_lane][e] : v[i % pairs_per_lane][e]; };
        auto second = [&](int i) { return i % of_head / pairs_per_lane; };  // half of a non-adjacent pair
        auto column = [&](int i) {
            return IS_ADJACENT ? i % pairs_per_lane * 64 + 2 * lane
                               : i % pairs_per_lane * 32 + second(i) * (D / 2) + lane;
        };
        float max_abs[n];
#pragma unroll
        for (int i = 0; i < n; i++)
            max_abs[i] = IS_ADJACENT ? fmaxf(fabsf(number(i, 0)), fabsf(number(i, 1))) : fabsf(number(i, second(i)));
        u32 whole = 0;  // bit mask of finite blocks
#pragma unroll
        for (int i = 0; i < n; i++) {
            const bool is_one = IS_ADJACENT ? fabsf(number(i, 0)) <= 3e38f && fabsf(number(i, 1)) <= 3e38f
                                            : fabsf(number(i, second(i))) <= 3e38f;
            whole |= u32((__ballot_sync(ALL_LANES, is_one) & sharing) == sharing) << i;
        }
        // Butterfly maximum: each step sends the half that a lane does not keep; block lane % n remains.
#pragma unroll
        for (int w = 1; w < n; w *= 2)
#pragma unroll
            for (int i = 0; i < n; i += 2 * w) {
                const float kv_type = lane & w ? max_abs[i + w] : max_abs[i],
                            sent = lane & w ? max_abs[i] : max_abs[i + w];
                max_abs[i] = fmaxf(kv_type, __shfl_xor_sync(ALL_LANES, sent, w));
            }
#pragma unroll
        for (int w = n; w < (IS_ADJACENT ? 16 : 32); w *= 2)
            max_abs[0] = fmaxf(max_abs[0], __shfl_xor_sync(ALL_LANES, max_abs[0], w));
        const Scale scale(max_abs[0], whole >> lane % n & 1);
#pragma unroll
        for (int i = 0; i < n; i++) {
            const float inverse = __shfl_sync(ALL_LANES, scale.inverse, first + i);
            const bool is_v = i >= of_head;
            u8 *const page = is_v ? v_page : k_page, *const to = is_v ? kv_tile + bytes : kv_tile;
            const int c = column(i);
            if (lane == first + i) {
                *reinterpret_cast<float*>(page + PAGE * D + (row * (D / 32) + c / 32) * 4) = scale.scale;
                if (kv_tile != nullptr)
                    *reinterpret_cast<float*>(to + Q8Tile<D>::scale_place(at, c / 32)) = scale.scale;
            }
            const bool are_numbers = whole >> i & 1;
            const u32 one = u8(whole_number(number(i, IS_ADJACENT ? 0 : second(i)), inverse, are_numbers));
            if (IS_ADJACENT) {
                const u16 two = u16(one | u32(u8(whole_number(number(i, 1), inverse, are_numbers))) << 8);
                *reinterpret_cast<u16*>(page + row * D + c) = two;
                if (kv_tile != nullptr) *reinterpret_cast<u16*>(to + Q8Tile<D>::place(at, c)) = two;
            } else {
                page[row * D + c] = u8(one);
                if (kv_tile != nullptr) to[Q8Tile<D>::place(at, c)] = u8(one);
            }
        }
    }

    // Columns of a q head, or of k and v, in one lane: RoPE pairs.
    struct HeadRegisters {
        float x[pairs_per_lane][2], values[pairs_per_lane][2];
    };
    __device__ __forceinline__ int lane_column() const {
        return int(threadIdx.x % 32) * (norm_rope.is_adjacent ? 2 : 1);
    }
    __device__ __forceinline__ void fetch(HeadRegisters& to, int i, bool is_q, int first_head, int kv_head) const {
        const int next = norm_rope.is_adjacent ? 64 : 32, step = norm_rope.is_adjacent ? 1 : D / 2;
        const float* const from = (is_q ? q_of(first_head + i, D) : of_kv(k, kv_head, D)) + lane_column();
        const float* const value = of_kv(v, kv_head, D) + lane_column();
#pragma unroll
        for (int j = 0; j < pairs_per_lane; j++) {
            to.x[j][0] = from[j * next], to.x[j][1] = from[j * next + step];
            if (!is_q) to.values[j][0] = value[j * next], to.values[j][1] = value[j * next + step];
        }
    }
    // Head i of q, or k and v, in registers.
    __device__ __forceinline__ void prepare_in_registers(HeadRegisters& of, int i, bool is_q, float temper, u8* k_row,
                                                         u8* v_row, int position, u8* kv_tile) const {
        const AttendParams& a = stream.a;
        u8* const q = stream.q;
        const int lane = threadIdx.x % 32, base = lane_column();
        const int next = norm_rope.is_adjacent ? 64 : 32, step = norm_rope.is_adjacent ? 1 : D / 2;
        float (&x)[pairs_per_lane][2] = of.x, (&values)[pairs_per_lane][2] = of.values;
        const float (&cosines)[pairs_per_lane] = cosine_registers, (&sines)[pairs_per_lane] = sine_registers;
        // order of norm(): all first halves, then all second halves
        if ((is_q ? norm_rope.q_norm : norm_rope.k_norm) != nullptr) {
            float sum = 0.f;
#pragma unroll
            for (int j = 0; j < 2 * pairs_per_lane; j++)
                sum = __fmaf_rn(x[j % pairs_per_lane][j / pairs_per_lane], x[j % pairs_per_lane][j / pairs_per_lane],
                                sum);
            const float scale = norm_scale(sum, D, norm_rope.eps);
#pragma unroll
            for (int j = 0; j < 2 * pairs_per_lane; j++)
                x[j / 2][j % 2] = __fmul_rn(__fmul_rn(x[j / 2][j % 2], scale),
                                            is_q ? norm_registers[0][j / 2][j % 2] : norm_registers[1][j / 2][j % 2]);
        }
        float max_abs = 0.f;
        bool are_numbers = true;
#pragma unroll
        for (int j = 0; j < pairs_per_lane; j++) {
            const float left = __fsub_rn(__fmul_rn(x[j][0], cosines[j]), __fmul_rn(x[j][1], sines[j]));
            x[j][1] = __fadd_rn(__fmul_rn(x[j][0], sines[j]), __fmul_rn(x[j][1], cosines[j]));
            x[j][0] = left;
            if (is_q) {
                x[j][0] = __fmul_rn(x[j][0], temper), x[j][1] = __fmul_rn(x[j][1], temper);
                max_abs = fmaxf(max_abs, fmaxf(fabsf(x[j][0]), fabsf(x[j][1])));
            } else {
                are_numbers = are_numbers && fabsf(values[j][0]) <= 3e38f && fabsf(values[j][1]) <= 3e38f;
            }
        }
        if (is_q) {
            for (int j = 16; j > 0; j >>= 1) max_abs = fmaxf(max_abs, __shfl_xor_sync(ALL_LANES, max_abs, j));
            const QueryScale query_scale(max_abs);
            u16* const to = reinterpret_cast<u16*>(q + i * G::q_stride);
#pragma unroll
            for (int j = 0; j < pairs_per_lane; j++) {
                to[G::q_column(base + j * next)] = u16(to_half2(__fmul_rn(x[j][0], query_scale.up), 0.f));
                to[G::q_column(base + j * next + step)] = u16(to_half2(__fmul_rn(x[j][1], query_scale.up), 0.f));
            }
            if (lane == 0) stream.shared.queries[i].score_scale = query_scale.score_scale(a);
            return;
        }
        // as check_value
        are_numbers = __all_sync(ALL_LANES, are_numbers);
        if (!are_numbers && lane == 31) x[pairs_per_lane - 1][1] = __int_as_float(0x7fc00000);
        if constexpr (kv_type != F16) {
            if (!are_numbers)
#pragma unroll
                for (int j = 0; j < pairs_per_lane; j++) values[j][0] = values[j][1] = 0.f;
            if (norm_rope.is_adjacent)
                store_registers<true>(x, values, k_row, v_row, kv_tile, position);
            else
                store_registers<false>(x, values, k_row, v_row, kv_tile, position);
        } else {
#pragma unroll
            for (int j = 0; j < 2 * pairs_per_lane; j++) {
                const int c = base + j / 2 * next + j % 2 * step, row = position % PAGE, at = position % KV_TILE;
                const u16 of_k = u16(to_half2_saturated(x[j / 2][j % 2], 0.f)),
                          of_v = u16(to_half2_saturated(are_numbers ? values[j / 2][j % 2] : 0.f, 0.f));
                reinterpret_cast<u16*>(k_row)[row * D + c] = of_k, reinterpret_cast<u16*>(v_row)[row * D + c] = of_v;
                if (kv_tile == nullptr) continue;
                u8* const to = kv_tile + G::place(at, c / 8) + c % 8 * 2;
                *reinterpret_cast<u16*>(to) = of_k, *reinterpret_cast<u16*>(to + bytes) = of_v;
            }
        }
    }
};

}  // namespace

// Parameters of the fused kernels, and their instances by cache type and head size.
#define HEADS_PARAMETERS                                                                                    \
    ATTEND_PARAMETERS, const float *k, const float *v, const float *q_norm, const float *k_norm, int n_rot, \
        int column, int is_adjacent, float eps
#define HEADS_ARGUMENTS ATTEND_ARGUMENTS, NormRope{b, q_norm, k_norm, n_rot, column, is_adjacent, eps}, k, v
#define FOR_EACH_HEAD_SIZE(make)                                                                      \
    make(f16, F16, 64) make(f16, F16, 80) make(f16, F16, 96) make(f16, F16, 128) make(q8_0, Q8_0, 64) \
        make(q8_0, Q8_0, 96) make(q8_0, Q8_0, 128)
