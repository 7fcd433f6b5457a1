// Many rows against super-blocks of 256 columns with int8 matrix tiles. Opening multiplies each weight by its
// sub-scale. The product has up to 13 bits and is split into two byte planes, so that a tile sums all 256 columns
// exactly without a break. One conversion and one fma (two with minima) finish it, as in k_quants.h.
//
// A unit is 32 rows by 16 by 256 columns, 16 tile dots. The float operations that finish a unit run between the tile
// dots of the next one, two rows after each dot. Larger pieces leave the tiles idle: 8 rows at a time cost 15 %, and
// finishing after all dots doubles the time.
//
// The level supplies split_products, scale_twice, byte_products, pair_dot, byte_pair and the tiles: tiles_begin(rows,
// more, columns), tiles_end(), and by number tile_zero, tile_load, tile_load_once, tile_dot, tile_dot_unsigned,
// tile_store. Tiles 0 to 3 are sums: low and high planes of 16 rows, then of 16 more; 4 and 5 are activations, 6 and 7
// weights.

namespace woolly::WOOLLY_TARGET {

// Opened super-blocks of n groups; types with equal parameters share the code. `halved`: the planes are products with
// the halves of an unsigned scale = low + 8 * high; else the product = low + 128 * high.
template <int n, bool has_min, bool halved>
struct GridSums256 {
    static constexpr int pairs = has_min ? n / 2 : 0, shift = halved ? 3 : 7;
    // f32 scales of 16 rows, f32 minima, sub-minima in pairs of 16 bits, two planes.
    static constexpr int low = 64, minima = has_min ? 128 : 64, planes = minima + 64 * pairs, bytes = planes + 2 * 4096;

    struct Unit {
        const uint8_t *front, *planes;  // opened weights: the header before the planes, and the planes
        const uint8_t* tiles;
        float* acc;
    };

    // Header of the planes, in registers for all rows of a unit, because loading it per pair of rows took 4 % longer.
    // Compilers do not keep a vector in a register across a store that may alias it.
    struct Front {
        F32 d, least;
        U8 lows[pairs > 0 ? pairs : 1];
    };
    [[gnu::always_inline]] static Front front_of(const Unit& unit) {
        Front front{};
        front.d = load(reinterpret_cast<const float*>(unit.front));
        if constexpr (has_min) front.least = load(reinterpret_cast<const float*>(unit.front + low));
        each<pairs>([&]<int k>()
                        __attribute__((always_inline)) { front.lows[k] = load_bytes(unit.front + minima + 64 * k); });
        return front;
    }

    // Finishes rows `row` and row + 1 of a unit. All inputs are loaded before the first store.
    template <int row>
    [[gnu::always_inline]] static void finish(const Front& front, const Unit& unit, const int32_t* sums) {
        constexpr int r = row % 16;
        const uint8_t* tile = unit.tiles + row / 16 * kTileBytes;
        const int32_t* at = sums + row / 16 * 512 + 16 * r;
        const float* scales = reinterpret_cast<const float*>(tile + kTileScales) + r;
        float* acc = unit.acc + 16 * row;
        const F32 s0 = set1(scales[0]), s1 = set1(scales[1]);
        const I32 t0 = iadd(load_ints(at), ishift_left<shift>(load_ints(at + 256)));
        const I32 t1 = iadd(load_ints(at + 16), ishift_left<shift>(load_ints(at + 256 + 16)));
        F32 y0 = fma(to_float(t0), mul(front.d, s0), load(acc));
        F32 y1 = fma(to_float(t1), mul(front.d, s1), load(acc + 16));
        if constexpr (has_min) {
            const uint8_t* a = tile + (n == 8 ? kTileSums32 : kTileSums16) + 2 * n * r;
            I32 l0 = izero(), l1 = izero();
            each<pairs>([&]<int k>() __attribute__((always_inline)) {
                l0 = pair_dot(l0, front.lows[k], a + 4 * k);
                l1 = pair_dot(l1, front.lows[k], a + 2 * n + 4 * k);
            });
            y0 = fma(to_float(l0), mul(front.least, s0), y0);
            y1 = fma(to_float(l1), mul(front.least, s1), y1);
        }
        store(acc, y0);
        store(acc + 16, y1);
    }

