// attend: softmax attention over the cache, causal or bidirectional within a text, in fixed splits of the positions
// that are merged in order.
#include <algorithm>
#include <cmath>

#include "cpu/ops/attend_scratch.h"
#include "cpu/ops/centered.h"
#include "cpu/ops/chosen.h"
#include "cpu/ops/f64_math.h"
#include "cpu/ops/functions.h"
#include "cpu/ops/hadamard.h"
#include "cpu/ops/table.h"
#include "cpu/program/worker.h"

namespace woolly {

namespace {

constexpr int64_t kTogether = 8;  // splits per task of a worker, if there are many

struct Attend final : Step {
    const Value q, chosen, y;      // chosen has width 0 if rows attend to all unmasked positions
    const int n_chosen, of_block;  // maximum chosen positions per row, and positions per block
    const Vector* const sinks;     // attention sinks: a score per head without a value; null: none
    const int entry, head_dim, v_dim;
    const bool is_chunked, sees_later;   // rows also attend to later rows of their text
    const bool sees_block;               // rows attend to exactly the range given by the batch
    const bool sees_since, sees_before;  // rows attend from the position given by the batch on, or before it
    const bool is_strict;                // rows never attend to later rows, even if the batch extends their range
    const int window;
    const float scale, softcap;
    const double temper;
    const int temper_length, temper_offset;
    const KeyBias key_bias;  // bias that store left out of the keys
    const int room, v_room;  // head_dim padded to a multiple of the block size of every cache type
    const size_t numbers;    // f32 in a worker's memory for the kernel, including the query's data and a copy of it
    size_t gathered;  // index of the f32 after these and the sums of two splits, where gathered keys and values begin
    AttendScratch& scratch;
    const ByDistance* by_distance = nullptr;  // relative position bias; null: none
    std::vector<float> slopes;                // ALiBi slope of each head; empty: none

    explicit Attend(const Arguments& a)
        : q(a.input(0)),
          chosen(a.inputs.size() > 1 ? a.input(1) : Value{}),
          y(a.output(0)),
          n_chosen(chosen.width > 0 ? a.integer("chosen") : 0),
          of_block(chosen.width > 0 ? a.integer("block") : 1),
          sinks(a.vector("sinks")),
          entry(a.integer("entry")),
          head_dim(a.integer("head_dim")),
          v_dim(int(y.width / std::max<int64_t>(1, q.width / std::max(1, head_dim)))),
          is_chunked(a.text("mask") == "chunked"),
          sees_later(a.text("mask") == "all"),
          sees_block(a.text("mask") == "block"),
          sees_since(a.text("mask") == "since"),
          sees_before(a.text("mask") == "before"),
          is_strict(a.text("mask") == "causal"),
          window(a.integer("window")),
          scale(a.number("scale")),
          softcap(a.number("softcap")),
          temper(a.number("temper")),
          temper_length(a.integer("temper_length")),
          temper_offset(a.integer("temper_offset")),
          key_bias(a, head_dim),
          room((head_dim + 31) / 32 * 32),
          v_room((v_dim + 31) / 32 * 32),
          numbers((attention_scratch(room, v_room) + (10 + size_t(room + key_bias.n_terms())) * max_queries() + 15) /
                  16 * 16),
          scratch(a.program->scratch<AttendScratch>()) {
        if (!is_chunked && !sees_later && !sees_block && !sees_since && !sees_before && !is_strict &&
            a.text("mask") != "")
            a.fail("knows no mask \"" + a.text("mask") + "\"");
        if (head_dim < 1 || v_dim < 1 || y.width != q.width / head_dim * v_dim) a.fail("has heads that do not fit");
        if (temper != 0 && temper_length < 1) a.fail("needs a temper_length of at least 1");
        // Each head may have its own KV head.
        scratch.max_block_rows = std::min<int64_t>(scratch.max_block_rows, max_block_rows());
        scratch.group = std::max(scratch.group, size_t(Softmax::numbers(1, v_room) * (q.width / head_dim)) * 4);
        scratch.heads = std::max(scratch.heads, q.width / head_dim);
        // Followed by the sums of two splits.
        const size_t sums = 2 * size_t(Softmax::numbers(int64_t(max_queries()), v_room));
        gathered = numbers + sums;
        const size_t gather =
            n_chosen > 0 ? kSplit * size_t(room + v_room) + Gathered::opened(std::max(room, v_room)) : 0;
        a.program->need_own((gathered + gather) * 4);
        if (chosen.width > 0 && (n_chosen < 1 || of_block < 1 || window > 0 || a.text("mask") != ""))
            a.fail("knows no such choice of positions");
        const float alibi = a.number("alibi");
        const Vector* distances = a.vector("distances");
        const int n_all = int(q.width / head_dim);
        if ((alibi != 0 && is_chunked) || (distances != nullptr && !sees_later && !sees_since))
            a.fail("knows no such scores by distance");
        if (alibi != 0) slopes = slopes_of(alibi, n_all);
        if (distances != nullptr) {  // rows of whole texts come together
            const int64_t longest = sees_later ? a.program->max_rows() : 0;
            // Constructed from the arguments only if the key is missing: layers with an existing table build none.
            by_distance =
                &scratch.tables.try_emplace({distances, n_all, sees_later}, *distances, n_all, longest).first->second;
        }
    }

