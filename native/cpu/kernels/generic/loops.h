// Loops that the compiler unrolls, and weight prefetches spread over the iterations of a loop.

namespace woolly::WOOLLY_TARGET {

// f.operator()<i>() for i = 0 to n - 1, unrolled. Not recursive: inlining would copy the code once per level of
// recursion.
template <int n, class F>
[[gnu::always_inline]] inline void each(const F& f) {
    static_assert(n <= 16);
    if constexpr (n > 0) f.template operator()<0>();
    if constexpr (n > 1) f.template operator()<1>();
    if constexpr (n > 2) f.template operator()<2>();
    if constexpr (n > 3) f.template operator()<3>();
    if constexpr (n > 4) f.template operator()<4>();
    if constexpr (n > 5) f.template operator()<5>();
    if constexpr (n > 6) f.template operator()<6>();
    if constexpr (n > 7) f.template operator()<7>();
    if constexpr (n > 8) f.template operator()<8>();
    if constexpr (n > 9) f.template operator()<9>();
    if constexpr (n > 10) f.template operator()<10>();
    if constexpr (n > 11) f.template operator()<11>();
    if constexpr (n > 12) f.template operator()<12>();
    if constexpr (n > 13) f.template operator()<13>();
    if constexpr (n > 14) f.template operator()<14>();
    if constexpr (n > 15) f.template operator()<15>();
}

// f(0) to f(n - 1), not unrolled: f is long.
template <int n, class F>
[[gnu::always_inline]] inline void in_rounds(const F& f) {
#pragma GCC unroll 1
    for (int i = 0; i < n; ++i) f(i);
}

// Compiler barrier for loads and stores: interleaved code stays interleaved, and stores precede tile loads.
[[gnu::always_inline]] inline void in_order() { asm volatile("" ::: "memory"); }

// Prefetches a few lines at a time, about the number of outstanding misses of a core.
[[gnu::always_inline]] inline void fetch(Ahead& ahead) {
    if (ahead.at >= ahead.end) return;
    for (int line = 0; line < 8; ++line) prefetch(ahead.at + 64 * line);
    ahead.at += 512;
}

}  // namespace woolly::WOOLLY_TARGET
