// index_topk: for each row, the positions with the highest index scores (sparse attention).
#include <algorithm>
#include <atomic>
#include <bit>
#include <functional>

#include "cpu/ops/hadamard.h"
#include "cpu/ops/table.h"
#include "cpu/program/worker.h"

namespace woolly {

namespace {

constexpr int kSpan = 1024;                     // positions scored per task if there are few rows
constexpr size_t kMaxBytes = size_t{64} << 20;  // for the scores of rows shared by several tasks

// Maps a score to an integer of the same order; both zeros are equal, and NaN is below all.
uint32_t ordered(float score) {
    if (score != score) return 0;
    const uint32_t bits = std::bit_cast<uint32_t>(score + 0.0f);
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

// Maximum of some scores in this order.
uint32_t highest(const float* scores, int n) {
    uint32_t top = 0;
    for (int i = 0; i < n; ++i) top = std::max(top, ordered(scores[i]));
    return top;
}

struct PickScratch final : Scratch {
    int64_t groups = 0, n_rows = 0, numbers = 0;       // maximum choices per row; maximum rows; f32 of all their scores
    Memory scores;                                     // one row after another, each with its visible positions
    std::unique_ptr<std::atomic<int32_t>[]> finished;  // finished spans, per row

    void allocate(const Program& p) override {
        n_rows = std::min<int64_t>(4 * p.n_threads(), p.max_rows());
        numbers = std::min(n_rows * groups * room(p.max_context() - 1), int64_t(kMaxBytes / 4));
        scores = Memory(size_t(numbers) * 4);
        finished = std::make_unique<std::atomic<int32_t>[]>(size_t(n_rows) + 1);
    }
    // Numbers per choice of the row at a position: its visible positions, in complete chunks.
    static int64_t room(int64_t position) { return (position / kChunk + 1) * kChunk; }
};

struct IndexTopk final : Step {
    const Value q, weights, y;  // weights have width 0 if each head chooses separately
    const int entry, head_dim, n, block, local;
    const int every;   // positions per run, of which only the last is a candidate; 1: all positions are
    const bool whole;  // all positions of the chosen runs, and those after the last complete one
    const int width;   // maximum positions per choice
    const int heads, groups, room;
    const int64_t n_positions;  // of the context, rounded up to chunks
    size_t numbers;             // f32 in a worker's memory for the kernel
    PickScratch& scratch;

    explicit IndexTopk(const Arguments& a)
        : q(a.input(0)),
          weights(a.inputs.size() > 1 ? a.input(1) : Value{}),
          y(a.output(0)),
          entry(a.integer("entry")),
          head_dim(a.integer("head_dim")),
          n(a.integer("n")),
          block(a.integer("block")),
          local(a.integer("local")),
          every(std::max(1, a.integer("every"))),
          whole(a.integer("whole") != 0),
          width(whole ? n * every + every - 1 : n * block),
          heads(int(q.width / std::max(1, head_dim))),
          groups(weights.width > 0 ? 1 : heads),
          room((head_dim + 31) / 32 * 32),
          n_positions((a.program->max_context() + 63) / 64 * 64),
          scratch(a.program->scratch<PickScratch>()) {
        if (head_dim < 1 || n < 1 || block < 1 || q.width != int64_t(heads) * head_dim ||
            (weights.width > 0 && weights.width != heads) || y.width != int64_t(groups) * width ||
            (every > 1 && (block > 1 || local > 0)) || (whole && (every < 2 || groups > 1)))
            a.fail("has heads or choices that do not fit");
        scratch.groups = std::max<int64_t>(scratch.groups, groups);
        // For the kernel: products and keys, addresses of queries, copies of them.
        numbers = size_t(kChunk * (int64_t(heads) + room) + int64_t(heads) * (2 + room) + 15) / 16 * 16;
        // Followed by the scores of one row, and twice the keys of its blocks.
        a.program->need_own((numbers + size_t((groups + 2) * n_positions)) * 4);
    }

    void check(const BatchView&, const Cache& cache) const override {
        const auto& layers = cache.layers();
        if (size_t(entry) >= layers.size() || layers[size_t(entry)].k_dim != cache.padded(head_dim))
            throw std::invalid_argument("the cache was made for another plan");
    }
    // Candidates of a row: blocks, or last positions of runs.
    int n_candidates(const Worker& w, int64_t row) const {
        const int n_seen = w.batch.positions[row] + 1;
        return every > 1 ? n_seen / every : (n_seen + block - 1) / block;
    }
    void score(const Worker& w, int64_t row, int first, int last, float* scores, int64_t step) const;
    void choose(const Worker& w, int64_t row, const float* scores, int64_t step) const;
    void run(Worker& w) const override;
};

// Scores of positions [first, last) of a row, padded to a block of 16.
void IndexTopk::score(const Worker& w, int64_t row, int first, int last, float* scores, int64_t step) const {
    const KernelTable& kernels = w.program.kernels();
    AttentionTile t{};
    t.k = &kernels.kv[int(w.cache.k_type())];
    t.n_queries = heads;
    t.k_dim = w.cache.padded(head_dim);
    t.scratch = reinterpret_cast<float*>(w.own());
    const float** queries = reinterpret_cast<const float**>(t.scratch + kChunk * (int64_t(heads) + room));
    float* copy = reinterpret_cast<float*>(queries + heads);
    const bool rotated = is_rotated(w.cache.k_type());
    for (int h = 0; h < heads; ++h) {
        queries[h] = q.data + row * q.width + h * head_dim;
        if (t.k_dim == head_dim && !rotated) continue;
        std::copy_n(queries[h], head_dim, copy);
        std::fill(copy + head_dim, copy + t.k_dim, 0.0f);
        if (rotated) hadamard_transform(copy, t.k_dim, hadamard_size(t.k_dim, true));
        queries[h] = copy;
        copy += t.k_dim;
    }
    t.q = queries;
    const int32_t* pages = w.cache.pages(w.batch, entry, w.sequence_of(row));
    const uint8_t* blocks[kSpan / 16];
    for (int at = first; at < last; at += kSpan) {
        t.n_blocks = (std::min(last - at, kSpan) + 15) / 16;
        for (int b = 0; b < t.n_blocks; ++b) {
            const int position = at + 16 * b;
            blocks[b] = w.cache.block(entry, pages[position / kPageSize], 0, position % kPageSize, false);
        }
        t.k_blocks = blocks;
        kernels.rank(t, weights.width > 0 ? weights.data + row * weights.width : nullptr, scores + at, step);
    }
}

// Top blocks of each choice of a row, ascending: those above the n-th highest score, then the first ones equal to it.
void IndexTopk::choose(const Worker& w, int64_t row, const float* scores, int64_t step) const {
    const int n_seen = w.batch.positions[row] + 1, n_blocks = n_candidates(w, row);
    const auto first_of = [&](int b) { return every > 1 ? (b + 1) * every - 1 : b * block; };
    uint32_t* order = reinterpret_cast<uint32_t*>(w.own()) + numbers + size_t(groups) * size_t(n_positions);
    uint32_t* sorted = order + n_positions;
    for (int g = 0; g < groups; ++g) {
        float *to = y.data + row * y.width + int64_t(g) * width, *end = to + width;
        uint32_t least = 0;
        int above = 0;
        if (n_blocks > n) {
            for (int b = 0; b < n_blocks; ++b) {
                const float* from = scores + g * step + first_of(b);
                const int length = std::min(block, n_seen - first_of(b));
                order[b] = b >= n_blocks - local ? ~0u : highest(from, length);
            }
            std::copy_n(order, n_blocks, sorted);
            std::nth_element(sorted, sorted + n - 1, sorted + n_blocks, std::greater<>());
            least = sorted[n - 1];
            for (int b = 0; b < n_blocks; ++b) above += order[b] > least;
        }
        int equals = n - above;  // number of blocks taken from those equal to the threshold
        for (int b = 0; b < n_blocks; ++b) {
            const bool taken = n_blocks <= n || order[b] > least || (order[b] == least && equals-- > 0);
            if (!taken) continue;
            const int first = whole ? b * every : first_of(b), length = whole ? every : block;
            for (int i = first; i < std::min(n_seen, first + length); ++i) *to++ = float(i);
        }
        if (whole)
            for (int i = n_blocks * every; i < n_seen; ++i) *to++ = float(i);
        std::fill(to, end, -1.0f);
    }
}

void IndexTopk::run(Worker& w) const {
    const auto n_spans = [&](int64_t row) { return w.batch.positions[row] / kSpan + 1; };
    const auto step_of = [&](int64_t row) { return PickScratch::room(w.batch.positions[row]); };
    int64_t n_tasks = 0, n_shared = 0;
    for (int64_t row = 0; row < w.batch.n_rows; ++row) n_tasks += n_spans(row), n_shared += groups * step_of(row);
    if (w.batch.n_rows > scratch.n_rows || n_shared > scratch.numbers)
        return w.take(w.batch.n_rows, [&](int64_t task) {
            const int64_t row = w.batch.n_rows - 1 - task;  // longest first
            const int n_seen = w.batch.positions[row] + 1;
            float* scores = reinterpret_cast<float*>(w.own()) + numbers;
            if (n_candidates(w, row) > n) score(w, row, 0, n_seen, scores, n_positions);
            choose(w, row, scores, n_positions);
        });
    // Few rows: each span of positions is a task; the worker that scores the last span of a row chooses.
    w.take(n_tasks, [&](int64_t task) {
        int64_t row = 0;
        float* scores = reinterpret_cast<float*>(scratch.scores.data());
        for (; task >= n_spans(row); ++row) task -= n_spans(row), scores += groups * step_of(row);
        const int n_seen = w.batch.positions[row] + 1, first = int(task) * kSpan;
        if (n_candidates(w, row) > n) score(w, row, first, std::min(n_seen, first + kSpan), scores, step_of(row));
        if (scratch.finished[size_t(row)].fetch_add(1, std::memory_order_acq_rel) + 1 < n_spans(row)) return;
        scratch.finished[size_t(row)].store(0, std::memory_order_relaxed);
        choose(w, row, scores, step_of(row));
    });
}

}  // namespace

std::unique_ptr<Step> make_index_topk(const Arguments& a) { return std::make_unique<IndexTopk>(a); }

}  // namespace woolly