    // Temperature of q at a position.
    float grown(int position) const {
        const int steps = std::max(0, position + temper_offset) / temper_length;
        return float(1.0 + double(temper) * log_double(1.0 + steps));
    }
    // True if V is a part of K.
    bool is_inside(const Worker& w) const { return w.cache.layers()[size_t(entry)].v_dim == 0; }
    // Columns of a head of the result, padded to blocks of the cache types.
    int stored(const Worker& w) const { return w.cache.padded(v_dim); }

    // Queries per block of rows: at most all heads share one KV head.
    int max_block_rows() const { return sees_later || sees_block ? kMaxMaskedRows : kMaxBlockRows; }
    size_t max_queries() const { return size_t(max_block_rows() * (q.width / head_dim)); }
    int n_kv_heads(const Worker& w) const { return w.cache.layers()[size_t(entry)].n_kv_heads; }
    // Query heads per KV head.
    int n_heads(const Worker& w) const { return int(q.width / head_dim) / n_kv_heads(w); }
    // True if a row attends to chosen positions; then positions are indices into its chosen list, starting at 0.
    bool has_chosen(const Worker& w, int64_t row) const { return n_chosen > 0 && w.batch.positions[row] >= n_chosen; }
    // First visible position of a row according to the batch.
    int said_first(const Worker& w, int64_t row) const {
        return w.batch.attn_ranges == nullptr ? 0 : w.batch.attn_ranges[2 * row];
    }
    // First visible position of a row, and the end of its visible range (exclusive).
    int seen_from(const Worker& w, int64_t row) const {
        const int position = w.batch.positions[row];
        if (sees_block || sees_since) return said_first(w, row);
        if (window == 0) return 0;
        if (is_chunked) return position / window * window;
        return std::max(0, position - (sees_later ? window / 2 : window - 1));
    }
    int seen_to(const Worker& w, int64_t row) const {
        if (has_chosen(w, row)) return count_chosen(w.batch.positions[row], n_chosen, of_block);
        if (sees_before) return std::max(1, said_first(w, row));  // none before it: the first, whose output is unused
        if (!sees_later)
            return w.batch.attn_ranges == nullptr || is_strict ? w.batch.positions[row] + 1
                                                               : w.batch.attn_ranges[2 * row + 1];
        const int end = w.batch.positions[w.batch.offsets[w.sequence_of(row) + 1] - 1] + 1;
        return window > 0 ? std::min(end, w.batch.positions[row] + window / 2 + 1) : end;
    }

