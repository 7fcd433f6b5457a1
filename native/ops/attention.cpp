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

// One range of the past for `n_rows` rows of a sequence from `row` on and the heads that share a KV head. `memory` is
// scratch for the kernel and for what it is told of each query.
void Worker::attend_split(const Step& step, int64_t row, int n_rows, int kv_head, int split, float* memory,
                          const Softmax& to) {
    const int64_t width = p.value_width(step.inputs[0]);
    const int head_dim = step.head_dim;
    const int n_heads = int(width / head_dim) / cache.layers()[size_t(step.layer)].n_kv_heads;
    AttentionTile t{};
    t.n_queries = n_rows * n_heads;
    t.head_dim = head_dim;
    t.scale = step.factor;
    t.softcap = step.softcap;
    t.scratch = memory;
    const float** q = reinterpret_cast<const float**>(memory + kTileQueries * 16 + 32 * head_dim);
    int *first = reinterpret_cast<int*>(q + t.n_queries), *last = first + t.n_queries;
    for (int i = 0; i < t.n_queries; ++i) {
        const int64_t r = row + i / n_heads;
        q[i] = in(step, 0) + r * width + (kv_head * n_heads + i % n_heads) * head_dim;
        first[i] = std::max(split * kSplit, seen_from(step, r));
        last[i] = std::min((split + 1) * kSplit, batch.positions[r] + 1);
    }
    t.q = q;
    t.first = first;
    t.last = last;
    const int32_t* pages = batch.pages + p.row_sequence_[size_t(row)] * batch.max_pages;
    const uint8_t* k_blocks[kSplit / 16];
    const uint8_t* v_blocks[kSplit / 16];
    t.first_block = split * kSplit / 16;
    t.n_blocks = (std::min((split + 1) * kSplit, batch.positions[row + n_rows - 1] + 1) + 15) / 16 - t.first_block;
    for (int b = 0; b < t.n_blocks; ++b) {
        const int position = (t.first_block + b) * 16;
        k_blocks[b] = cache.block(step.layer, pages[position / kPageSize], kv_head, position % kPageSize, false);
        v_blocks[b] = cache.block(step.layer, pages[position / kPageSize], kv_head, position % kPageSize, true);
    }
    t.k_blocks = k_blocks;
    t.v_blocks = v_blocks;
    t.out = to.out;
    t.max = to.max;
    t.sum = to.sum;
    p.kernels_.attend[kv_index(cache.type())](t);
}

void Worker::write_attention(const Step& step, int64_t row, int kv_head, const Softmax& from) {
    const int64_t width = p.value_width(step.outputs[0]);
    const int n_heads = int(width / step.head_dim) / cache.layers()[size_t(step.layer)].n_kv_heads;
    float* y = out(step) + row * width + kv_head * n_heads * step.head_dim;
    for (int h = 0; h < n_heads; ++h)
        for (int c = 0; c < step.head_dim; ++c)
            y[h * step.head_dim + c] = from.out[h * step.head_dim + c] / from.sum[h];
}

namespace {

// Adds the result of the next split to the sum of those before it: always in order of splits.
void merge(const Softmax& to, const Softmax& next, int n_queries, int head_dim) {
    for (int h = 0; h < n_queries; ++h) {
        const float top = std::max(to.max[h], next.max[h]);
        const float old_share = to.max[h] == -INFINITY ? 0.0f : std::exp(to.max[h] - top);
        const float new_share = next.max[h] == -INFINITY ? 0.0f : std::exp(next.max[h] - top);
        to.sum[h] = to.sum[h] * old_share + next.sum[h] * new_share;
        float *a = to.out + h * head_dim, *b = next.out + h * head_dim;
        for (int c = 0; c < head_dim; ++c) a[c] = a[c] * old_share + b[c] * new_share;
        to.max[h] = top;
    }
}

}  // namespace