    template <int c, int a, int b>
    [[gnu::always_inline]] static void tile_product() {
        if constexpr (halved) {
            tile_dot_unsigned<c, a, b>();
        } else {
            tile_dot<c, a, b>();
        }
    }

    // Loads activations. For few rows they bypass L1, which is left to the weights being opened: 32 rows take 10 % less
    // time, 8 rows 5 %. With many rows they are reused for a second panel, without a gain.
    template <int t, bool many>
    [[gnu::always_inline]] static void load_rows(const uint8_t* tile) {
        if constexpr (many) {
            tile_load<t>(tile, 64);
        } else {
            tile_load_once<t>(tile, 64);
        }
    }

    // Operands of a unit's first dots with two row tiles.
    template <bool many>
    [[gnu::always_inline]] static void load_first(const Unit& unit) {
        load_rows<4, many>(unit.tiles), tile_load<6>(unit.planes, 64);
        tile_load<7>(unit.planes + 4096, 64), load_rows<5, many>(unit.tiles + kTileBytes);
    }

    // Runs the tile dots of a unit with one or two row tiles, interleaved with the finish of the unit before (of which
    // `rows` rows are finished) and more<i>() for i = 0 to 7, or to 15 with two tiles. With two, a tile is reloaded
    // right after the last dot that reads it instead of right before the next one: 10 % less time (5 % next to a busy
    // sibling thread). The operands of the first dots are loaded then, too, and with `ahead` (many rows) those of the
    // next unit at the end.
    template <bool two, bool before, bool ahead, class More>
    [[gnu::always_inline]] static void step(const Unit& unit, const Unit& next, const Unit& last, int rows,
                                            int32_t* sums, const More& more) {
        const uint8_t *p = unit.planes, *a = unit.tiles;
        Front front{};
        if constexpr (before) front = front_of(last);
        tile_zero<0>(), tile_zero<1>();
        if constexpr (two) tile_zero<2>(), tile_zero<3>();
        each<4>([&]<int k>() __attribute__((always_inline)) {
            constexpr int row = (two ? 8 : 4) * k, slot = row / 2;
            constexpr bool load = two && (k < 3 || ahead);
            const uint8_t* after = k < 3 ? a + 1024 * (k + 1) : next.tiles;
            const uint8_t* planes_after = k < 3 ? p + 1024 * (k + 1) : next.planes;
            if constexpr (!two) tile_load<6>(p + 1024 * k, 64), load_rows<4, ahead>(a + 1024 * k);
            tile_product<0, 4, 6>();
            if (before && row < rows) finish<row>(front, last, sums);
            more.template operator()<slot>();
            if constexpr (!two) tile_load<7>(p + 4096 + 1024 * k, 64);
            tile_product<1, 4, 7>();
            if constexpr (load) load_rows<4, ahead>(after);
            if (before && row + 2 < rows) finish<row + 2>(front, last, sums);
            more.template operator()<slot + 1>();
            if constexpr (two) {
                tile_product<2, 5, 6>();
                if constexpr (load) tile_load<6>(planes_after, 64);
                if (before && row + 4 < rows) finish<row + 4>(front, last, sums);
                more.template operator()<slot + 2>();
                if constexpr (k == 3) tile_store<0>(sums, 64);  // rows that were ended at the first two steps
                tile_product<3, 5, 7>();
                if constexpr (load) tile_load<7>(planes_after + 4096, 64), load_rows<5, ahead>(after + kTileBytes);
                if (before && row + 6 < rows) finish<row + 6>(front, last, sums);
                more.template operator()<slot + 3>();
            }
        });
        if constexpr (!two) tile_store<0>(sums, 64);
        tile_store<1>(sums + 256, 64);
        if constexpr (two) tile_store<2>(sums + 512, 64), tile_store<3>(sums + 768, 64);
    }

