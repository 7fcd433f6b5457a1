// Memory shared by the workers of moe steps: the routing of rows, and rows in slot order.
#pragma once

#include <cstring>

#include "cpu/ops/experts.h"
#include "cpu/ops/panels.h"

namespace woolly {

// Copies a prepared row: rows of one expert need a constant stride in memory (cpu/kernels/table.h). The copy is scaled
// by the weight; for quantized rows, the scales and values derived from them are.
inline ActivationRow copied(const ActivationRow& from, Activation kind, int64_t columns, uint8_t* to, float weight) {
    const bool whole = kind == Activation::f32;
    const uint8_t* base = whole ? reinterpret_cast<const uint8_t*>(from.x) : reinterpret_cast<const uint8_t*>(from.q);
    std::memcpy(to, base, whole ? size_t(columns) * 4 : activation_row_bytes(kind, columns));
    const auto moved = [&]<class T>(const T* part) -> const T* {
        if (part == nullptr) return nullptr;
        return reinterpret_cast<const T*>(to + (reinterpret_cast<const uint8_t*>(part) - base));
    };
    const auto weighed = [&](const float* part, int64_t n) {
        if (part == nullptr || weight == 1.0f) return;
        for (int64_t i = 0; i < n; ++i) const_cast<float*>(part)[i] *= weight;
    };
    const ActivationRow row{moved(from.x),
                            moved(from.q),
                            moved(from.scale),
                            moved(from.sums),
                            moved(from.lows),
                            moved(from.planes),
                            from.ordinary && weight == 1.0f};
    weighed(row.x, columns);
    weighed(row.scale, columns / (kind == Activation::q8_256 ? 256 : 32));
    weighed(row.lows, columns / 32);
    return row;
}

struct MoeScratch final : Scratch {
    size_t n_experts = 0, n_used = 0, ffn = 0, slot_bytes = 0, low = 0;
    std::vector<Routes> routes;   // per worker
    std::vector<float> logits;    // [rows, n_experts]
    std::vector<int32_t> chosen;  // [rows, n_used], ascending within a row
    std::vector<float> shares;    // [rows, n_used]
    Memory slots, hidden;         // [slots, slot_bytes], f32 [slots, ffn]
    Memory lows;                  // f32 [slots, low]: adapter contributions, one matrix after another
    std::vector<ActivationRow> slot_rows[3], hidden_rows;  // [slots]; hidden rows overwrite the inputs of slots

    void allocate(const Program& program) override {
        const size_t n_rows = size_t(program.max_rows()), n_slots = n_rows * n_used;
        logits.resize(n_rows * n_experts);
        chosen.resize(n_slots);
        shares.resize(n_slots);
        slots = Memory(n_slots * slot_bytes);
        hidden = Memory(n_slots * ffn * 4);
        if (low > 0) lows = Memory(n_slots * low * 4);
        for (auto& rows : slot_rows) rows.resize(n_slots);
        hidden_rows.resize(n_slots);
        routes.resize(size_t(program.n_threads()));
        for (Routes& own : routes) {
            own.chosen.resize(n_used);
            own.shares.resize(n_used);
            own.first.resize(n_experts + 1);
            own.active.reserve(n_experts);
            own.tile.resize(n_experts);
            own.ranks.resize(n_experts);
            own.sums.resize(n_experts);
            own.row.resize(n_slots);
            own.weight.resize(n_slots);
            for (auto& rows : own.input) rows.resize(n_used);
            own.hidden.resize(n_used);
            own.memory = Memory(n_used * slot_bytes);
        }
    }
};

}  // namespace woolly
