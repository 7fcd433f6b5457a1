// Many rows against groups of 32 columns by matrix tiles of bytes: a tile dot sums a group for up to 16 rows, exactly,
// and the vector side ends it. Weights are only unpacked to bytes, so that opening is cheap: types with a scale per 32
// columns for any number of rows, and super-blocks with eight groups for few rows, where the planes of grid256.h take
// longer to open than to compute with. The float side is that of blocks32.h and blocks256.h.
//
// While a group is ended, the tile dot of the next but one runs. Tiles 0 and 3 are sums, 4 and 5 activations, 6 and 7
// weights; the level supplies them as for grid256.h.

namespace woolly::WOOLLY_TARGET {

template <bool first, class A, class B>
struct Either {
    using type = A;
};
template <class A, class B>
struct Either<false, A, B> {
    using type = B;
};

// n groups in order: from(i) tells where the activations (and the distance of their rows) and the weights of group i
// are, end(i, sums) takes its sums, 16 for each row.
struct Group {
    const uint8_t* rows;
    int64_t step;
    const uint8_t* weights;
};
template <class From, class End>
[[gnu::always_inline]] inline void groups_in_turn(int n, const From& from, const End& end) {
    alignas(64) int32_t sums[2][256];
    const auto even = [&](int i) __attribute__((always_inline)) {
        const Group group = from(i);
        tile_zero<0>(), tile_load<4>(group.rows, group.step), tile_load<6>(group.weights, 64);
        tile_dot<0, 4, 6>();
    };
    const auto odd = [&](int i) __attribute__((always_inline)) {
        const Group group = from(i);
        tile_zero<3>(), tile_load<5>(group.rows, group.step), tile_load<7>(group.weights, 64);
        tile_dot<3, 5, 7>();
    };
    even(0);
    int i = 0;
    for (; i + 2 <= n; i += 2) {
        odd(i + 1);
        tile_store<0>(sums[0], 64);
        if (i > 0) end(i - 1, sums[1]);
        if (i + 2 < n) even(i + 2);
        tile_store<3>(sums[1], 64);
        end(i, sums[0]);
    }
    if (n > 1) {
        if (i < n) tile_store<0>(sums[0], 64);
        end(i - 1, sums[1]);
    } else {
        tile_store<0>(sums[0], 64);
    }
    if (i < n) end(i, sums[0]);
}

// What a type's sums do with tiles of 16 rows, and with 8 if no more are left.
template <class Sums>
struct GroupTiles {
    static void dot(const GridBlocks& of, int n_rows) {
        const int n_tiles = (n_rows + kTileRows - 1) / kTileRows, left = n_rows - (n_tiles - 1) * kTileRows;
        const int whole = left <= 8 ? n_tiles - 1 : n_tiles;
        const auto all = [&]<int M>(int tile) __attribute__((always_inline)) {
            for (int p = 0; p < of.n_panels; ++p)
                Sums::template rows<M>(of, of.open + int64_t(p) * of.n_blocks * Sums::bytes,
                                       of.tiles + tile * int64_t{Sums::tile},
                                       of.acc + p * of.acc_step + tile * int64_t{kTileRows * kPanel});
        };
        if (whole > 0) {
            tiles_begin(16, 16, 32);
            for (int t = 0; t < whole; ++t) all.template operator()<16>(t);
        }
        if (whole < n_tiles) {
            tiles_begin(8, 8, 32);
            all.template operator()<8>(whole);
        }
        tiles_end();
    }
};

template <bool has_min>
struct GroupSums32 {
    // As in Open32, but weights are signed.
    static constexpr int weights = has_min ? 128 : 64, bytes = weights + 512, tile = kTile32Bytes;

