// The avxvnni level: avx2 with the byte dots of VNNI. Includes no STL: a function of it compiled with this file's flags
// must not replace another file's.
#include "cpu/kernels/table.h"

// clang-format off: the algorithms need the primitives before them
#define WOOLLY_TARGET avxvnni
#include "cpu/kernels/primitives/avx2.h"
#include "cpu/kernels/primitives/strips.h"
#include "cpu/kernels/generic/kernels.h"
#include "cpu/kernels/generic/grids.h"
// clang-format on

namespace woolly {

extern const KernelTable k_avxvnni_table;
constinit const KernelTable k_avxvnni_table = [] {
    KernelTable table = avxvnni::make_table("avxvnni");
    avxvnni::GridsFloats::set_all(table);
    return table;
}();

}  // namespace woolly
