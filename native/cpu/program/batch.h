// Inputs of one run, as in Python's Batch, and the rotary tables.
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
    const float* adapters = nullptr;  // [n_sequences, n_adapters]: scale of each adapter; null: 1
    int64_t n_adapters = 0;
    const float* hidden = nullptr;  // [n_rows, hidden_width]: hidden states, for drafts
    int64_t hidden_width = 0;
    bool is_hidden_normed = false;
    const float* inputs_embeds = nullptr;  // [n_embeds, embeds_width]: encoder outputs injected in place of tokens
    const int32_t* embeds_rows = nullptr;  // batch row of each, ascending
    int64_t n_embeds = 0, embeds_width = 0;
    const int32_t* attn_ranges = nullptr;   // [n_rows, 2]: positions (first, end) that a row attends to
    const int32_t* gather_rows = nullptr;   // [n_rows, n_gather]: table rows that are added to a row, -1: none
    const float* gather_weights = nullptr;  // weight of each
    int64_t n_gather = 0;
    const int32_t* slots_in = nullptr;   // of steps with slots: the one to read, -1: zeros
    const int32_t* slots_out = nullptr;  // the one to write
    const int32_t* snapshots = nullptr;  // [n_snapshots, 2]: (row, slot to which its state is also written)
    int64_t n_snapshots = 0;
    const float* cosines = nullptr;  // [n_rope_rows, rope_width]: tables of all rotary embeddings, concatenated
    const float* sines = nullptr;
    const int32_t* rope_rows = nullptr;  // [n_rows]: table row of each batch row; null: its position
    int64_t n_rope_rows = 0, rope_width = 0;
    // Range of result rows to compute; last -1: all. Other rows keep their values.
    int64_t part_first = 0, part_last = -1;

    bool is_part() const { return part_last >= 0; }
    // Row of the rotary tables for a row's rope position.
    int64_t rope_row(int64_t row) const { return rope_rows == nullptr ? positions[row] : rope_rows[row]; }

    // Throws if rows of a text were computed in an earlier run: some ops need the complete text in one run.
    void check_whole() const {
        for (int64_t s = 0; s < n_sequences; ++s)
            if (positions[offsets[s]] != 0) throw std::invalid_argument("a text must be whole in one batch");
    }
};

}  // namespace woolly
