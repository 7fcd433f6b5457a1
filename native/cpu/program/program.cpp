#include "cpu/program/program.h"

#include <stdexcept>

#include "cpu/ops/table.h"
#include "cpu/program/worker.h"

namespace woolly {

using Clock = std::chrono::steady_clock;

Program::Program(const KernelTable& kernels, int n_threads, int64_t max_rows, size_t arena_bytes, int64_t max_context)
    : kernels_(kernels),
      pool_(n_threads),
      tasks_(pool_.size()),
      max_rows_(max_rows),
      max_context_(max_context),
      arena_(arena_bytes) {}

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
        throw std::invalid_argument("a value is outside the arena");
    values_.push_back({reinterpret_cast<float*>(arena_.data() + offset), width, output_rows});
    return int(values_.size()) - 1;
}

void Program::add_step(Arguments arguments, bool barrier_before) {
    arguments.program = this;
    std::unique_ptr<Step> step = make_step(arguments);
    arguments.check_all_read();
    step->barrier_before = barrier_before;
    steps_.push_back(std::move(step));
}

void Program::finish() {
    for (auto& [type, scratch] : scratch_) scratch->allocate(*this);
    for (int i = 0; i < n_threads(); ++i) own_.emplace_back(own_bytes_);
    next_ = std::make_unique<std::atomic<int64_t>[]>(steps_.size());
    times_.assign(steps_.size(), 0);
    row_sequence_.resize(size_t(max_rows_));
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
    for (int64_t s = 0; s < b.n_sequences; ++s) {
        if (b.offsets[s] >= b.offsets[s + 1]) fail("a sequence without rows");
        if (b.offsets[s + 1] > b.n_rows) fail("sequence offsets do not cover the rows");
        const int32_t from = b.positions[b.offsets[s]], to = b.positions[b.offsets[s + 1] - 1];
        for (int32_t r = b.offsets[s]; r < b.offsets[s + 1]; ++r)
            if (b.positions[r] != int64_t(from) + (r - b.offsets[s]))
                fail("positions of a sequence are not consecutive");
        if (from < 0 || to >= max_context_ || (b.rope_rows == nullptr && to >= b.n_rope_rows))
            fail("position " + std::to_string(to) + " is outside the context of " + std::to_string(max_context_));
        if (to / kPageSize >= b.max_pages) fail("a sequence has too few pages");
        for (int32_t i = 0; i <= to / kPageSize; ++i) {
            const int32_t page = b.pages[s * b.max_pages + i];
            if (page < 0 || page >= cache.n_pages()) fail("page " + std::to_string(page) + " is outside the cache");
        }
    }
    for (int64_t r = 0; b.rope_rows != nullptr && r < b.n_rows; ++r)
        if (b.rope_rows[r] < 0 || b.rope_rows[r] >= b.n_rope_rows) fail("a rope position is outside of the tables");
    check_windows(b, cache);
    if (cache.has_slots()) check_slots(b, cache);
    for (int i = first; i < last; ++i) {
        const Step& step = *steps_[size_t(i)];
        if (b.is_part() && (b.part_first < 0 || b.part_first >= b.part_last || b.part_last > step.rows_to_cut(b)))
            fail("some rows alone of a step that computes all of them, or rows outside of it");
        step.check(b, cache);
    }
}

void Program::check_windows(const BatchView& b, const Cache& cache) {
    for (size_t entry = 0; entry < cache.windows().size(); ++entry) {
        const Cache::Window& window = cache.windows()[entry];
        if (window.table < 0) continue;
        if (window.table >= b.n_windows) throw std::invalid_argument("the batch has no page table of a window");
        for (int64_t s = 0; s < b.n_sequences; ++s) {
            const int32_t* pages = cache.pages(b, int(entry), s);
            const int64_t from = b.positions[b.offsets[s]], to = b.positions[b.offsets[s + 1] - 1];
            const int64_t first = std::max<int64_t>(0, from - window.length + 1) / kPageSize;
            for (int64_t i = 0; i <= to / kPageSize; ++i)
                if (pages[i] >= window.n_pages || (i >= first && pages[i] < 0))
                    throw std::invalid_argument("a page of a window is outside the cache");
        }
    }
}

