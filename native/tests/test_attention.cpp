// Compares queries computed together with single queries, bit for bit, and with sums in f64, for every cache type and
// random heads, ranges and blocks. Scores of the index are compared, too. Built with -DTEST_LEVEL=k_LEVEL_level and
// linked with that level's target.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <vector>

#include "cpu/kernels/isa_tables.h"
#include "quant/blocks32.h"
#ifdef TEST_TILES
#include "machine/system.h"
#endif

namespace {

using namespace woolly;

const KernelTable kernels = joined(TEST_LEVEL);

std::mt19937 engine(1);
int between(int low, int high) { return std::uniform_int_distribution<int>(low, high)(engine); }

// Returns numbers that a cache type stores exactly: multiples of 1/32 up to 127/32, with the maximum in every 32
// columns; for q4, values of its table.
std::vector<float> random_heads(KvType type, int n, int columns) {
    std::vector<float> out(size_t(n * columns));
    for (size_t i = 0; i < out.size(); ++i) {
        const int any = type == KvType::q4 ? kIq4Values[between(0, 15)] : between(-127, 127);
        out[i] = float(int(i) % columns % 32 == 0 ? -127 : any) / 32.0f;
    }
    return out;
}

struct Query {
    std::vector<float> q, bias;
    float slope;
    int first, last;  // within the split
};

struct Case {
    KvType type, v_type;
    int k_dim, v_dim, n_blocks;
    bool inside;  // V is a part of K
    float softcap;
    bool sloped;  // scores decrease with the distance from the position after `last`
    std::vector<float> k, v;
    std::vector<Query> queries;
    std::vector<uint8_t> k_cache, v_cache;

    Case(KvType of_k, KvType of_v, int k_columns, int v_columns, bool is_inside)
        : type(of_k),
          v_type(of_v),
          k_dim(k_columns),
          v_dim(v_columns),
          n_blocks(between(1, kSplit / 16)),
          inside(is_inside) {
        softcap = between(0, 3) == 0 ? 5.0f : 0.0f;
        const bool biased = between(0, 3) == 0;
        sloped = !biased && between(0, 2) == 0;
        const int n = 16 * n_blocks, n_queries = between(0, 1) ? between(1, 20) : between(1, 140);
        k = random_heads(type, n, k_dim), v = random_heads(v_type, n, v_dim);
        const int window = between(0, 2) == 0 ? between(1, n) : n, end = between(std::max(1, n - 15), n);
        std::normal_distribution<float> normal;
        for (int i = 0; i < n_queries; ++i) {
            Query query;
            query.last = std::max(0, end - between(0, 3) * between(0, 20));
            query.first = std::max(0, query.last - window);
            for (int c = 0; c < k_dim; ++c) query.q.push_back(normal(engine));
            for (int p = 0; p < kSplit && biased; ++p) query.bias.push_back(normal(engine));
            query.slope = std::exp2(-float(between(1, 8)));
            queries.push_back(query);
        }
        if (between(0, 3) == 0) {  // positions visible to only some queries
            const int position = between(0, n - 1);
            v[size_t(position * v_dim)] = std::numeric_limits<float>::infinity();
        }
        store();
    }

    bool is_seen(int p) const {
        return std::any_of(queries.begin(), queries.end(), [&](const Query& q) { return p >= q.first && p < q.last; });
    }

    void store() {
        const size_t bytes = kv_block_bytes(type, k_dim), v_bytes = kv_block_bytes(v_type, v_dim);
        // Invisible positions may hold any value: here NaN.
        k_cache.assign(bytes * size_t(n_blocks), 0xff), v_cache.assign(v_bytes * size_t(n_blocks), 0xff);
        for (int p = 0; p < 16 * n_blocks; ++p) {
            if (!is_seen(p)) continue;
            kernels.kv[int(type)].store_k(&k[size_t(p * k_dim)], k_dim, p % 16, &k_cache[bytes * size_t(p / 16)]);
            kernels.kv[int(v_type)].store_v(&v[size_t(p * v_dim)], v_dim, p % 16, &v_cache[v_bytes * size_t(p / 16)]);
        }
    }

