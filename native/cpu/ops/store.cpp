// store: q and k normed per head and rotated; k and v written to the cache.
#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "cpu/ops/hadamard.h"
#include "cpu/ops/rotate.h"
#include "cpu/ops/table.h"
#include "cpu/program/worker.h"

namespace woolly {

namespace {

constexpr int kMaxHeadDim = 576;

struct Store final : Step {
    const Value q, k, v, y;  // v has width 0 if it is a part of k
    const Vector *const q_norm, *const k_norm;
    const Vector* const k_bias;  // subtracted from the keys; attend adds its scores
    const float eps;
    const int entry, head_dim, v_dim;
    const Rotate rotate;

    explicit Store(const Arguments& a)
        : q(a.input(0)),
          k(a.input(1)),
          v(a.inputs.size() > 2 ? a.input(2) : Value{}),
          y(a.output(0)),
          q_norm(a.vector("q_norm")),
          k_norm(a.vector("k_norm")),
          k_bias(a.vector("k_bias")),
          eps(a.number("eps")),
          entry(a.integer("entry")),
          head_dim(a.integer("head_dim")),
          v_dim(int(v.width / std::max<int64_t>(1, k.width / std::max(1, head_dim)))),
          rotate(a) {
        for (const int n : {head_dim, v.data == nullptr ? head_dim : v_dim})
            if (n < 1 || n > kMaxHeadDim)
                a.fail("takes heads of 1 to " + std::to_string(kMaxHeadDim) + ", not " + std::to_string(n));
    }

    void check(const BatchView&, const Cache& cache) const override {
        const auto& layers = cache.layers();
        if (size_t(entry) >= layers.size() || layers[size_t(entry)].n_kv_heads != k.width / head_dim ||
            layers[size_t(entry)].k_dim != cache.padded(head_dim) || layers[size_t(entry)].v_dim != cache.padded(v_dim))
            throw std::invalid_argument("the cache was made for another plan");
    }

    void run(Worker& w) const override {
        const KernelTable& kernels = w.program.kernels();
        const int64_t n_q = q.width / head_dim, n_kv = k.width / head_dim;
        const KvType k_type = w.cache.k_type(), v_type = w.cache.v_type();
        const int k_stored = w.cache.padded(head_dim), v_stored = w.cache.padded(v_dim);
        float head[kMaxHeadDim], padded[kMaxHeadDim];
        const auto one = [&](int64_t task) {
            const int64_t row = task / (n_q + n_kv), h = task % (n_q + n_kv);
            const int32_t position = w.batch.positions[row];
            const bool is_q = h < n_q;
            const int64_t at = is_q ? row * q.width + h * head_dim : row * k.width + (h - n_q) * head_dim;
            std::memcpy(head, (is_q ? q.data : k.data) + at, size_t(head_dim) * 4);
            std::fill(head + head_dim, head + k_stored, 0.0f);
            const Vector* norm = is_q ? q_norm : k_norm;
            if (norm != nullptr) kernels.rms_norm(head, norm->data, eps, head_dim, head);
            if (k_bias != nullptr && !is_q)
                for (int c = 0; c < head_dim; ++c) head[c] -= k_bias->data[(h - n_q) * head_dim + c];
            rotate(w.batch, row, head);
            if (is_q) {
                std::memcpy(y.data + at, head, size_t(head_dim) * 4);
                return;
            }
            const int32_t page = w.cache.pages(w.batch, entry, w.sequence_of(row))[position / kPageSize];
            const int slot = position % 16, in_page = position % kPageSize;
            if (is_rotated(k_type)) hadamard_transform(head, k_stored, hadamard_size(k_stored, v_dim == 0));
            kernels.kv[int(k_type)].store_k(head, k_stored, slot,
                                            w.cache.block(entry, page, int(h - n_q), in_page, false));
            if (v_dim == 0) return;
            const float* value = v.data + row * v.width + (h - n_q) * v_dim;
            if (v_stored != v_dim || is_rotated(v_type)) {
                std::memcpy(padded, value, size_t(v_dim) * 4);
                std::fill(padded + v_dim, padded + v_stored, 0.0f);
                if (is_rotated(v_type)) hadamard_transform(padded, v_stored, hadamard_size(v_stored, false));
                value = padded;
            }
            kernels.kv[int(v_type)].store_v(value, v_stored, slot,
                                            w.cache.block(entry, page, int(h - n_q), in_page, true));
        };
        const auto each = [&](int64_t first, int64_t last) {
            for (int64_t task = first; task < last; ++task) one(task);
        };
        // Distributing heads of a few rows one by one takes longer than computing them.
        const int64_t n = w.batch.n_rows * (n_q + n_kv);
        if (w.batch.n_rows < kFewRows) return w.share(n, each);
        w.take_runs(n, n_q + n_kv, each);
    }
};

}  // namespace

std::unique_ptr<Step> make_store(const Arguments& a) { return std::make_unique<Store>(a); }

}  // namespace woolly