    // Units of pairs of row tiles, or of single ones.
    template <bool two>
    static void units(const GridBlocks& of, int first, int n_units, int32_t* sums) {
        int64_t tile = first;
        int p = 0, b = 0;
        const auto here = [&] {
            const uint8_t* open = of.open + int64_t(p * of.n_blocks + b) * bytes;
            return Unit{open, open + planes, of.tiles + b * of.tiles_step + tile * kTileBytes,
                        of.acc + p * of.acc_step + tile * 256};
        };
        const auto nothing = []<int>() __attribute__((always_inline)) {};
        Unit unit = here(), last{};
        if constexpr (two) load_first<true>(unit);
        for (int left = n_units * of.n_panels * of.n_blocks; left > 0; --left) {
            if (++b == of.n_blocks) b = 0, ++p;
            if (p == of.n_panels) p = 0, tile += two ? 2 : 1;
            const Unit next = left > 1 ? here() : unit;
            if (last.acc == nullptr) {
                step<two, false, true>(unit, next, last, 2 * kTileRows, sums, nothing);
            } else {
                step<two, true, true>(unit, next, last, 2 * kTileRows, sums, nothing);
            }
            last = unit, unit = next;
        }
        const Front front = front_of(last);
        each<two ? 16 : 8>([&]<int i>() __attribute__((always_inline)) { finish<2 * i>(front, last, sums); });
    }

    static void dot(const GridBlocks& of, int n_rows) {
        const int n_tiles = (n_rows + kTileRows - 1) / kTileRows;
        alignas(64) int32_t sums[4 * 256];
        tiles_begin(16, n_tiles > 1 ? 16 : 0, 64);
        if (n_tiles > 1) units<true>(of, 0, n_tiles / 2, sums);
        if (n_tiles % 2 != 0) units<false>(of, n_tiles - 1, 1, sums);
        tiles_end();
    }
};

// Planes hold weights of up to five bits times three-bit halves of the scale, which fit bytes, or signed products.
template <class Type>
constexpr bool kHalved = !Type::is_signed && !Type::signed_quants && Type::offset == 0;

template <class Type>
struct Grid256 : GridSums256<Type::n_groups, Type::has_min, kHalved<Type>> {
    using Sums = GridSums256<Type::n_groups, Type::has_min, kHalved<Type>>;
    static constexpr int n = Type::n_groups;
    using Sums::low, Sums::minima, Sums::planes, Sums::bytes;
    using typename Sums::Unit;

    static void open(const uint8_t* panel, int, uint8_t* to) {
        for (int line = 0; line < Type::bytes; line += 64) prefetch(panel + Type::bytes + line);
        U8 scales[n / 4];
        open_front(panel, to, scales);
        each<n_pieces>([&]<int u>() __attribute__((always_inline)) { open_piece<u>(panel, scales, to + planes); });
    }

    // Opens the header and the sub-scales.
    [[gnu::always_inline]] static void open_front(const uint8_t* panel, uint8_t* to, U8* scales) {
        store(reinterpret_cast<float*>(to), Type::scale(panel));
        Type::scales(panel, scales);
        if constexpr (Type::has_min) {
            store(reinterpret_cast<float*>(to + low), sub(zero(), halves(panel + 32)));
            U8 lows[n / 4];
            Type::minima(panel, lows);
            each<n / 4>([&]<int k>() __attribute__((always_inline)) {
                store_bytes(to + minima + 128 * k, byte_pair<0>(lows[k]));
                store_bytes(to + minima + 128 * k + 64, byte_pair<1>(lows[k]));
            });
        }
    }

    // Opens part u of the planes.
    static constexpr int n_pieces = 256 / Type::unit;
    template <int u>
    [[gnu::always_inline]] static void open_piece(const uint8_t* panel, const U8* scales, uint8_t* to) {
        constexpr int units = kUnits<Type>;
        Type::template unpack<u % units>(
            panel + Type::quants, u / units * units, [&]<int v>(U8 w) __attribute__((always_inline)) {
                constexpr int g = (Type::unit * u + 4 * v) / (256 / n);
                U8 first, second;
                if constexpr (kHalved<Type>) {
                    first = byte_products(w, scale_twice<g % 4>(low_bits(scales[g / 4], 7)));
                    second = byte_products(w, scale_twice<g % 4>(shift_right<3>(scales[g / 4])));
                } else {
                    split_products<Type::offset, Type::signed_quants>(w, sub_scale<Type, g>(scales), &first, &second);
                }
                uint8_t* at = to + 16 * Type::unit * u + 64 * v;
                store_bytes(at, first);
                store_bytes(at + 4096, second);
            });
    }

