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
    const int32_t* slots_in = nullptr;   // of steps that keep slots: the one to read, -1 for zeros
    const int32_t* slots_out = nullptr;  // the one to write
    const int32_t* keeps = nullptr;      // [n_keeps, 2]: (row, slot to which its state is written, too)
    int64_t n_keeps = 0;
    const float* cosines = nullptr;  // [n_turns, turn_width]: tables of all rotary embeddings side by side
    const float* sines = nullptr;
    int64_t n_turns = 0, turn_width = 0;

    // Throws if rows of a text were computed in an earlier run: some ops need all of them in one.
    void check_whole() const {
        for (int64_t s = 0; s < n_sequences; ++s)
            if (positions[offsets[s]] != 0) throw std::invalid_argument("a text must be whole in one batch");
    }
};

}  // namespace woolly