    template <int M>
    [[gnu::noinline]] static void rows(const GridBlocks& of, const uint8_t* open, const uint8_t* tiles, float* acc) {
        F32 sum[M];
        // By `each`, not by a loop: GCC keeps an array in registers only if its indices are numbers from the start.
        each<M>([&]<int m>() __attribute__((always_inline)) { sum[m] = load(acc + 16 * m); });
        groups_in_turn(
            of.n_blocks,
            [&](int b) __attribute__((always_inline)) {
                return Group{tiles + b * of.tiles_step, 32, open + b * bytes + weights};
            },
            [&](int b, const int32_t* sums) __attribute__((always_inline)) {
                const uint8_t *at = open + b * bytes, *row = tiles + b * of.tiles_step;
                const float* scales = reinterpret_cast<const float*>(row + kTile32Scales);
                const float* lows = reinterpret_cast<const float*>(row + kTile32Lows);
                const F32 d = load(reinterpret_cast<const float*>(at));
                each<M>([&]<int m>() __attribute__((always_inline)) {
                    sum[m] = fma(to_float(load_ints(sums + 16 * m)), mul(d, set1(scales[m])), sum[m]);
                });
                if constexpr (has_min) {
                    const F32 least = load(reinterpret_cast<const float*>(at + 64));
                    each<M>([&]<int m>()
                                __attribute__((always_inline)) { sum[m] = fma(least, set1(lows[m]), sum[m]); });
                }
            });
        each<M>([&]<int m>() __attribute__((always_inline)) { store(acc + 16 * m, sum[m]); });
    }
};

template <class Type>
struct Groups32 : GroupTiles<GroupSums32<Type::has_min>> {
    using Sums = GroupSums32<Type::has_min>;

    static void open(const uint8_t* panel, uint8_t* to) {
        for (int line = 0; line < Type::bytes; line += 64) prefetch(panel + kPrefetch + line);
        store(reinterpret_cast<float*>(to), Type::scale(panel));
        if constexpr (Type::has_min) store(reinterpret_cast<float*>(to + 64), halves(panel + 32));
        Type::unpack(panel, [&]<int v>(U8 w) __attribute__((always_inline)) {
            store_bytes(to + Sums::weights + 64 * v, Type::offset == 0 ? w : minus<Type::offset>(w));
        });
    }
};

// Super-blocks of eight groups of unsigned quants with minima. `exact`: the products of four groups and their
// sub-scales add up below 2^24, so floats hold them exactly, which takes two operations instead of three. The sum of
// two such numbers is rounded as the conversion of the whole number is.
template <bool exact>
struct GroupSums256 {
    static constexpr int low = 64, factors = 128, minima = factors + 512, weights = minima + 256,
                         bytes = weights + 4096, tile = kTileBytes;

    template <int M>
    [[gnu::noinline]] static void rows(const GridBlocks& of, const uint8_t* open, const uint8_t* tiles, float* acc) {
        alignas(64) float first[M * 16];
        typename Either<exact, F32, I32>::type parts[M];
        const auto clear = [&]() __attribute__((always_inline)) {
            each<M>([&]<int m>() __attribute__((always_inline)) {
                if constexpr (exact) {
                    parts[m] = zero();
                } else {
                    parts[m] = izero();
                }
            });
        };
        clear();
        groups_in_turn(
            8 * of.n_blocks,
            [&](int i) __attribute__((always_inline)) {
                const int b = i / 8, g = i % 8;
                return Group{tiles + b * of.tiles_step + 1024 * (g / 2) + 32 * (g % 2), 64,
                             open + b * bytes + weights + 512 * g};
            },
            [&](int i, const int32_t* sums) __attribute__((always_inline)) {
                const int b = i / 8, g = i % 8;
                const uint8_t *p = open + b * bytes, *row = tiles + b * of.tiles_step;
                if constexpr (exact) {
                    const F32 factor = load(reinterpret_cast<const float*>(p + factors + 64 * g));
                    each<M>([&]<int m>() __attribute__((always_inline)) {
                        parts[m] = fma(to_float(load_ints(sums + 16 * m)), factor, parts[m]);
                    });
                    if (g == 3) {
                        each<M>([&]<int m>() __attribute__((always_inline)) { store(first + 16 * m, parts[m]); });
                        clear();
                    }
                } else {
                    const I32 factor = load_ints(reinterpret_cast<const int32_t*>(p + factors + 64 * g));
                    each<M>([&]<int m>() __attribute__((always_inline)) {
                        parts[m] = iadd(parts[m], imul(factor, load_ints(sums + 16 * m)));
                    });
                }
                if (g < 7) return;
                const float* scales = reinterpret_cast<const float*>(row + kTileScales);
                const F32 d = load(reinterpret_cast<const float*>(p));
                const F32 least = load(reinterpret_cast<const float*>(p + low));
                each<M>([&]<int m>() __attribute__((always_inline)) {
                    F32 sum;
                    if constexpr (exact) {
                        sum = add(load(first + 16 * m), parts[m]);
                    } else {
                        sum = to_float(parts[m]);
                    }
                    I32 lows = izero();
                    each<4>([&]<int k>() __attribute__((always_inline)) {
                        lows = pair_dot(lows, load_bytes(p + minima + 64 * k), row + kTileSums32 + 16 * m + 4 * k);
                    });
                    const F32 y = fma(sum, mul(d, set1(scales[m])), load(acc + 16 * m));
                    store(acc + 16 * m, fma(to_float(lows), mul(least, set1(scales[m])), y));
                });
                clear();
            });
    }
};

template <class Type, int most>
struct Groups256 : GroupTiles<GroupSums256<4 * 32 * most * 127 * 63 <= 1 << 24>> {
    static_assert(Type::n_groups == 8 && Type::has_min && Type::offset == 0 && !Type::is_signed &&
                  !Type::signed_quants);
    static constexpr bool exact = 4 * 32 * most * 127 * 63 <= 1 << 24;
    using Sums = GroupSums256<exact>;

