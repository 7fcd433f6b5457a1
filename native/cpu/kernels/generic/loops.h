// Loops that the compiler unrolls, and the prefetch of weights that a loop spreads over its rounds.

namespace woolly::WOOLLY_TARGET {

// f.operator()<i>() for i = 0 to n - 1, unrolled.
template <int n, int i = 0, class F>
[[gnu::always_inline]] inline void each(const F& f) {
    if constexpr (i < n) {
        f.template operator()<i>();
        each<n, i + 1>(f);
    }
}

// f(0) to f(n - 1), not unrolled: f is long.
template <int n, class F>
[[gnu::always_inline]] inline void in_rounds(const F& f) {
#pragma GCC unroll 1
    for (int i = 0; i < n; ++i) f(i);
}

// The compiler moves no load or store over this: what is interleaved stays so, and what a tile loads has been stored.
[[gnu::always_inline]] inline void in_order() { asm volatile("" ::: "memory"); }

// Some lines at a time, as many as a core waits for at once.
[[gnu::always_inline]] inline void fetch(Ahead& ahead) {
    if (ahead.at >= ahead.end) return;
    for (int line = 0; line < 8; ++line) prefetch(ahead.at + 64 * line);
    ahead.at += 512;
}

}  // namespace woolly::WOOLLY_TARGET
