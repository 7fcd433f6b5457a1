// Scans of the avx512 level. Includes no STL: an STL function compiled with this file's flags must not replace another
// file's copy.
#include "cpu/kernels/scans.h"
#include "cpu/kernels/table.h"

// clang-format off: the algorithms need the primitives before them
#define WOOLLY_TARGET avx512_scans
#include "cpu/kernels/primitives/avx512.h"
#include "cpu/kernels/generic/loops.h"
#include "cpu/kernels/generic/vectors.h"
namespace woolly::WOOLLY_TARGET {
constexpr int kScanVectors = 4;  // of columns whose sums fit registers
}
#include "cpu/kernels/generic/scans.h"
// clang-format on

namespace woolly {

extern const ScanTable k_avx512_scans;
constinit const ScanTable k_avx512_scans = avx512_scans::make_scans();

}  // namespace woolly