    // Few rows: the next super-block is opened between the tile dots of this one and the finish of the unit before, so
    // that opened weights stay in L1.
    template <bool two>
    static void few_units(const FewBlocks& of, int n_rows, int32_t* sums) {
        static constexpr int slots = two ? 16 : 8, lines = (Type::bytes + 63) / 64;
        const auto front = [&](int i) { return of.open + 1024 * (i % 3); };
        const auto opened = [&](int i) { return of.open + 3 * 1024 + 8192 * (i % 2); };
        U8 scales[n / 4];
        open_front(of.panels, front(0), scales);
        each<n_pieces>([&]<int u>() __attribute__((always_inline)) { open_piece<u>(of.panels, scales, opened(0)); });
        const int n_units = of.n_panels * of.n_blocks;
        Unit last{};
        for (int i = 0, p = 0, b = 0; i < n_units; ++i) {
            const uint8_t* at = of.panels + p * of.panels_step + int64_t(b) * Type::bytes;
            const uint8_t* tiles = of.tiles + b * of.tiles_step;
            float* acc = of.acc + p * of.acc_step;
            if (++b == of.n_blocks) b = 0, ++p;
            const uint8_t* next = i + 1 < n_units ? of.panels + p * of.panels_step + int64_t(b) * Type::bytes : at;
            uint8_t* to = opened(i + 1);
            const auto open_next = [&]<int slot>() __attribute__((always_inline)) {
                constexpr int from = slot * n_pieces / slots, count = (slot + 1) * n_pieces / slots - from;
                constexpr int first = slot * lines / slots, end = (slot + 1) * lines / slots;
                if constexpr (slot == 0) open_front(next, front(i + 1), scales);
                // Prefetches to L2: 8, 16 and 32 rows read weights from memory 1.21, 1.06 and 1.08 times as fast as
                // with prefetch to L1, which opened weights need.
                for (int line = first; line < end; ++line) prefetch_early(at + 4 * kPrefetch + 64 * line);
                each<count>([&]<int u>() __attribute__((always_inline)) { open_piece<from + u>(next, scales, to); });
                in_order();
            };
            in_order();
            Unit unit{front(i), opened(i), tiles, acc};
            if constexpr (two) Sums::template load_first<false>(unit);
            if (last.acc == nullptr) {
                Sums::template step<two, false, false>(unit, unit, last, n_rows, sums, open_next);
            } else {
                Sums::template step<two, true, false>(unit, unit, last, n_rows, sums, open_next);
            }
            last = unit;
        }
        const typename Sums::Front left = Sums::front_of(last);
        each<two ? 16 : 8>([&]<int i>() __attribute__((always_inline)) {
            if (2 * i < n_rows) Sums::template finish<2 * i>(left, last, sums);
        });
    }
    static void few(const FewBlocks& of, int n_rows) {
        alignas(64) int32_t sums[4 * 256];
        const int first = n_rows < kTileRows ? n_rows : kTileRows;  // a tile with fewer rows takes less time
        tiles_begin(first, n_rows - first, 64);
        if (n_rows > kTileRows) {
            few_units<true>(of, n_rows, sums);
        } else {
            few_units<false>(of, n_rows, sums);
        }
        tiles_end();
    }
    // Not for codebooks and ternary quants: their code would take minutes to compile.
    static constexpr FewDot for_few() {
        if constexpr (Type::one_by_one) {
            return nullptr;
        } else {
            return few;
        }
    }
};

// Matrix tiles are used for super-blocks, whose products fit two planes.
using GridsTiles256 = Grids<Blocks256, Grid256, 256>;

}  // namespace woolly::WOOLLY_TARGET