    static void open(const uint8_t* panel, uint8_t* to) {
        // The same columns of the panel are opened after those of its neighbours.
        for (int line = 0; line < Type::bytes; line += 64) prefetch(panel + 4 * Type::bytes + line);
        store(reinterpret_cast<float*>(to), Type::scale(panel));
        store(reinterpret_cast<float*>(to + Sums::low), sub(zero(), halves(panel + 32)));
        U8 scales[2], lows[2];
        Type::scales(panel, scales);
        Type::minima(panel, lows);
        each<8>([&]<int g>() __attribute__((always_inline)) {
            const I32 factor = byte<g % 4>(scales[g / 4]);
            if constexpr (exact) {
                store(reinterpret_cast<float*>(to + Sums::factors + 64 * g), to_float(factor));
            } else {
                store(reinterpret_cast<int32_t*>(to + Sums::factors + 64 * g), factor);
            }
        });
        each<4>([&]<int k>() __attribute__((always_inline)) {
            store_bytes(to + Sums::minima + 64 * k, byte_pair<k % 2>(lows[k / 2]));
        });
        each<256 / Type::unit>([&]<int u>() __attribute__((always_inline)) {
            Type::template unpack<u>(panel + Type::quants, [&]<int v>(U8 w) __attribute__((always_inline)) {
                store_bytes(to + Sums::weights + 16 * Type::unit * u + 64 * v, w);
            });
        });
    }
};

template <class Type>
constexpr void set_groups_32(KernelTable& t, WeightType type, Blocks32<Type>) {
    t.grid[int(type)] = {Groups32<Type>::open, Groups32<Type>::dot, 32, Type::bytes, Groups32<Type>::Sums::bytes};
}
template <class Other>
constexpr void set_groups_32(KernelTable&, WeightType, Other) {}

constexpr void set_groups(KernelTable& t) {
#define WOOLLY_ROW(name, id, columns, bytes, activation, kernel) set_groups_32(t, WeightType::name, kernel{});
    WOOLLY_BLOCKS_32(WOOLLY_ROW)
#undef WOOLLY_ROW
    using G4 = Groups256<Q4_K, 15>;
    using G5 = Groups256<Q5_K, 31>;
    t.few[int(WeightType::Q4_K)] = {G4::open, G4::dot, 256, Q4_K::bytes, G4::Sums::bytes};
    t.few[int(WeightType::Q5_K)] = {G5::open, G5::dot, 256, Q5_K::bytes, G5::Sums::bytes};
}

}  // namespace woolly::WOOLLY_TARGET
