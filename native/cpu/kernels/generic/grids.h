// Shared code of kernels over packed tiles of activations: the loop over panels and row tiles, and registration in the
// kernel table.

namespace woolly::WOOLLY_TARGET {

// Two panels of a grid and their sums. A single last panel is passed twice, and the second sums go to `nowhere`:
// kernels for one panel would add half the code for the odd last panel of a matrix.
struct PanelPair {
    const uint8_t* open[2];
    float* acc[2];
};

// Processes two panels at a time, so that a broadcast of activations is used for both. Row tiles are split into 6, 5
// and 5 rows by Kernel::rows<rows>.
template <class Kernel, int tile_bytes>
struct GridPairs {
    static void dot(const GridBlocks& of, int n_rows);
};
// Not inline, so that files with an `extern template` declaration do not compile it.
template <class Kernel, int tile_bytes>
void GridPairs<Kernel, tile_bytes>::dot(const GridBlocks& of, int n_rows) {
    const int n_tiles = (n_rows + kTileRows - 1) / kTileRows;
    alignas(64) float nowhere[kTileRows * kPanel];
    for (int first = 0; first < of.n_panels; first += 2) {
        const bool is_pair = first + 1 < of.n_panels;
        if (!is_pair) std::memset(nowhere, 0, sizeof nowhere);
        const uint8_t* open = of.open + int64_t(first) * of.n_blocks * Kernel::bytes;
        const uint8_t* second = is_pair ? open + int64_t(of.n_blocks) * Kernel::bytes : open;
        for (int t = 0; t < n_tiles; ++t) {
            const uint8_t* tile = of.tiles + t * int64_t{tile_bytes};
            float* acc = of.acc + first * of.acc_step + t * 256;
            const PanelPair pair{{open, second}, {acc, is_pair ? acc + of.acc_step : nowhere}};
            Kernel::template rows<6>(of, pair, tile, 0);
            for (int row = 6; row < kTileRows; row += 5) Kernel::template rows<5>(of, pair, tile, row);
        }
    }
}

// Sets Kernel<Type> for the types of one family, whose blocks have `columns` columns; other types are left unchanged.
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
