#include "program/program.h"

#include <chrono>
#include <stdexcept>

#include "program/worker.h"

namespace woolly {

Program::Program(const KernelTable& kernels, int n_threads, int64_t max_rows, size_t arena_bytes, int64_t max_context)
    : kernels_(kernels), pool_(n_threads), max_rows_(max_rows), max_context_(max_context), arena_(arena_bytes) {}

int Program::add_matrix(int ggml_type, int64_t rows, int64_t columns, const uint8_t* source, bool mapped) {
    const TypeInfo info = type_info(ggml_type);
    if (info.block == 0 || kernels_.dot[ggml_type] == nullptr)
        throw std::invalid_argument("weight type " + std::to_string(ggml_type) + " has no kernel");
    if (rows <= 0 || columns <= 0 || columns % info.block != 0)
        throw std::invalid_argument("a matrix of " + std::to_string(rows) + " x " + std::to_string(columns) +
                                    " does not fit its type's blocks of " + std::to_string(info.block));
    Matrix m;
    m.type = ggml_type;
    m.info = info;
    m.rows = rows;
    m.columns = columns;
    m.source = source;
    m.mapped = mapped;
    m.done = std::make_unique<uint8_t[]>(size_t(m.n_panels()));
    matrices_.push_back(std::move(m));
    return int(matrices_.size()) - 1;
}

int Program::add_vector(const float* data, int64_t n) {
    vectors_.push_back({data, n});
    return int(vectors_.size()) - 1;
}

int Program::add_value(size_t offset, int64_t width, bool output_rows) {
    if (offset + size_t(width) * size_t(max_rows_) * 4 > arena_.size())
        throw std::invalid_argument("a value lies outside the arena");
    values_.push_back({offset, width, output_rows});
    return int(values_.size()) - 1;
}

void Program::add_step(Step step) {
    if (step.op == Op::moe && (step.n_used < 1 || step.n_used > step.n_experts ||
                               step.matrices.size() != 1 + 3 * size_t(step.n_experts) || step.biases.size() != 1))
        throw std::invalid_argument("a moe step of " + std::to_string(step.n_experts) + " experts cannot use " +
                                    std::to_string(step.n_used) + " of " + std::to_string(step.matrices.size()) +
                                    " matrices");
    steps_.push_back(std::move(step));
}

void Program::check(const BatchView& b, const Cache& cache, int first, int last) const {
    const auto fail = [](const std::string& what) { throw std::invalid_argument(what); };
    if (first < 0 || first >= last || last > n_steps()) fail("steps outside the plan");
    if (b.n_rows < 1 || b.n_rows > max_rows_)
        fail("a batch of " + std::to_string(b.n_rows) + " rows, where 1 to " + std::to_string(max_rows_) + " fit");
    if (b.n_output > max_rows_) fail("more logits wanted than rows fit");
    if (b.offsets[0] != 0 || b.offsets[b.n_sequences] != b.n_rows) fail("sequence offsets do not cover the rows");
    for (int64_t i = 0; i < b.n_output; ++i)
        if (b.output_rows[i] < 0 || b.output_rows[i] >= b.n_rows) fail("logits wanted of a row outside the batch");
    for (const Step& step : steps_) {
        if (step.op != Op::store) continue;
        const int64_t n_kv_heads = values_[size_t(step.inputs[1])].width / step.head_dim;
        if (size_t(step.layer) >= cache.layers().size() ||
            cache.layers()[size_t(step.layer)].n_kv_heads != n_kv_heads ||
            cache.layers()[size_t(step.layer)].head_dim != step.head_dim)
            fail("the cache was made for another plan");
    }
    int64_t n_vocab = INT64_MAX;
    for (const Step& step : steps_)
        if (step.op == Op::embed) n_vocab = matrices_[size_t(step.matrices[0])].rows;
    for (int64_t i = 0; i < b.n_rows; ++i)
        if (b.tokens[i] < 0 || b.tokens[i] >= n_vocab)
            fail("token " + std::to_string(b.tokens[i]) + " is outside the vocabulary of " + std::to_string(n_vocab));
    for (int64_t s = 0; s < b.n_sequences; ++s) {
        if (b.offsets[s] >= b.offsets[s + 1]) fail("a sequence without rows");
        if (b.offsets[s + 1] > b.n_rows) fail("sequence offsets do not cover the rows");
        const int32_t from = b.positions[b.offsets[s]], to = b.positions[b.offsets[s + 1] - 1];
        for (int32_t r = b.offsets[s]; r < b.offsets[s + 1]; ++r)
            if (b.positions[r] != int64_t(from) + (r - b.offsets[s]))
                fail("positions of a sequence are not consecutive");
        if (from < 0 || to >= max_context_ || to >= b.n_turns)
            fail("position " + std::to_string(to) + " is outside the context of " + std::to_string(max_context_));
        if (to / kPageSize >= b.max_pages) fail("a sequence has too few pages");
        for (int32_t i = 0; i <= to / kPageSize; ++i) {
            const int32_t page = b.pages[s * b.max_pages + i];
            if (page < 0 || page >= cache.n_pages()) fail("page " + std::to_string(page) + " is outside the cache");
        }
    }
}

bool Program::run(const BatchView& batch, Cache& cache, int first, int last) {
    check(batch, cache, first, last);
    stop_preparing();
    for (Matrix& m : matrices_)
        m.whole = m.packed != nullptr && std::atomic_ref(m.left).load(std::memory_order_acquire) == 0;
    for (int64_t s = 0; s < batch.n_sequences; ++s)
        for (int32_t r = batch.offsets[s]; r < batch.offsets[s + 1]; ++r) row_sequence_[size_t(r)] = int32_t(s);
    row_blocks_.clear();
    for (int64_t s = 0; s < batch.n_sequences; ++s)
        for (int32_t r = batch.offsets[s]; r < batch.offsets[s + 1]; r += kAttendRows) row_blocks_.push_back(r);
    row_blocks_.push_back(batch.n_rows);
    for (int i = first; i < last; ++i)
        for (const int at : {i, n_steps() + i}) next_[size_t(at)].store(0, std::memory_order_relaxed);
    batch_ = &batch;
    cache_ = &cache;
    first_ = first;
    last_ = last;
    cancel_.store(false, std::memory_order_relaxed);  // of a call when nothing ran
    stop_at_.store(INT_MAX, std::memory_order_relaxed);
    pool_.run([](void* self, int worker) { static_cast<Program*>(self)->work(worker); }, this);
    return stop_at_.load(std::memory_order_relaxed) == INT_MAX;
}

void Program::work(int id) {
    Worker worker{*this, id, *batch_, *cache_};
    using Clock = std::chrono::steady_clock;
    auto before = Clock::now();
    for (int i = first_; i < last_; ++i) {
        const Step& step = steps_[size_t(i)];
        if (step.barrier_before || i == first_) {
            // The flag is read by one worker and told to all at the barrier, so that all stop at the same step.
            if (id == 0 && cancel_.load(std::memory_order_relaxed)) stop_at_.store(i, std::memory_order_relaxed);
            pool_.barrier();
            if (stop_at_.load(std::memory_order_relaxed) <= i) return;
        }
        worker.run(step, i);
        if (profiling_ && id == 0) {
            const auto now = Clock::now();
            times_[size_t(i)] += std::chrono::duration_cast<std::chrono::nanoseconds>(now - before).count();
            before = now;
        }
    }
}

void Worker::run(const Step& step, int index) {
    switch (step.op) {
        case Op::embed:
            return embed(step);
        case Op::rms_norm:
            return rms_norm(step);
        case Op::linears:
            return linears(step, index);
        case Op::moe:
            return moe(step, index);
        case Op::store:
            return store(step);
        case Op::attend:
            return attend(step, index);
        case Op::swiglu:
        case Op::add:
        case Op::scale:
            return elementwise(step);
        case Op::output_rows:
            return output_rows(step);
    }
}

}  // namespace woolly
