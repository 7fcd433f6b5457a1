// attend_compressed: softmax attention over the latest rows of one cache entry together with the blocks of another. All
// heads share one KV head, whose keys are also the values.
#include <algorithm>
#include <stdexcept>

#include "cpu/ops/functions.h"
#include "cpu/ops/hadamard.h"
#include "cpu/ops/table.h"
#include "cpu/program/worker.h"

namespace woolly {

namespace {

constexpr int kHeadsTogether = 16;  // heads of a row that share opened cache rows

struct AttendCompressed final : Step {
    const Value q, chosen, y;  // chosen has width 0 if rows attend to all blocks
    const Vector* const sinks;
    const int entry, blocks, head_dim, window, every;
    const float scale;
    const int heads, room;
    const size_t sums_at,
        keys_at;  // indices of the first f32 of a worker's memory for the sums of two splits, and for keys

    explicit AttendCompressed(const Arguments& a)
        : q(a.input(0)),
          chosen(a.inputs.size() > 3 ? a.input(3) : Value{}),
          y(a.output(0)),
          sinks(a.vector("sinks")),
          entry(a.integer("entry")),
          blocks(a.integer("blocks")),
          head_dim(a.integer("head_dim")),
          window(a.integer("window")),
          every(a.integer("every")),
          scale(a.number("scale")),
          heads(int(q.width / std::max(1, head_dim))),
          room((head_dim + 31) / 32 * 32),
          sums_at((attention_scratch(room, room) + size_t(kHeadsTogether) * size_t(room) + 15) / 16 * 16),
          keys_at(sums_at + size_t(2 * kHeadsTogether) * size_t(room + 2)) {
        if (head_dim < 1 || window < 1 || every < 2 || q.width != int64_t(heads) * head_dim || y.width != q.width ||
            (sinks != nullptr && sinks->n != heads))
            a.fail("has heads, a window or blocks that do not fit");
        a.program->need_own((keys_at + size_t(kSplit + kChunk) * size_t(room)) * 4);
    }

    void check(const BatchView& batch, const Cache& cache) const override {
        for (const int one : {entry, blocks})
            if (size_t(one) >= cache.layers().size() || cache.layers()[size_t(one)].k_dim != cache.padded(head_dim))
                throw std::invalid_argument("the cache was made for another plan");
        if (batch.attn_ranges != nullptr)
            throw std::invalid_argument("rows that see blocks see no others, whatever the batch says");
    }

    int n_latest(const Worker& w, int64_t row) const { return std::min(window, w.batch.positions[row] + 1); }
    int n_blocks(const Worker& w, int64_t row) const {
        const int all = (w.batch.positions[row] + 1) / every;
        return chosen.width > 0 ? std::min(all, int(chosen.width)) : all;
    }
    // Position of the i-th visible block of a row, which is the position of the block's last row.
    int block_at(int64_t row, int i) const {
        return chosen.width > 0 ? int(chosen.data[row * chosen.width + i]) : (i + 1) * every - 1;
    }

    void gather(const Worker& w, int64_t row, int first, int n, int columns, const uint8_t** to) const;
    void heads_of(const Worker& w, int64_t row, int first, int n) const;