    // Sums, maximum and sum of weights of queries [from, from + n), one after another.
    std::vector<float> attend(int from, int n) const {
        constexpr int first_block = 8;
        std::vector<const float*> q, bias;
        std::vector<float> slopes;
        std::vector<int> first, last;
        std::vector<const uint8_t*> k_blocks, v_blocks;
        int blocks = 1;
        for (int i = from; i < from + n; ++i) {
            const Query& one = queries[size_t(i)];
            q.push_back(one.q.data());
            bias.push_back(one.bias.empty() ? nullptr : one.bias.data() - 16 * first_block);
            slopes.push_back(one.slope);
            first.push_back(one.first + 16 * first_block), last.push_back(one.last + 16 * first_block);
            blocks = std::max(blocks, (one.last + 15) / 16);
        }
        for (int b = 0; b < blocks; ++b) {
            k_blocks.push_back(k_cache.data() + kv_block_bytes(type, k_dim) * size_t(b));
            v_blocks.push_back(v_cache.data() + kv_block_bytes(v_type, v_dim) * size_t(b));
        }
        const int room = (k_dim + 31) / 32 * 32, v_room = (v_dim + 31) / 32 * 32;
        std::vector<float> scratch(attention_scratch(room, v_room) + 16, NAN), out(size_t(n * (v_dim + 2)), NAN);
        void* aligned = scratch.data();
        size_t space = scratch.size() * 4;
        std::align(64, 64, aligned, space);
        AttentionTile t{};
        t.q = q.data(), t.first = first.data(), t.last = last.data(), t.n_queries = n;
        t.bias = queries[0].bias.empty() ? nullptr : bias.data();
        t.slopes = sloped ? slopes.data() : nullptr, t.positions = last.data();
        t.k_dim = k_dim, t.v_dim = v_dim, t.scale = 1.0f / std::sqrt(float(k_dim)), t.softcap = softcap;
        t.k_blocks = k_blocks.data(), t.v_blocks = inside ? nullptr : v_blocks.data();
        t.first_block = first_block, t.n_blocks = blocks, t.scratch = static_cast<float*>(aligned);
        t.sums = {out.data(), out.data() + n * v_dim, out.data() + n * v_dim + n};
        t.k = &kernels.kv[int(type)], t.v = &kernels.kv[int(v_type)];
        kernels.attend(t);
        return out;
    }

    // Scores of an index with heads [from, from + n): a row per query, or one row with weights.
    std::vector<float> rank(int from, int n, const float* weights) const {
        const int step = 16 * n_blocks, room = (k_dim + 31) / 32 * 32;
        std::vector<const float*> q;
        std::vector<const uint8_t*> blocks;
        for (int i = from; i < from + n; ++i) q.push_back(queries[size_t(i)].q.data());
        for (int b = 0; b < n_blocks; ++b) blocks.push_back(k_cache.data() + kv_block_bytes(type, k_dim) * size_t(b));
        std::vector<float> scratch(size_t(kChunk * (n + room)) + 16, NAN), out(size_t(n * step), NAN);
        void* aligned = scratch.data();
        size_t space = scratch.size() * 4;
        std::align(64, 64, aligned, space);
        AttentionTile t{};
        t.q = q.data(), t.n_queries = n, t.k_dim = k_dim, t.k = &kernels.kv[int(type)];
        t.k_blocks = blocks.data(), t.n_blocks = n_blocks, t.scratch = static_cast<float*>(aligned);
        kernels.rank(t, weights, out.data(), step);
        return out;
    }

    // Counts scores that differ from those of a single head, and scores far from sums in f64.
    void check_rank(int& different, int& wrong) const {
        const int n = std::min(int(queries.size()), 9), step = 16 * n_blocks;
        std::vector<float> weights;
        for (int h = 0; h < n; ++h) weights.push_back(float(between(-64, 64)) / 32.0f);
        const std::vector<float> heads = rank(0, n, nullptr), weighed = rank(0, n, weights.data());
        std::vector<double> sums(size_t(step), 0.0), bounds(size_t(step), 0.0);
        for (int h = 0; h < n; ++h) {
            const std::vector<float> alone = rank(h, 1, nullptr);
            for (int p = 0; p < step; ++p) {
                if (!is_seen(p)) continue;
                double want = 0, size = 0;
                for (int c = 0; c < k_dim; ++c) {
                    const double one = double(queries[size_t(h)].q[size_t(c)]) * double(k[size_t(p * k_dim + c)]);
                    want += one, size += std::fabs(one);
                }
                const float& got = heads[size_t(h * step + p)];
                different += std::memcmp(&got, &alone[size_t(p)], 4) == 0 ? 0 : 1;
                wrong += std::fabs(double(got) - want) <= 0x1p-19 * size ? 0 : 1;
                sums[size_t(p)] += std::max(want, 0.0) * double(weights[size_t(h)]);
                bounds[size_t(p)] += 0x1p-18 * size * std::fabs(double(weights[size_t(h)]));
            }
        }
        for (int p = 0; p < step; ++p)
            if (is_seen(p))
                wrong += std::fabs(double(weighed[size_t(p)]) - sums[size_t(p)]) <= bounds[size_t(p)] ? 0 : 1;
    }