void Program::check_slots(const BatchView& b, const Cache& cache) {
    const auto fail = [](const char* what) { throw std::invalid_argument(what); };
    if (b.slots_in == nullptr || b.slots_out == nullptr) fail("the plan keeps slots, and the batch names none");
    const auto inside = [&](int32_t slot) {
        if (slot < 0 || slot >= cache.n_slots()) fail("a slot is outside the state");
    };
    const auto read = [&](int32_t slot) {
        for (int64_t s = 0; s < b.n_sequences; ++s)
            if (b.slots_in[s] == slot) fail("a run cannot write a slot that it reads");
    };
    for (int64_t s = 0; s < b.n_sequences; ++s) {
        if (b.slots_in[s] != -1) inside(b.slots_in[s]);
        if ((b.slots_in[s] == -1) != (b.positions[b.offsets[s]] == 0))
            fail("a sequence starts from zeros exactly if its first position is 0");
        inside(b.slots_out[s]);
        read(b.slots_out[s]);
        for (int64_t other = 0; other < s; ++other)
            if (b.slots_out[other] == b.slots_out[s]) fail("a run cannot write a slot twice");
    }
    for (int64_t i = 0; i < b.n_snapshots; ++i) {
        const int32_t row = b.snapshots[2 * i], slot = b.snapshots[2 * i + 1];
        if (row < 0 || row >= b.n_rows) fail("a slot is to be kept of a row outside the batch");
        inside(slot);
        read(slot);
        for (int64_t s = 0; s < b.n_sequences; ++s)
            if (b.slots_out[s] == slot) fail("a run cannot write a slot twice");
        for (int64_t other = 0; other < i; ++other)
            if (b.snapshots[2 * other + 1] == slot) fail("a run cannot write a slot twice");
    }
}

bool Program::run(const BatchView& batch, Cache& cache, int first, int last) {
    check(batch, cache, first, last);
    stop_preparing();
    for (Matrix& m : matrices_)
        m.whole = m.packed != nullptr && std::atomic_ref(m.left).load(std::memory_order_acquire) == 0;
    for (int64_t s = 0; s < batch.n_sequences; ++s)
        for (int32_t r = batch.offsets[s]; r < batch.offsets[s + 1]; ++r) row_sequence_[size_t(r)] = int32_t(s);
    for (auto& [type, scratch] : scratch_) scratch->begin(batch);
    for (int i = first; i < last; ++i) next_[size_t(i)].store(0, std::memory_order_relaxed);
    tasks_.begin();
    round_ = 0;
    stops_ = false;
    batch_ = &batch;
    cache_ = &cache;
    first_ = first;
    last_ = last;
    cancel_.store(false, std::memory_order_relaxed);  // a cancel request while nothing ran
    timed_ = Clock::now();
    pool_.run([](void* self, int worker, int stage) { static_cast<Program*>(self)->work(worker, stage); }, this);
    return !stops_;
}

// Exceeds the barriers inside any step: moe has at most seven.
constexpr int kBarriers = 16;

// A stage is a step and a number of barriers inside it. 0: the start.
void Program::work(int id, int stage) {
    Worker worker{*this, id, *batch_, *cache_, round_};
    worker.skips = stage % kBarriers;
    run_steps(worker, first_ + stage / kBarriers);
}

bool Worker::barrier() {
    ++n_barriers;
    if (skips > 0) {
        --skips;
        return true;
    }
    const int stage = (step - program.first_) * kBarriers + n_barriers;
    is_behind = !program.pool_.barrier(id, stage, [&] { program.round_ = round; });
    return !is_behind;
}

void Program::run_steps(Worker& worker, int first) {
    for (int i = first; i < last_; ++i) {
        const Step& step = *steps_[size_t(i)];
        if (step.barrier_before && i != first) {
            const auto end = [&] {
                round_ = worker.round;
                stops_ = cancel_.load(std::memory_order_relaxed);
            };
            if (!pool_.barrier(worker.id, (i - first_) * kBarriers, end)) return;
        }
        if (stops_) return;
        worker.step = i;
        worker.n_barriers = 0;
        step.run(worker);
        if (worker.is_behind) return;
        if (profiling_ && worker.id == 0) {
            const auto now = Clock::now();
            times_[size_t(i)] += std::chrono::duration_cast<std::chrono::nanoseconds>(now - timed_).count();
            timed_ = now;
        }
    }
}

}  // namespace woolly
