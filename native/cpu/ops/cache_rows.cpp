// cache_rows: writes rows to the cache as keys of one head, which are also its values.
#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "cpu/ops/hadamard.h"
#include "cpu/ops/table.h"
#include "cpu/program/worker.h"

namespace woolly {

namespace {

constexpr int kMaxKept = 576;

struct CacheRows final : Step {
    const Value x, y;
    const int entry;

    explicit CacheRows(const Arguments& a) : x(a.input(0)), y(a.output(0)), entry(a.integer("entry")) {
        if (x.width < 1 || x.width > kMaxKept || y.width != x.width)
            a.fail("takes rows of 1 to " + std::to_string(kMaxKept) + ", not " + std::to_string(x.width));
    }

    void check(const BatchView&, const Cache& cache) const override {
        const auto& layers = cache.layers();
        if (size_t(entry) >= layers.size() || layers[size_t(entry)].n_kv_heads != 1 ||
            layers[size_t(entry)].k_dim != cache.padded(int(x.width)) || layers[size_t(entry)].v_dim != 0)
            throw std::invalid_argument("the cache was made for another plan");
    }

    void run(Worker& w) const override {
        const KvType type = w.cache.k_type();
        const int stored = w.cache.padded(int(x.width));
        w.share(w.batch.n_rows, [&](int64_t begin, int64_t end) {
            float head[kMaxKept];
            for (int64_t row = begin; row < end; ++row) {
                std::memcpy(y.data + row * x.width, x.data + row * x.width, size_t(x.width) * 4);
                std::memcpy(head, x.data + row * x.width, size_t(x.width) * 4);
                std::fill(head + x.width, head + stored, 0.0f);
                if (is_rotated(type)) hadamard_transform(head, stored, hadamard_size(stored, true));
                const int position = w.batch.positions[row], in_page = position % kPageSize;
                const int32_t page = w.cache.pages(w.batch, entry, w.sequence_of(row))[position / kPageSize];
                w.program.kernels().kv[int(type)].store_k(head, stored, position % 16,
                                                          w.cache.block(entry, page, 0, in_page, false));
            }
        });
    }
};

}  // namespace

std::unique_ptr<Step> make_cache_rows(const Arguments& a) { return std::make_unique<CacheRows>(a); }

}  // namespace woolly