    void run(Worker& w) const override {
        const int n_groups = (heads + kHeadsTogether - 1) / kHeadsTogether;
        w.take(w.batch.n_rows * n_groups, [&](int64_t task) {
            const int first = int(task % n_groups) * kHeadsTogether;
            // Longest rows first.
            heads_of(w, w.batch.n_rows - 1 - task / n_groups, first, std::min(kHeadsTogether, heads - first));
        });
    }
};

// Gathers the rows visible to a row from index `first` on, latest rows before blocks, as blocks of f32.
void AttendCompressed::gather(const Worker& w, int64_t row, int first, int n, int columns, const uint8_t** to) const {
    const KvKernels& kept = w.program.kernels().kv[int(w.cache.k_type())];
    float *keys = reinterpret_cast<float*>(w.own()) + keys_at, *open = keys + kSplit * room;
    const int latest = n_latest(w, row), oldest = w.batch.positions[row] + 1 - latest;
    const int64_t sequence = w.sequence_of(row);
    int last_entry = -1, last = -1;  // cache block that is open
    for (int i = 0; i < n; ++i) {
        const bool is_latest = first + i < latest;
        const int from = is_latest ? entry : blocks;
        const int position = is_latest ? oldest + first + i : block_at(row, first + i - latest);
        if (from != last_entry || position / 16 != last) {
            last_entry = from, last = position / 16;
            const int32_t page = w.cache.pages(w.batch, from, sequence)[position / kPageSize];
            const uint8_t* block = w.cache.block(from, page, 0, position % kPageSize, false);
            AttentionTile t{};
            t.k_dim = t.v_dim = columns, t.n_blocks = 1;
            t.k_blocks = &block;
            kept.open_k(t, 0, 1, open);
        }
        float* block = keys + i / 16 * 16 * columns;
        for (int c = 0; c < columns; ++c) block[16 * c + i % 16] = open[kChunk * c + position % 16];
    }
    for (int b = 0; b < (n + 15) / 16; ++b) to[b] = reinterpret_cast<const uint8_t*>(keys + b * 16 * columns);
}

// Computes some heads of a row, split by split; splits are merged in order.
void AttendCompressed::heads_of(const Worker& w, int64_t row, int first_head, int n) const {
    const KernelTable& kernels = w.program.kernels();
    const int columns = w.cache.padded(head_dim), n_seen = n_latest(w, row) + n_blocks(w, row);
    const bool rotated = is_rotated(w.cache.k_type());
    float *own = reinterpret_cast<float*>(w.own()), *copies = own + attention_scratch(room, room);
    const float* queries[kHeadsTogether];
    for (int h = 0; h < n; ++h) {
        float* copy = copies + h * room;
        std::copy_n(q.data + row * q.width + (first_head + h) * head_dim, head_dim, copy);
        std::fill(copy + head_dim, copy + columns, 0.0f);
        if (rotated) hadamard_transform(copy, columns, hadamard_size(columns, true));
        queries[h] = copy;
    }
    const auto part = [&](int i) {
        float* base = own + sums_at + size_t(i * kHeadsTogether) * size_t(room + 2);
        return AttentionSums{base, base + n * columns, base + n * columns + n};
    };
    int firsts[kHeadsTogether], lasts[kHeadsTogether];
    const uint8_t* keys[kSplit / 16];
    for (int at = 0; at < n_seen; at += kSplit) {
        const int length = std::min(kSplit, n_seen - at);
        gather(w, row, at, length, columns, keys);
        std::fill_n(firsts, n, at);
        std::fill_n(lasts, n, at + length);
        AttentionTile t{};
        t.q = queries, t.n_queries = n;
        t.first = firsts, t.last = lasts;
        t.k_dim = t.v_dim = columns;
        t.k = t.v = &kernels.kv[int(KvType::f32)];
        t.scale = scale;
        t.k_blocks = keys;
        t.first_block = at / 16, t.n_blocks = (length + 15) / 16;
        t.scratch = own;
        t.sums = part(at == 0 ? 0 : 1);
        kernels.attend(t);
        if (at > 0) kernels.merge(part(0), part(1), n, columns);
    }
    const AttentionSums whole = part(0);
    for (int h = 0; h < n; ++h) {
        if (rotated) hadamard_transform(whole.out + h * columns, columns, hadamard_size(columns, true));
        float sum = whole.sum[h];
        if (sinks != nullptr) sum += exp_of(sinks->data[first_head + h] - whole.max[h]);
        float* to = y.data + row * y.width + (first_head + h) * head_dim;
        for (int c = 0; c < head_dim; ++c) to[c] = whole.out[h * columns + c] / sum;
    }
}

}  // namespace

std::unique_ptr<Step> make_attend_compressed(const Arguments& a) { return std::make_unique<AttendCompressed>(a); }

}  // namespace woolly
