// ngrams: embeddings of the n-grams that end at each token, looked up by hash.
#include <charconv>
#include <stdexcept>

#include "cpu/ops/slots.h"
#include "cpu/ops/table.h"
#include "quant/decode.h"

namespace woolly {

namespace {

// Parses numbers separated by single spaces, without a stream and its locale.
std::vector<uint64_t> numbers_of(const std::string& text) {
    std::vector<uint64_t> out;
    const char* const end = text.data() + text.size();
    for (const char* at = text.data(); at < end;) {
        uint64_t number = 0;
        const auto [next, error] = std::from_chars(at, end, number);
        if (error != std::errc()) throw std::invalid_argument("'" + text + "' is not a list of numbers");
        out.push_back(number);
        at = next + 1;
    }
    return out;
}

struct Ngrams final : Step {
    const Matrix& table;
    const Value y;
    const int end;  // token that ends texts
    const std::vector<uint64_t> factors, sizes, firsts;
    const int64_t n_kept, each;  // tokens before the current one; table rows per n-gram length
    const SlotEntry slot;        // latest tokens plus 1, newest first; 0: before the text

    explicit Ngrams(const Arguments& a)
        : table(a.matrix("table")),
          y(a.output(0)),
          end(a.integer("end")),
          factors(numbers_of(a.text("factors"))),
          sizes(numbers_of(a.text("sizes"))),
          firsts(numbers_of(a.text("firsts"))),
          n_kept(int64_t(factors.size()) - 1),
          each(n_kept > 0 ? int64_t(sizes.size()) / n_kept : 0),
          slot{a.integer("entry"), n_kept} {
        if (each < 1 || int64_t(sizes.size()) != each * n_kept || firsts.size() != sizes.size() ||
            y.width != int64_t(sizes.size()) * table.columns)
            a.fail("has hashes that do not fit");
        for (size_t i = 0; i < sizes.size(); ++i)
            if (sizes[i] == 0 || firsts[i] > uint64_t(table.rows) || sizes[i] > uint64_t(table.rows) - firsts[i])
                a.fail("has hashes beyond its table");
    }

    void check(const BatchView& batch, const Cache& cache) const override {
        slot.check(cache);
        for (int64_t i = 0; i < batch.n_rows; ++i)
            if (batch.tokens[i] < 0 || batch.tokens[i] >= 1 << 24)
                throw std::invalid_argument("token " + std::to_string(batch.tokens[i]) + " is outside the vocabulary");
    }

    // Token `back` positions before that of `row`, -1 before the text.
    int token_before(const Worker& w, int64_t sequence, int64_t row, int64_t back) const {
        const int64_t at = row - back, first = w.batch.offsets[sequence];
        return at >= first ? w.batch.tokens[at] : int(slot.before(w, sequence)[first - at - 1]) - 1;
    }

    void look_up(const Worker& w, int64_t row) const {
        const int64_t sequence = w.sequence_of(row);
        float* to = y.data + row * y.width;
        uint64_t hash = uint64_t(w.batch.tokens[row]) * factors[0];
        bool is_cut = false;
        for (int64_t back = 1; back <= n_kept; ++back) {
            const int token = is_cut ? end : token_before(w, sequence, row, back);
            is_cut = is_cut || token < 0 || token == end;
            hash ^= uint64_t(is_cut ? end : token) * factors[size_t(back)];
            for (int64_t i = (back - 1) * each; i < back * each; ++i, to += table.columns) {
                const uint64_t at = hash % sizes[size_t(i)] + firsts[size_t(i)];
                dequantize_row(table.type, table.source + size_t(at) * table.stride(), table.columns, to);
            }
        }
    }

    // Writes the tokens remaining after `row` to a slot.
    void leave(const Worker& w, int64_t sequence, int64_t row, int32_t to) const {
        float* at = w.cache.slot(slot.entry, to);
        for (int64_t back = 0; back < n_kept; ++back) at[back] = float(token_before(w, sequence, row, back) + 1);
    }

    void run(Worker& w) const override {
        const BatchView& batch = w.batch;
        w.share(batch.n_rows, [&](int64_t begin, int64_t last) {
            for (int64_t row = begin; row < last; ++row) look_up(w, row);
        });
        slot.leave_states(w, [&](int64_t sequence, int64_t row, int32_t to) { leave(w, sequence, row, to); });
    }
};

}  // namespace

std::unique_ptr<Step> make_ngrams(const Arguments& a) { return std::make_unique<Ngrams>(a); }

}  // namespace woolly