    int64_t rows_to_cut(const BatchView& batch) const override { return y.rows(batch); }
    void check(const BatchView& batch, const Cache& cache) const override {
        if (key_bias.bias != nullptr && (!is_rotated(cache.k_type()) || n_chosen > 0))
            throw std::invalid_argument("only keys of q4 that are read in order are kept without their bias");
        if (sees_later || sees_block) batch.check_whole();
        if (n_chosen > 0 && batch.attn_ranges != nullptr)
            throw std::invalid_argument("rows that choose positions see no others, whatever the batch says");
        if (sees_block && batch.attn_ranges == nullptr)
            throw std::invalid_argument("the batch does not say what rows see");
        if (batch.attn_ranges != nullptr && !sees_later && !is_strict) check_attn_ranges(batch);
    }
    // Start and end of the visible range never decrease from row to row: a block of rows is computed from the first
    // row's start to the last one's end. The range is within the window and ends within the batch. Rows that attend to
    // exactly the batch's range need not attend to themselves.
    void check_attn_ranges(const BatchView& batch) const {
        for (int64_t s = 0; s < batch.n_sequences; ++s) {
            const int32_t first = batch.offsets[s], last = batch.offsets[s + 1] - 1;
            for (int32_t r = first; r <= last; ++r) {
                const int32_t position = batch.positions[r], from = batch.attn_ranges[2 * r],
                              to = batch.attn_ranges[2 * r + 1];
                const bool has_own = sees_block || (from <= position && position < to);
                const bool fits = from >= 0 && from < to && has_own && to <= batch.positions[last] + 1;
                const bool grows =
                    r == first || (from >= batch.attn_ranges[2 * r - 2] && to >= batch.attn_ranges[2 * r - 1]);
                if (!fits || !grows) throw std::invalid_argument("a row sees positions that do not fit its batch");
                if (window > 0 && !sees_block && (position - from >= window || (is_chunked && to > position + 1)))
                    throw std::invalid_argument("rows that see each other are more than a window of " +
                                                std::to_string(window));
            }
        }
    }
    // One split of the context of a row, or of several rows from it on.
    struct Part {
        int64_t row;
        int kv_head, split;
    };
    void blocks(const Worker& w, const Part& part, int n, const uint8_t** k_blocks, const uint8_t** v_blocks) const;
    void split(const Worker& w, const Part& part, int n_rows, const Part* next, const Softmax& to) const;
    void write(const Worker& w, int64_t row, int kv_head, const Softmax& from) const;
    void rows(const Worker& w, int64_t row, int n_rows, int kv_head) const;
    void gather(const Worker& w, int64_t row, int kv_head, AttentionTile& t, const uint8_t** k,
                const uint8_t** v) const;
    void run_blocks(const Worker& w) const;
    void run(Worker& w) const override;
};

// Cache blocks of the first n blocks of a split.
void Attend::blocks(const Worker& w, const Part& part, int n, const uint8_t** k_blocks,
                    const uint8_t** v_blocks) const {
    const int32_t* pages = w.cache.pages(w.batch, entry, w.sequence_of(part.row));
    for (int b = 0; b < n; ++b) {
        const int position = part.split * kSplit + 16 * b;
        // A page invisible to all rows may be absent: any other page stands in for it, and is masked.
        const int32_t page = std::max(0, pages[position / kPageSize]);
        k_blocks[b] = w.cache.block(entry, page, part.kv_head, position % kPageSize, false);
        if (!is_inside(w)) v_blocks[b] = w.cache.block(entry, page, part.kv_head, position % kPageSize, true);
    }
}

// Attends to one range of the context for `n_rows` rows of a sequence and the heads that share a KV head. `next` is the
// split that this worker probably processes next, for prefetching; null: none.
void Attend::split(const Worker& w, const Part& part, int n_rows, const Part* next, const Softmax& to) const {
    const auto [row, kv_head, split] = part;
    const int group = n_heads(w);
    const bool inside = is_inside(w), rotated = is_rotated(w.cache.k_type());
    const KernelTable& kernels = w.program.kernels();
    AttentionTile t{};
    t.k = &kernels.kv[int(w.cache.k_type())], t.v = &kernels.kv[int(w.cache.v_type())];
    t.n_queries = n_rows * group;
    t.k_dim = w.cache.padded(head_dim);
    t.v_dim = stored(w);
    t.scale = scale;
    t.softcap = softcap;
    t.scratch = reinterpret_cast<float*>(w.own());
    const float** queries = reinterpret_cast<const float**>(t.scratch + attention_scratch(room, v_room));
    const float **bias = queries + t.n_queries, **terms = bias + t.n_queries;
    int *first = reinterpret_cast<int*>(terms + t.n_queries), *last = first + t.n_queries;
    int* positions = last + t.n_queries;
    float *falls = reinterpret_cast<float*>(positions + t.n_queries), *copy = falls + t.n_queries;
    for (int64_t r = row, i = 0; r < row + n_rows; ++r) {
        const int from = std::max(split * kSplit, seen_from(w, r)),
                  to_end = std::min((split + 1) * kSplit, seen_to(w, r));
        const float factor = temper == 0 ? 1.0f : grown(w.batch.positions[r]);
        for (int h = 0; h < group; ++h, ++i) {
            queries[i] = q.data + r * q.width + (kv_head * group + h) * head_dim;
            if (temper != 0 || t.k_dim != head_dim || rotated) {
                for (int c = 0; c < head_dim; ++c) copy[c] = queries[i][c] * factor;
                std::fill(copy + head_dim, copy + t.k_dim, 0.0f);
                if (key_bias.bias != nullptr) {
                    terms[i] = copy + t.k_dim;
                    key_bias.terms(w.batch, split * kSplit, kv_head, copy, scale, copy + t.k_dim);
                }
                if (rotated) hadamard_transform(copy, t.k_dim, hadamard_size(t.k_dim, inside));
                queries[i] = copy;
                copy += t.k_dim + key_bias.n_terms();
            }
            first[i] = from;
            last[i] = to_end;
            positions[i] = w.batch.positions[r];
            if (!slopes.empty()) falls[i] = slopes[size_t(kv_head * group + h)];
            if (by_distance != nullptr)
                bias[i] = by_distance->of(kv_head * group + h, w.batch.positions[r], split * kSplit);
        }
    }
    t.bias = by_distance != nullptr ? bias : nullptr;
    t.terms = terms, t.n_terms = key_bias.n_terms();
    t.rotations = key_bias.bias == nullptr ? nullptr : key_bias.rotations->rows.data();
    t.slopes = slopes.empty() ? nullptr : falls;
    t.positions = positions;
    t.q = queries;
    t.first = first;
    t.last = last;
    constexpr int most = kSplit / 16;
    const uint8_t *k_blocks[most], *v_blocks[most], *next_k[most], *next_v[most];
    t.first_block = split * most;
    t.n_blocks = (std::min((split + 1) * kSplit, seen_to(w, row + n_rows - 1)) + 15) / 16 - t.first_block;
    if (has_chosen(w, row)) {
        gather(w, row, kv_head, t, k_blocks, v_blocks);
    } else {
        blocks(w, part, t.n_blocks, k_blocks, v_blocks);
    }
    // Only complete splits: a partial one is the last of its row, with little left to prefetch.
    if (next != nullptr && !has_chosen(w, next->row) && seen_to(w, next->row) >= (next->split + 1) * kSplit) {
        blocks(w, *next, most, next_k, next_v);
        t.next_k = next_k;
        t.next_v = inside ? nullptr : next_v;
    }
    t.k_blocks = k_blocks;
    t.v_blocks = inside ? nullptr : v_blocks;
    t.sums = to;
    kernels.attend(t);
}

// Gathers the blocks of a tile of one row with chosen positions.
void Attend::gather(const Worker& w, int64_t row, int kv_head, AttentionTile& t, const uint8_t** k_blocks,
                    const uint8_t** v_blocks) const {
    const KvKernels* plain = &w.program.kernels().kv[int(KvType::f32)];
    const int64_t group = chosen.width > n_chosen ? kv_head : 0;
    const float* positions = chosen.data + row * chosen.width + group * n_chosen + 16 * t.first_block;
    const int n = std::min(kSplit, seen_to(w, row) - 16 * t.first_block);
    const int32_t* pages = w.cache.pages(w.batch, entry, w.sequence_of(row));
    float* keys = reinterpret_cast<float*>(w.own()) + gathered;
    float *values = keys + kSplit * room, *open = values + kSplit * v_room;
    Gathered::of(w, entry, kv_head, pages, positions, n, t.k_dim, false, open, keys, k_blocks);
    if (!is_inside(w)) Gathered::of(w, entry, kv_head, pages, positions, n, t.v_dim, true, open, values, v_blocks);
    t.k = t.v = plain;
}

void Attend::write(const Worker& w, int64_t row, int kv_head, const Softmax& from) const {
    const int group = n_heads(w), length = stored(w);
    float* to = y.data + row * y.width + kv_head * group * v_dim;
    const bool inside = is_inside(w), rotated = is_rotated(inside ? w.cache.k_type() : w.cache.v_type());
    for (int h = 0; h < group; ++h) {
        if (rotated) hadamard_transform(from.out + h * length, length, hadamard_size(length, inside));
        float sum = from.sum[h];
        // Normalizes after all splits are merged. A sink far above all scores makes the result nearly 0.
        if (sinks != nullptr) sum += exp_of(sinks->data[kv_head * group + h] - from.max[h]);
        for (int c = 0; c < v_dim; ++c) to[h * v_dim + c] = from.out[h * length + c] / sum;
    }
}

// Computes rows of one sequence and a KV head, all their splits in order.
void Attend::rows(const Worker& w, int64_t row, int n_rows, int kv_head) const {
    const int group = n_heads(w), length = stored(w);
    float* sums = reinterpret_cast<float*>(w.own()) + numbers;
    const int most = int(scratch.block_rows) * group;
    const Softmax whole(sums, 0, most, length), part(sums, 1, most, length);
    const int first = seen_from(w, row) / kSplit, last = (seen_to(w, row + n_rows - 1) - 1) / kSplit;
    const auto take = [&](int at, const Softmax& to) {
        const Part next{row, kv_head, at + 1};
        split(w, {row, kv_head, at}, n_rows, at < last ? &next : nullptr, to);
    };
    take(first, whole);
    for (int at = first + 1; at <= last; ++at) {
        take(at, part);
        // Merges the rows from `i` to `end` that attend to this split and an earlier one.
        for (int i = 0, end = 0; i < n_rows; i = end = std::max(end, i + 1)) {
            const auto merges = [&](int64_t r) {
                return seen_from(w, r) / kSplit < at && (seen_to(w, r) - 1) / kSplit >= at;
            };
            while (end < n_rows && merges(row + end)) ++end;
            const Softmax to = whole.from(i * group, length), next = part.from(i * group, length);
            if (end > i) {
                w.program.kernels().merge(to, next, (end - i) * group, length);
            } else if (seen_from(w, row + i) / kSplit == at) {  // the earlier splits are invisible to it
                std::copy_n(next.out, group * length, to.out);
                std::copy_n(next.max, group, to.max);
                std::copy_n(next.sum, group, to.sum);
            }
        }
    }
    for (int i = 0; i < n_rows; ++i) write(w, row + i, kv_head, whole.from(i * group, length));
}

// Many rows: a task is a block of rows of one sequence and a KV head. Rows with chosen positions are processed one by
// one.
void Attend::run_blocks(const Worker& w) const {
    const int n_kv = n_kv_heads(w);
    const int64_t n_tasks = int64_t(scratch.blocks.size() - 1) * n_kv;
    for (int64_t task; (task = w.next().fetch_add(1, std::memory_order_relaxed)) < n_tasks;) {
        // Longest tasks first, so that no thread finishes late with one of them.
        const int64_t block = (n_tasks - 1 - task) / n_kv;
        const int kv_head = int((n_tasks - 1 - task) % n_kv);
        int64_t row = scratch.blocks[size_t(block)];
        const int64_t end = scratch.blocks[size_t(block + 1)];
        int64_t first = row;
        while (first < end && !has_chosen(w, first)) ++first;
        if (first > row) rows(w, row, int(first - row), kv_head);
        for (row = first; row < end; ++row) rows(w, row, 1, kv_head);
    }
}

void Attend::run(Worker& w) const {
    const int n_kv = n_kv_heads(w), group = n_heads(w), length = stored(w);
    const int64_t wanted = 4 * w.program.n_threads();
    if (w.batch.is_part() || w.batch.n_rows > wanted || int64_t(scratch.blocks.size() - 1) * n_kv >= wanted)
        return run_blocks(w);
    // Few tasks: each split is a task; the worker that finishes a row's last split merges them in order.
    const auto n_splits = [&](int64_t row) { return (seen_to(w, row) - 1) / kSplit + 1 - seen_from(w, row) / kSplit; };
    int64_t n_tasks = 0;
    for (int64_t row = 0; row < w.batch.n_rows; ++row) n_tasks += int64_t(n_splits(row)) * n_kv;
    if (size_t(n_tasks * Softmax::numbers(group, length)) > scratch.partial_numbers) return run_blocks(w);
    float* shared = reinterpret_cast<float*>(scratch.partials.data());
    const auto part = [&](int64_t i) { return Softmax(shared, i, group, length); };
    const auto found = [&](int64_t task) {
        int64_t row = 0, before = 0;  // splits of earlier rows
        while (task >= (before + n_splits(row)) * n_kv) before += n_splits(row++);
        const int64_t local = task - before * n_kv, splits = n_splits(row);
        return std::pair{Part{row, int(local / splits), int(seen_from(w, row) / kSplit + local % splits)}, before};
    };
    const auto one = [&](int64_t task, bool goes_on) {
        const auto [at, before] = found(task);
        const Part next = goes_on ? found(task + 1).first : at;
        const int splits = n_splits(at.row);
        const int64_t base = before * n_kv + int64_t(at.kv_head) * splits;
        split(w, at, 1, goes_on ? &next : nullptr, part(task));
        std::atomic<int32_t>& done = scratch.finished[size_t(at.row * n_kv + at.kv_head)];
        if (done.fetch_add(1, std::memory_order_acq_rel) + 1 < splits) return;
        done.store(0, std::memory_order_relaxed);
        for (int i = 1; i < splits; ++i) w.program.kernels().merge(part(base), part(base + i), group, length);
        write(w, at.row, at.kv_head, part(base));
    };
    if (n_tasks < wanted) {
        for (int64_t task; (task = w.next().fetch_add(1, std::memory_order_relaxed)) < n_tasks;) one(task, false);
        return;
    }
    // Workers process neighboring splits: while one is computed, keys and values of the next one are prefetched.
    const Worker::Range own = Tasks::share(n_tasks, w.id, w.program.n_threads());
    w.take_runs(n_tasks, kTogether, [&](int64_t first, int64_t last) {
        const int64_t end = first >= own.first && first < own.last ? own.last : last;
        for (int64_t task = first; task < last; ++task) one(task, task + 1 < end);
    });
}

}  // namespace

std::unique_ptr<Step> make_attend(const Arguments& a) { return std::make_unique<Attend>(a); }

}  // namespace woolly
