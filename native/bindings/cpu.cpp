#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <stdexcept>

#include "bindings/bindings.h"
#include "cpu/kernels/select.h"
#include "cpu/program/program.h"
#include "cpu/program/rope_tables.h"
#include "cpu/weights/pack.h"

namespace nb = nanobind;

namespace woolly {

namespace {

using Bytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using WritableBytes = nb::ndarray<uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Floats = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Doubles = nb::ndarray<const double, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using WritableTable = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Table = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Ints = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Pages = nb::ndarray<const int32_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using WindowPages = nb::ndarray<const int32_t, nb::ndim<3>, nb::c_contig, nb::device::cpu>;
using View = nb::ndarray<nb::numpy, float, nb::ndim<2>>;

std::map<std::string, Arguments::Attribute> attributes_of(const nb::dict& given) {
    std::map<std::string, Arguments::Attribute> out;
    for (const auto& [key, value] : given) {
        const std::string name = nb::cast<std::string>(key);
        if (nb::isinstance<nb::float_>(value))
            out[name] = nb::cast<double>(value);
        else if (nb::isinstance<nb::int_>(value))
            out[name] = nb::cast<int64_t>(value);
        else if (nb::isinstance<nb::str>(value))
            out[name] = nb::cast<std::string>(value);
        else
            throw std::invalid_argument("attribute '" + name + "' is neither a number nor text");
    }
    return out;
}

std::vector<std::string> level_names() {
    std::vector<std::string> names;
    for (const KernelTable* table : available_levels()) names.emplace_back(table->name);
    return names;
}

void check(bool fits, const char* what) {
    if (!fits) throw std::invalid_argument(what);
}

// Embeddings in place of tokens.
void inject(BatchView& b, const Table& inputs_embeds, const Ints& rows) {
    check(inputs_embeds.shape(0) == rows.shape(0), "the batch has another number of embeddings than of rows for them");
    b.n_embeds = int64_t(inputs_embeds.shape(0));
    b.embeds_width = int64_t(inputs_embeds.shape(1));
    b.inputs_embeds = inputs_embeds.data();
    b.embeds_rows = rows.data();
    for (int64_t i = 0; i < b.n_embeds; ++i)
        check(b.embeds_rows[i] >= (i ? b.embeds_rows[i - 1] + 1 : 0) && b.embeds_rows[i] < b.n_rows,
              "rows of embeddings are outside of the batch, or not in order");
}

bool run(Program& program, Cache& cache, const Ints& tokens, const Ints& positions, const Ints& offsets,
         const Pages& pages, const Ints& output_rows, const Table& cosines, const Table& sines, int first, int last,
         const std::optional<WindowPages>& window_pages, const std::optional<Table>& adapters,
         const std::optional<Ints>& slots_in, const std::optional<Ints>& slots_out,
         const std::optional<Pages>& snapshots, const std::optional<Table>& hidden, bool is_hidden_normed,
         const std::optional<Table>& inputs_embeds, const std::optional<Ints>& embeds_rows,
         const std::optional<Pages>& attn_ranges, const std::optional<Pages>& gather_rows,
         const std::optional<Table>& gather_weights, const std::optional<Ints>& rope_rows,
         const std::optional<std::pair<int64_t, int64_t>>& part) {
    BatchView b;
    b.n_rows = int64_t(tokens.shape(0));
    b.n_sequences = int64_t(offsets.shape(0)) - 1;
    b.n_output = int64_t(output_rows.shape(0));
    b.max_pages = int64_t(pages.shape(1));
    check(int64_t(positions.shape(0)) == b.n_rows && b.n_sequences > 0 && int64_t(pages.shape(0)) == b.n_sequences,
          "the arrays of the batch do not fit together");
    b.tokens = tokens.data();
    b.positions = positions.data();
    b.offsets = offsets.data();
    b.pages = pages.data();
    b.output_rows = output_rows.data();
    if (window_pages) {
        check(int64_t(window_pages->shape(1)) == b.n_sequences && int64_t(window_pages->shape(2)) == b.max_pages,
              "the page tables of windows do not fit the batch");
        b.n_windows = int64_t(window_pages->shape(0));
        b.window_pages = window_pages->data();
    }
    if (adapters) {
        check(int64_t(adapters->shape(0)) == b.n_sequences, "the scales of adapters do not fit the batch");
        b.n_adapters = int64_t(adapters->shape(1));
        b.adapters = adapters->data();
    }
    if (hidden) {
        check(int64_t(hidden->shape(0)) == b.n_rows, "the hidden states do not fit the batch");
        b.hidden_width = int64_t(hidden->shape(1));
        b.hidden = hidden->data();
        b.is_hidden_normed = is_hidden_normed;
    }
    if (inputs_embeds && embeds_rows) inject(b, *inputs_embeds, *embeds_rows);
    if (attn_ranges) {
        check(int64_t(attn_ranges->shape(0)) == b.n_rows && attn_ranges->shape(1) == 2,
              "what rows see does not fit the batch");
        b.attn_ranges = attn_ranges->data();
    }
    if (gather_rows && gather_weights) {
        check(int64_t(gather_rows->shape(0)) == b.n_rows && gather_weights->shape(0) == gather_rows->shape(0) &&
                  gather_weights->shape(1) == gather_rows->shape(1),
              "the gathered rows do not fit the batch");
        b.n_gather = int64_t(gather_rows->shape(1));
        b.gather_rows = gather_rows->data();
        b.gather_weights = gather_weights->data();
    }
    if (rope_rows) {
        check(int64_t(rope_rows->shape(0)) == b.n_rows, "the rope positions do not fit the batch");
        b.rope_rows = rope_rows->data();
    }
    if (slots_in && slots_out) {
        check(int64_t(slots_in->shape(0)) == b.n_sequences && int64_t(slots_out->shape(0)) == b.n_sequences,
              "the slots of the batch do not fit its sequences");
        b.slots_in = slots_in->data();
        b.slots_out = slots_out->data();
    }
    if (snapshots) {
        check(snapshots->shape(1) == 2, "what is to be kept is no (row, slot)");
        b.n_snapshots = int64_t(snapshots->shape(0));
        b.snapshots = snapshots->data();
    }
    if (part) b.part_first = part->first, b.part_last = std::max<int64_t>(0, part->second);
    b.cosines = cosines.data();
    b.sines = sines.data();
    b.n_rope_rows = int64_t(cosines.shape(0));
    b.rope_width = int64_t(cosines.shape(1));
    const nb::gil_scoped_release release;
    return program.run(b, cache, first, last);
}

void bind_rope_tables(const Doubles& frequencies, const Doubles& magnitudes, const WritableTable& cosines,
                      const WritableTable& sines) {
    const size_t n = frequencies.size();
    if (n == 0 || magnitudes.size() != n || cosines.shape(1) != n || sines.shape(1) != n ||
        cosines.shape(0) != sines.shape(0))
        throw std::invalid_argument("rope tables need a column for each frequency and equally many rows");
    const nb::gil_scoped_release release;
    rope_tables({frequencies.data(), n}, {magnitudes.data(), n}, {cosines.data(), cosines.size()},
                {sines.data(), sines.size()});
}

// Methods that build a program.
void bind_making(nb::class_<Program>& program) {
    program
        .def(
            "__init__",
            [](Program* self, const std::string& level, int threads, int64_t max_rows, size_t arena_bytes,
               int64_t max_context) {
                const KernelTable* table = find_level(level);
                if (table == nullptr) throw std::invalid_argument("kernel level '" + level + "' cannot run here");
                new (self) Program(*table, threads, max_rows, arena_bytes, max_context);
            },
            nb::arg("level"), nb::arg("threads"), nb::arg("max_rows"), nb::arg("arena_bytes"), nb::arg("max_context"))
        .def(
            "add_matrix",
            [](Program& p, int type, int64_t rows, int64_t columns, const Bytes& source, bool mapped) {
                const TypeInfo info = type_info(type);
                if (info.block != 0 && source.shape(0) < row_bytes(info, columns) * size_t(rows))
                    throw std::invalid_argument("the matrix is longer than its bytes");
                return p.add_matrix(type, rows, columns, source.data(), mapped);
            },
            nb::arg("type"), nb::arg("rows"), nb::arg("columns"), nb::arg("source"), nb::arg("mapped") = false,
            nb::keep_alive<1, 5>())
        .def(
            "add_vector", [](Program& p, const Floats& v) { return p.add_vector(v.data(), int64_t(v.shape(0))); },
            nb::arg("vector"))
        .def("add_value", &Program::add_value, nb::arg("offset"), nb::arg("width"), nb::arg("output_rows"))
        .def(
            "add_step",
            [](Program& p, std::string op, std::vector<int> inputs, std::vector<int> outputs,
               Arguments::Weights weights, const nb::dict& attributes, bool barrier_before) {
                Arguments a;
                a.op = std::move(op);
                a.inputs = std::move(inputs);
                a.outputs = std::move(outputs);
                a.weights = std::move(weights);
                a.attributes = attributes_of(attributes);
                p.add_step(std::move(a), barrier_before);
            },
            nb::arg("op"), nb::arg("inputs"), nb::arg("outputs"), nb::arg("weights"), nb::arg("attributes"),
            nb::arg("barrier_before") = true);
}

void bind_running(nb::class_<Program>& program) {
    program.def("finish", &Program::finish)
        .def(
            "set_packed",
            [](Program& p, int matrix, const WritableBytes& memory) { p.set_packed(matrix, memory.data()); },
            nb::arg("matrix"), nb::arg("memory"), nb::keep_alive<1, 3>())
        .def("panels_done", &Program::panels_done, nb::arg("matrix"))
        .def("prepare", &Program::prepare, "Starts to pack weights ahead of their use.")
        .def("stop_preparing", &Program::stop_preparing, nb::call_guard<nb::gil_scoped_release>())
        .def("run", &run, nb::arg("cache"), nb::arg("tokens"), nb::arg("positions"), nb::arg("offsets"),
             nb::arg("pages"), nb::arg("output_rows"), nb::arg("cosines"), nb::arg("sines"), nb::arg("first"),
             nb::arg("last"), nb::arg("window_pages") = nb::none(), nb::arg("adapters") = nb::none(),
             nb::arg("slots_in") = nb::none(), nb::arg("slots_out") = nb::none(), nb::arg("snapshots") = nb::none(),
             nb::arg("hidden") = nb::none(), nb::arg("is_hidden_normed") = false, nb::arg("inputs_embeds") = nb::none(),
             nb::arg("embeds_rows") = nb::none(), nb::arg("attn_ranges") = nb::none(),
             nb::arg("gather_rows") = nb::none(), nb::arg("gather_weights") = nb::none(),
             nb::arg("rope_rows") = nb::none(), nb::arg("part") = nb::none())
        .def("cancel", &Program::cancel)
        .def(
            "value",
            [](nb::handle self, int id, int64_t rows) {
                const Program& p = nb::cast<Program&>(self);
                const Value& value = p.value(id);
                return View(value.data, {size_t(rows), size_t(value.width)}, self);
            },
            nb::arg("id"), nb::arg("rows"), nb::rv_policy::reference)
        .def_prop_ro("threads", &Program::n_threads)
        .def_prop_ro("level", &Program::level)
        .def("set_profiling", &Program::set_profiling, nb::arg("on"))
        .def(
            "take_times",
            [](Program& p) {
                std::vector<int64_t> out = p.times();
                std::fill(p.times().begin(), p.times().end(), 0);
                return out;
            },
            "Nanoseconds per step since the last call.");
}

}  // namespace

void bind_program(nb::module_& m) {
    m.def("kernel_levels", &level_names, "Kernel levels that this machine can run, best first.");

    m.def("rope_tables", &bind_rope_tables, nb::arg("frequencies"), nb::arg("magnitudes"), nb::arg("cosines"),
          nb::arg("sines"),
          "Fills tables [position, pair] with cosines and sines of position * frequency, times the magnitude; the same "
          "bits on every machine.");

    nb::class_<Program> program(m, "Program");
    bind_making(program);
    bind_running(program);
}

}  // namespace woolly