    // Largest difference from sums in f64, relative to the tolerance.
    double error(int i, const float* out, float sum) const {
        const Query& query = queries[size_t(i)];
        std::vector<double> want(size_t(v_dim), 0.0), scores;
        double length = 0, longest = 0, total = 0, most = 0;
        for (int c = 0; c < k_dim; ++c) length += double(query.q[size_t(c)]) * double(query.q[size_t(c)]);
        for (int p = query.first; p < query.last; ++p) {
            double score = 0, size = 0;
            for (int c = 0; c < k_dim; ++c) {
                const double x = double(k[size_t(p * k_dim + c)]);
                score += double(query.q[size_t(c)]) * x, size += x * x;
            }
            longest = std::max(longest, size);
            score /= std::sqrt(double(k_dim));
            if (!query.bias.empty()) score += double(query.bias[size_t(p)]);
            if (sloped) score -= double(query.slope) * (query.last - p);
            if (softcap != 0.0f) score = double(softcap) * std::tanh(score / double(softcap));
            scores.push_back(score);
        }
        const double top = scores.empty() ? 0 : *std::max_element(scores.begin(), scores.end());
        for (size_t p = 0; p < scores.size(); ++p) {
            const double weight = std::exp(scores[p] - top);
            total += weight;
            for (int c = 0; c < v_dim; ++c) {
                const double x =
                    double((inside ? k : v)[(size_t(query.first) + p) * size_t(inside ? k_dim : v_dim) + size_t(c)]);
                want[size_t(c)] += weight * x, most = std::max(most, std::fabs(x));
            }
        }
        if (scores.empty()) return sum == 0.0f ? 0 : 2;
        if (!std::isfinite(most)) return 0;
        // Tolerance for f32 sums, and for an exponential with an error of 2e-7.
        const double bound = most * std::expm1(0x1p-19 * (1 + std::sqrt(length * longest / k_dim)));
        double worst = 0;
        for (int c = 0; c < v_dim; ++c)
            worst = std::max(worst, std::fabs(double(out[c]) / double(sum) - want[size_t(c)] / total));
        return worst / bound;
    }
};

}  // namespace

int main() {
#ifdef TEST_TILES
    if (!tiles_allowed()) return std::puts("no tiles are allowed here"), 1;
#endif
    int different = 0, wrong = 0, cases = 0;
    const int dims[][2] = {{64, 64}, {128, 128}, {32, 32}, {96, 64}, {192, 128}, {80, 48}, {16, 16}, {64, 160}};
    const KvType types[][2] = {{KvType::f32, KvType::f32},
                               {KvType::f16, KvType::f16},
                               {KvType::q8_0, KvType::q8_0},
                               {KvType::q4, KvType::q4},
                               {KvType::q8_0, KvType::q4}};
    for (int round = 0; round < 6; ++round)
        for (const auto& [k_type, v_type] : types)
            for (const auto& [k_dim, v_dim] : dims) {
                if (v_type >= KvType::q8_0 && (k_dim % 32 != 0 || v_dim % 32 != 0)) continue;
                const bool inside = v_dim <= k_dim && between(0, 5) == 0;
                const Case one(k_type, v_type, k_dim, v_dim, inside);
                const int n = int(one.queries.size());
                const std::vector<float> together = one.attend(0, n);
                ++cases;
                one.check_rank(different, wrong);
                for (int i = 0; i < n; ++i) {
                    const std::vector<float> alone = one.attend(i, 1);
                    const float *out = together.data() + i * v_dim, *max = together.data() + n * v_dim + i;
                    const bool same = std::memcmp(out, alone.data(), size_t(v_dim) * 4) == 0 &&
                                      std::memcmp(max, &alone[size_t(v_dim)], 4) == 0 &&
                                      std::memcmp(max + n, &alone[size_t(v_dim) + 1], 4) == 0;
                    different += same ? 0 : 1;
                    wrong += one.error(i, out, max[n]) <= 1 ? 0 : 1;
                }
            }
    std::printf("%s: %d cases, %d different, %d wrong\n", kernels.name, cases, different, wrong);
    return different + wrong == 0 ? 0 : 1;
}
