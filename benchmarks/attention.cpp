// Attention alone, in one thread at one level, over a cache of random numbers in memory: for each setting billions of
// products per second of processor time, the best of several rounds, and a sum over the bits of the result.
// benchmarks/attention.py builds and runs it.
#include <time.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include "cpu/kernels/table.h"

using namespace woolly;
namespace woolly {
extern const KernelTable ROWS;
}

static double now() {
    timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return double(t.tv_sec) + 1e-9 * double(t.tv_nsec);
}
static void* memory(size_t bytes) {
    void* p = std::aligned_alloc(64, (bytes + 63) / 64 * 64);
    std::memset(p, 0, bytes);
    return p;
}

int main(int argc, char** argv) {
    const KernelTable& k = ROWS;
    const int rounds = argc > 1 ? std::atoi(argv[1]) : 5;
    std::mt19937 engine(1);
    std::normal_distribution<float> normal;
    struct Setting {
        KvType type;
        int dim, queries, past;
    };
    std::vector<Setting> settings;
    for (KvType type : {KvType::f16, KvType::q8_0})
        for (int dim : {64, 128})
            for (int queries : {1, 4, 7, 8, 32, 128}) settings.push_back({type, dim, queries, 4096});
    for (const Setting& s : settings) {
        const size_t block = kv_block_bytes(s.type, s.dim);
        const int heads = s.queries < 8 ? 16 : 1, n_blocks = s.past / 16 * heads;
        uint8_t* cache = static_cast<uint8_t*>(memory(2 * block * size_t(n_blocks)));
        std::vector<float> x(size_t(s.dim));
        for (int p = 0; p < 16 * n_blocks; ++p) {
            for (int c = 0; c < s.dim; ++c)  // all of some positions, then one column of each
                if (p < 1024 || c == p % s.dim) x[size_t(c)] = normal(engine);
            k.kv[int(s.type)].store_k(x.data(), s.dim, p % 16, cache + 2 * block * size_t(p / 16));
            k.kv[int(s.type)].store_v(x.data(), s.dim, p % 16, cache + 2 * block * size_t(p / 16) + block);
        }
        const int n = s.queries;
        float* q = static_cast<float*>(memory(size_t(n * s.dim) * 4));
        for (int i = 0; i < n * s.dim; ++i) q[i] = normal(engine);
        std::vector<const float*> queries;
        for (int i = 0; i < n; ++i) queries.push_back(q + i * s.dim);
        float* scratch = static_cast<float*>(memory(attention_scratch(s.dim, s.dim) * 4));
        const size_t numbers = size_t(n * s.dim) + size_t((2 * n + 15) / 16 * 16);
        float* sums = static_cast<float*>(memory(2 * numbers * 4));
        const auto part = [&](int i) {
            float* out = sums + size_t(i) * numbers;
            return AttentionSums{out, out + n * s.dim, out + n * s.dim + n};
        };
        double best = 1e9;
        for (int round = 0; round < rounds; ++round) {
            const double start = now();
            for (int h = 0; h < heads; ++h)
                for (int at = 0; at < s.past; at += kSplit) {
                    const uint8_t *kb[kSplit / 16], *vb[kSplit / 16];
                    for (int b = 0; b < kSplit / 16; ++b) {
                        kb[b] = cache + 2 * block * size_t((h * s.past + at) / 16 + b);
                        vb[b] = kb[b] + block;
                    }
                    std::vector<int> f(size_t(n), at), l(size_t(n), at + kSplit);
                    AttentionTile t{};
                    t.q = queries.data(), t.first = f.data(), t.last = l.data(), t.n_queries = n;
                    t.k_dim = t.v_dim = s.dim, t.scale = 1.0f / std::sqrt(float(s.dim));
                    t.k = t.v = &k.kv[int(s.type)];
                    t.k_blocks = kb, t.v_blocks = vb, t.first_block = at / 16, t.n_blocks = kSplit / 16;
                    t.scratch = scratch, t.sums = part(at > 0);
                    k.attend(t);
                    if (at > 0) k.merge(part(0), part(1), n, s.dim);
                }
            best = std::min(best, now() - start);
        }
        uint64_t hash = 1469598103934665603u;
        for (size_t i = 0; i < size_t(n * (s.dim + 2)); ++i) {
            uint32_t bits;
            std::memcpy(&bits, sums + i, 4);
            hash = (hash ^ bits) * 1099511628211u;
        }
        const double products = 2.0 * n * s.dim * s.past * heads;
        std::printf("%s %d %d %.2f %.2f %016llx\n", kKvInfos[int(s.type)].name, s.dim, n, products / best * 1e-9,
                    double(2 * block * size_t(n_blocks)) / best * 1e-9, static_cast<unsigned long long>(hash));
        std::fflush(stdout);
        std::free(cache), std::free(q), std::free(scratch), std::free(sums);
    }
}
