// One run's inputs, as Batch in Python has them, and the rotary tables.
#pragma once

#include <cstdint>
#include <stdexcept>

namespace woolly {

struct BatchView {
    int64_t n_rows = 0, n_sequences = 0, n_output = 0, max_pages = 0;
    const int32_t* tokens = nullptr;
    const int32_t* positions = nullptr;
    const int32_t* offsets = nullptr;
    const int32_t* pages = nullptr;
    const int32_t* window_pages = nullptr;  // [n_windows, n_sequences, max_pages]
    int64_t n_windows = 0;
    const int32_t* output_rows = nullptr;
    const float* adapters = nullptr;  // [n_sequences, n_adapters]: how much of each; null: 1
    int64_t n_adapters = 0;
    const float* hidden = nullptr;  // [n_rows, hidden_width]: hidden states, of drafts
    int64_t hidden_width = 0;
    bool is_hidden_normed = false;
    const float* inputs_embeds = nullptr;  // [n_embeds, embeds_width]: rows of a tower, in place of tokens
    const int32_t* embeds_rows = nullptr;  // the row of the batch of each, ascending
    int64_t n_embeds = 0, embeds_width = 0;
    const int32_t* attn_ranges = nullptr;   // [n_rows, 2]: positions (first, end) that a row attends to
    const int32_t* gather_rows = nullptr;   // [n_rows, n_gather]: rows of tables that are added to a row, -1 for none
    const float* gather_weights = nullptr;  // how much of each
    int64_t n_gather = 0;
    const int32_t* slots_in = nullptr;   // of steps that keep slots: the one to read, -1 for zeros
    const int32_t* slots_out = nullptr;  // the one to write
    const int32_t* snapshots = nullptr;  // [n_snapshots, 2]: (row, slot to which its state is written, too)
    int64_t n_snapshots = 0;
    const float* cosines = nullptr;  // [n_rope_rows, rope_width]: tables of all rotary embeddings side by side
    const float* sines = nullptr;
    const int32_t* rope_rows = nullptr;  // [n_rows]: the row of these tables of each row; null: its position
    int64_t n_rope_rows = 0, rope_width = 0;
    // Rows of a step's result that are computed, from first to before last; last -1: all. Other rows keep their values.
    int64_t part_first = 0, part_last = -1;

    bool is_part() const { return part_last >= 0; }
    // The row of the rotary tables of a row's rope position.
    int64_t rope_row(int64_t row) const { return rope_rows == nullptr ? positions[row] : rope_rows[row]; }

    // Throws if rows of a text were computed in an earlier run: some ops need all of them in one.
    void check_whole() const {
        for (int64_t s = 0; s < n_sequences; ++s)
            if (positions[offsets[s]] != 0) throw std::invalid_argument("a text must be whole in one batch");
    }
};

}  // namespace woolly