// Many rows: a task is a block of rows of one sequence and a KV head, all its splits one after another.
void Worker::attend_blocks(const Step& step, int index) {
    const int n_kv = cache.layers()[size_t(step.layer)].n_kv_heads, head_dim = step.head_dim;
    const int n_heads = int(p.value_width(step.inputs[0]) / head_dim) / n_kv;
    float* memory = reinterpret_cast<float*>(p.own_[size_t(id)].data() + p.own_bytes_);
    float* sums = memory + p.attend_numbers_;
    const Softmax whole(sums, 0, kAttendRows * n_heads, head_dim), part(sums, 1, kAttendRows * n_heads, head_dim);
    const int64_t n_tasks = int64_t(p.row_blocks_.size() - 1) * n_kv;
    for (int64_t task; (task = p.next_[size_t(index)].fetch_add(1, std::memory_order_relaxed)) < n_tasks;) {
        // The longest first, so that no thread is left alone with it at the end.
        const int64_t block = (n_tasks - 1 - task) / n_kv;
        const int kv_head = int((n_tasks - 1 - task) % n_kv);
        const int64_t row = p.row_blocks_[size_t(block)];
        const int n_rows = int(p.row_blocks_[size_t(block + 1)] - row);
        const int first = seen_from(step, row) / kSplit, last = batch.positions[row + n_rows - 1] / kSplit;
        attend_split(step, row, n_rows, kv_head, first, memory, whole);
        for (int split = first + 1; split <= last; ++split) {
            attend_split(step, row, n_rows, kv_head, split, memory, part);
            for (int i = 0; i < n_rows; ++i) {
                const Softmax to = whole.from(i * n_heads, head_dim), next = part.from(i * n_heads, head_dim);
                if (seen_from(step, row + i) / kSplit == split) {  // the row sees nothing of the splits before
                    std::copy_n(next.out, n_heads * head_dim, to.out);
                    std::copy_n(next.max, n_heads, to.max);
                    std::copy_n(next.sum, n_heads, to.sum);
                } else if (batch.positions[row + i] / kSplit >= split) {
                    merge(to, next, n_heads, head_dim);
                }
            }
        }
        for (int i = 0; i < n_rows; ++i) write_attention(step, row + i, kv_head, whole.from(i * n_heads, head_dim));
    }
}

void Worker::attend(const Step& step, int index) {
    const int n_kv = cache.layers()[size_t(step.layer)].n_kv_heads;
    const int64_t wanted = 4 * p.pool_.size();
    if (batch.n_rows > wanted || int64_t(p.row_blocks_.size() - 1) * n_kv >= wanted) return attend_blocks(step, index);
    // Few tasks: each split is one of its own; who finishes a row's last split merges them, in order.
    const int n_heads = int(p.value_width(step.inputs[0]) / step.head_dim) / n_kv;
    const auto n_splits = [&](int64_t row) {
        return batch.positions[row] / kSplit + 1 - seen_from(step, row) / kSplit;
    };
    int64_t n_tasks = 0;
    for (int64_t row = 0; row < batch.n_rows; ++row) n_tasks += int64_t(n_splits(row)) * n_kv;
    if (size_t(n_tasks * n_heads * (step.head_dim + 2)) > p.partial_numbers_) return attend_blocks(step, index);
    float* memory = reinterpret_cast<float*>(p.own_[size_t(id)].data() + p.own_bytes_);
    float* shared = reinterpret_cast<float*>(p.partials_.data());
    const auto part = [&](int64_t i) { return Softmax(shared, i, n_heads, step.head_dim); };
    for (int64_t task; (task = p.next_[size_t(index)].fetch_add(1, std::memory_order_relaxed)) < n_tasks;) {
        int64_t row = 0, before = 0;  // splits of earlier rows
        while (task >= (before + n_splits(row)) * n_kv) before += n_splits(row++);
        const int64_t local = task - before * n_kv;
        const int splits = n_splits(row), first = seen_from(step, row) / kSplit;
        const int kv_head = int(local / splits), split = int(local % splits);
        const int64_t base = before * n_kv + int64_t(kv_head) * splits;
        attend_split(step, row, 1, kv_head, first + split, memory, part(base + split));
        std::atomic<int32_t>& done = p.finished_[size_t(row * n_kv + kv_head)];
        if (done.fetch_add(1, std::memory_order_acq_rel) + 1 < splits) continue;
        done.store(0, std::memory_order_relaxed);
        for (int i = 1; i < splits; ++i) merge(part(base), part(base + i), n_heads, step.head_dim);
        write_attention(step, row, kv_head, part(base));
    }
}

}  // namespace woolly
