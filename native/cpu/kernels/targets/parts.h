// Kernel table of a level, in parts that are compiled separately, to keep each compilation short and run several in
// parallel. WOOLLY_ONLY_name selects the part to compile; without WOOLLY_ONLY all are. cpu/kernels/isa_tables.h lists
// the parts of each level. The ternary part also has code shared by others (generic/kernels.h).
//
// The target must define set<Kernel>(table, type), which sets the kernels of a weight type.

#define WOOLLY_NAME_OF(level, part) k_##level##_##part
#define WOOLLY_NAME(level, part) WOOLLY_NAME_OF(level, part)
// Constant-initialized table: no code may run at library load, because the CPU may lack the level's instructions.
#define WOOLLY_MAKE(part, ...)                                                                   \
    namespace woolly::WOOLLY_TARGET {                                                            \
    constexpr KernelTable make_##part() {                                                        \
        KernelTable t{};                                                                         \
        __VA_ARGS__                                                                              \
        return t;                                                                                \
    }                                                                                            \
    }                                                                                            \
    namespace woolly {                                                                           \
    extern const KernelTable WOOLLY_NAME(WOOLLY_TARGET, part);                                   \
    constinit const KernelTable WOOLLY_NAME(WOOLLY_TARGET, part) = WOOLLY_TARGET::make_##part(); \
    }
#define WOOLLY_ROW(name, id, columns, bytes, activation, kernel) set<kernel>(t, WeightType::name);

#if !defined(WOOLLY_FLOATS_ALONE)
#if defined(WOOLLY_ONLY_blocks32) || !defined(WOOLLY_ONLY)
WOOLLY_MAKE(blocks32, WOOLLY_BLOCKS_32(WOOLLY_ROW))
#endif
#if defined(WOOLLY_ONLY_many_bits) || !defined(WOOLLY_ONLY)
WOOLLY_MAKE(many_bits, WOOLLY_MANY_BITS(WOOLLY_ROW))
#endif
#if defined(WOOLLY_ONLY_few_bits) || !defined(WOOLLY_ONLY)
WOOLLY_MAKE(few_bits, WOOLLY_FEW_BITS(WOOLLY_ROW))
#endif
#if defined(WOOLLY_ONLY_ternary) || !defined(WOOLLY_ONLY)
WOOLLY_MAKE(ternary, WOOLLY_TERNARY(WOOLLY_ROW))
#endif
#if defined(WOOLLY_ONLY_points_of_8) || !defined(WOOLLY_ONLY)
WOOLLY_MAKE(points_of_8, WOOLLY_POINTS_OF_8(WOOLLY_ROW))
#endif
#if defined(WOOLLY_ONLY_points_of_4) || !defined(WOOLLY_ONLY)
WOOLLY_MAKE(points_of_4, WOOLLY_POINTS_OF_4(WOOLLY_ROW))
#endif
#endif
// A level defined as a difference uses the floats and rows of its base level.
#if !defined(WOOLLY_DIFFERENCE) && !defined(WOOLLY_QUANTS)
#if defined(WOOLLY_ONLY_floats) || !defined(WOOLLY_ONLY)
WOOLLY_MAKE(floats, WOOLLY_FLOATS(WOOLLY_ROW))
#endif
#if defined(WOOLLY_ONLY_rows) || !defined(WOOLLY_ONLY)
WOOLLY_MAKE(rows, set_rows(t);)
#endif
#endif

#undef WOOLLY_ROW
#undef WOOLLY_MAKE
#undef WOOLLY_NAME
#undef WOOLLY_NAME_OF
