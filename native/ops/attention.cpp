// store: norm, turn, write K and V. attend: fixed splits of the past, merged in order.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "program/worker.h"

namespace woolly {

namespace {

void turn(float* head, const Step& step, const float* cosine, const float* sine) {
    const int half = step.n_rot / 2;
    for (int i = 0; i < half; ++i) {
        float& a = head[step.adjacent ? 2 * i : i];
        float& b = head[step.adjacent ? 2 * i + 1 : i + half];
        const float x = a, y = b;
        a = x * cosine[i] - y * sine[i];
        b = x * sine[i] + y * cosine[i];
    }
}

}  // namespace

void Worker::store(const Step& step) {
    const int64_t head_dim = step.head_dim;
    const int64_t q_width = p.value_width(step.inputs[0]), kv_width = p.value_width(step.inputs[1]);
    const int64_t n_q = q_width / head_dim, n_kv = kv_width / head_dim;
    const int kv = kv_index(cache.type());
    float head[512];
    const Range range = share(batch.n_rows * (n_q + n_kv));
    for (int64_t task = range.first; task < range.last; ++task) {
        const int64_t row = task / (n_q + n_kv), h = task % (n_q + n_kv);
        const int32_t position = batch.positions[row];
        const bool is_q = h < n_q;
        const int64_t at = is_q ? row * q_width + h * head_dim : row * kv_width + (h - n_q) * head_dim;
        std::memcpy(head, (is_q ? in(step, 0) : in(step, 1)) + at, size_t(head_dim) * 4);
        const int norm = is_q ? step.norm : step.k_norm;
        if (norm >= 0) p.kernels_.rms_norm(head, p.vectors_[size_t(norm)].data, step.eps, head_dim, head);
        if (step.n_rot > 0)
            turn(head, step, batch.cosines + position * (step.n_rot / 2), batch.sines + position * (step.n_rot / 2));
        if (is_q) {
            std::memcpy(out(step) + at, head, size_t(head_dim) * 4);
            continue;
        }
        const int32_t page = batch.pages[p.row_sequence_[size_t(row)] * batch.max_pages + position / kPageSize];
        const int slot = position % 16, in_page = position % kPageSize;
        p.kernels_.store_k[kv](head, step.head_dim, slot, cache.block(step.layer, page, int(h - n_q), in_page, false));
        p.kernels_.store_v[kv](in(step, 2) + at, step.head_dim, slot,
                               cache.block(step.layer, page, int(h - n_q), in_page, true));
    }
}

void Worker::attend_split(const Step& step, int64_t row, int kv_head, int split, float* out_, float* max, float* sum) {
    const int n_heads =
        int(p.value_width(step.inputs[0]) / step.head_dim) / cache.layers()[size_t(step.layer)].n_kv_heads;
    const int32_t position = batch.positions[row];
    const int32_t* pages = batch.pages + p.row_sequence_[size_t(row)] * batch.max_pages;
    const int seen_from = step.window > 0 ? std::max(0, position - step.window + 1) : 0;
    AttentionTask t{};
    t.first = std::max(split * kSplit, seen_from);
    t.last = std::min((split + 1) * kSplit, position + 1);
    t.first_block = split * kSplit / 16;
    const uint8_t* k_blocks[kSplit / 16];
    const uint8_t* v_blocks[kSplit / 16];
    for (int b = t.first / 16; b * 16 < t.last; ++b) {
        const int32_t page = pages[b * 16 / kPageSize];
        k_blocks[b - t.first_block] = cache.block(step.layer, page, kv_head, b * 16 % kPageSize, false);
        v_blocks[b - t.first_block] = cache.block(step.layer, page, kv_head, b * 16 % kPageSize, true);
    }
    t.k_blocks = k_blocks;
    t.v_blocks = v_blocks;
    t.q = in(step, 0) + row * p.value_width(step.inputs[0]) + kv_head * n_heads * step.head_dim;
    t.n_heads = n_heads;
    t.head_dim = step.head_dim;
    t.scale = step.factor;
    t.softcap = step.softcap;
    t.out = out_;
    t.max = max;
    t.sum = sum;
    p.kernels_.attend[kv_index(cache.type())](t);
}

void Worker::write_attention(const Step& step, int64_t row, int kv_head, const float* merged, const float* sum) {
    const int64_t width = p.value_width(step.outputs[0]);
    const int n_heads = int(width / step.head_dim) / cache.layers()[size_t(step.layer)].n_kv_heads;
    float* y = out(step) + row * width + kv_head * n_heads * step.head_dim;
    for (int h = 0; h < n_heads; ++h)
        for (int c = 0; c < step.head_dim; ++c) y[h * step.head_dim + c] = merged[h * step.head_dim + c] / sum[h];
}

namespace {

// Adds the result of the next split to the sum of those before it: always in order of splits.
void merge(float* out, float* max, float* sum, const float* next, const float* next_max, const float* next_sum,
           int n_heads, int head_dim) {
    for (int h = 0; h < n_heads; ++h) {
        const float top = std::max(max[h], next_max[h]);
        const float old_share = max[h] == -INFINITY ? 0.0f : std::exp(max[h] - top);
        const float new_share = next_max[h] == -INFINITY ? 0.0f : std::exp(next_max[h] - top);
        sum[h] = sum[h] * old_share + next_sum[h] * new_share;
        for (int c = 0; c < head_dim; ++c)
            out[h * head_dim + c] = out[h * head_dim + c] * old_share + next[h * head_dim + c] * new_share;
        max[h] = top;
    }
}

}  // namespace

// Many rows: a task is a block of rows of one sequence and a KV head, all its splits one after another.
void Worker::attend_blocks(const Step& step, int index) {
    const int n_kv = cache.layers()[size_t(step.layer)].n_kv_heads, head_dim = step.head_dim;
    const int64_t width = p.value_width(step.inputs[0]);
    const int n_heads = int(width / head_dim) / n_kv;
    float* mine = reinterpret_cast<float*>(p.own_[size_t(id)].data() + p.own_bytes_);
    float* const keys = mine;
    float* const out_ = keys + kTileQueries * 16 + 32 * head_dim;
    const int most = kAttendRows * n_heads;
    float *const max = out_ + most * head_dim, *const sum = max + most;
    float *const next_out = sum + most, *const next_max = next_out + most * head_dim, *const next_sum = next_max + most;
    const float** const q = reinterpret_cast<const float**>(next_sum + most + most % 2);
    int *const first = reinterpret_cast<int*>(q + most), *const last = first + most;

    const int64_t n_tasks = int64_t(p.row_blocks_.size() - 1) * n_kv;
    for (int64_t task; (task = p.next_[size_t(index)].fetch_add(1, std::memory_order_relaxed)) < n_tasks;) {
        // The longest first, so that no thread is left alone with it at the end.
        const int64_t block = (n_tasks - 1 - task) / n_kv;
        const int kv_head = int((n_tasks - 1 - task) % n_kv);
        const int64_t row = p.row_blocks_[size_t(block)];
        const int n_rows = int(p.row_blocks_[size_t(block + 1)] - row), n_queries = n_rows * n_heads;
        const int32_t* pages = batch.pages + p.row_sequence_[size_t(row)] * batch.max_pages;
        const auto seen_from = [&](int64_t r) {
            return step.window > 0 ? std::max(0, batch.positions[r] - step.window + 1) : 0;
        };
        const int first_split = seen_from(row) / kSplit, last_split = batch.positions[row + n_rows - 1] / kSplit;
        for (int split = first_split; split <= last_split; ++split) {
            AttentionTile t{};
            for (int i = 0; i < n_queries; ++i) {
                const int64_t r = row + i / n_heads;
                q[i] = in(step, 0) + r * width + (kv_head * n_heads + i % n_heads) * head_dim;
                first[i] = std::max(split * kSplit, seen_from(r));
                last[i] = std::min((split + 1) * kSplit, batch.positions[r] + 1);
            }
            t.q = q, t.first = first, t.last = last, t.n_queries = n_queries, t.head_dim = head_dim;
            t.scale = step.factor, t.softcap = step.softcap, t.scratch = keys;
            t.first_block = split * kSplit / 16;
            t.n_blocks =
                (std::min((split + 1) * kSplit, batch.positions[row + n_rows - 1] + 1) + 15) / 16 - t.first_block;
            const uint8_t* k_blocks[kSplit / 16] = {};
            const uint8_t* v_blocks[kSplit / 16] = {};
            for (int b = 0; b < t.n_blocks; ++b) {
                const int position = (t.first_block + b) * 16;
                k_blocks[b] =
                    cache.block(step.layer, pages[position / kPageSize], kv_head, position % kPageSize, false);
                v_blocks[b] = cache.block(step.layer, pages[position / kPageSize], kv_head, position % kPageSize, true);
            }
            t.k_blocks = k_blocks, t.v_blocks = v_blocks;
            const bool is_first = split == first_split;
            t.out = is_first ? out_ : next_out, t.max = is_first ? max : next_max, t.sum = is_first ? sum : next_sum;
            p.kernels_.attend_tile[kv_index(cache.type())](t);
            for (int i = 0; !is_first && i < n_rows; ++i) {
                // A row that has not begun has nothing to add to; one that has ended has nothing to add.
                const int at = i * n_heads;
                if (seen_from(row + i) / kSplit == split) {
                    std::copy_n(next_out + at * head_dim, n_heads * head_dim, out_ + at * head_dim);
                    std::copy_n(next_max + at, n_heads, max + at);
                    std::copy_n(next_sum + at, n_heads, sum + at);
                } else if (batch.positions[row + i] / kSplit >= split) {
                    merge(out_ + at * head_dim, max + at, sum + at, next_out + at * head_dim, next_max + at,
                          next_sum + at, n_heads, head_dim);
                }
            }
        }
        for (int i = 0; i < n_rows; ++i)
            write_attention(step, row + i, kv_head, out_ + i * n_heads * head_dim, sum + i * n_heads);
    }
}

void Worker::attend(const Step& step, int index) {
    const int n_kv = cache.layers()[size_t(step.layer)].n_kv_heads;
    const int64_t width = p.value_width(step.inputs[0]);
    const int n_heads = int(width / step.head_dim) / n_kv;
    const int64_t numbers = int64_t(n_heads) * (step.head_dim + 2);
    const auto part = [&](float* base, int64_t i, float** o, float** m, float** s) {
        *o = base + i * numbers;
        *m = *o + n_heads * step.head_dim;
        *s = *m + n_heads;
    };
    const auto first_split = [&](int64_t row) {
        return step.window > 0 ? std::max(0, batch.positions[row] - step.window + 1) / kSplit : 0;
    };
    const auto n_splits = [&](int64_t row) { return batch.positions[row] / kSplit + 1 - first_split(row); };
    float *o, *m, *s, *o2, *m2, *s2;
    auto& next = p.next_[size_t(index)];

    if (batch.n_rows > 4 * p.pool_.size()) return attend_blocks(step, index);
    // Few rows: each split is a task of its own; who finishes a row's last split merges them, in order.
    int64_t n_tasks = 0;
    for (int64_t row = 0; row < batch.n_rows; ++row) n_tasks += int64_t(n_splits(row)) * n_kv;
    float* shared = reinterpret_cast<float*>(p.partials_.data());
    for (int64_t task; (task = next.fetch_add(1, std::memory_order_relaxed)) < n_tasks;) {
        int64_t row = 0, before = 0;  // splits of earlier rows
        while (task >= (before + n_splits(row)) * n_kv) before += n_splits(row++);
        const int64_t local = task - before * n_kv;
        const int splits = n_splits(row), first = first_split(row);
        const int kv_head = int(local / splits), split = int(local % splits);
        const int64_t base = before * n_kv + int64_t(kv_head) * splits;
        part(shared, base + split, &o, &m, &s);
        attend_split(step, row, kv_head, first + split, o, m, s);
        std::atomic<int32_t>& done = p.finished_[size_t(row * n_kv + kv_head)];
        if (done.fetch_add(1, std::memory_order_acq_rel) + 1 < splits) continue;
        done.store(0, std::memory_order_relaxed);
        part(shared, base, &o, &m, &s);
        for (int i = 1; i < splits; ++i) {
            part(shared, base + i, &o2, &m2, &s2);
            merge(o, m, s, o2, m2, s2, n_heads, step.head_dim);
        }
        write_attention(step, row, kv_head, o, s);
    }
}

}  // namespace woolly
