// What kernels over packed tiles of activations share: the loop over panels and row tiles, and a place in the table.

namespace woolly::WOOLLY_TARGET {

// Two panels at a time, so that a broadcast of activations meets the weights of both. Row tiles are taken as 6, 5 and 5
// rows by Kernel::rows<rows, panels>.
template <class Kernel, int tile_bytes>
struct GridPairs {
    template <int P>
    [[gnu::noinline]] static void panels(const GridBlocks& of, int first, int n_tiles) {
        const uint8_t* open = of.open + int64_t(first) * of.n_blocks * Kernel::bytes;
        for (int t = 0; t < n_tiles; ++t) {
            const uint8_t* tile = of.tiles + t * int64_t{tile_bytes};
            float* acc = of.acc + first * of.acc_step + t * 256;
            Kernel::template rows<6, P>(of, open, tile, 0, acc);
            for (int row = 6; row < kTileRows; row += 5) Kernel::template rows<5, P>(of, open, tile, row, acc);
        }
    }

    static void dot(const GridBlocks& of, int n_rows) {
        const int n_tiles = (n_rows + kTileRows - 1) / kTileRows;
        int p = 0;
        for (; p + 2 <= of.n_panels; p += 2) panels<2>(of, p, n_tiles);
        if (p < of.n_panels) panels<1>(of, p, n_tiles);
    }
};

// Kernel<Type> serves the types of one family, whose blocks have `columns` columns. Others keep what they have.
template <template <class> class Family, template <class> class Kernel, int columns>
struct Grids {
    template <class Type>
    static constexpr void set(KernelTable& t, WeightType type, Family<Type>) {
        const int bytes = columns / kTypes.of[int(type)].block * Type::bytes;
        t.grid[int(type)] = {Kernel<Type>::open, Kernel<Type>::dot, columns, bytes, Kernel<Type>::bytes, 2, nullptr};
        if constexpr (requires { Kernel<Type>::together; }) t.grid[int(type)].together = Kernel<Type>::together;
        if constexpr (requires { Kernel<Type>::for_few(); }) t.grid[int(type)].few = Kernel<Type>::for_few();
    }
    template <class Other>
    static constexpr void set(KernelTable&, WeightType, Other) {}
};

using GridsFloats = Grids<Floats, GridFloats, kFloatColumns>;

}  // namespace woolly::WOOLLY_TARGET
