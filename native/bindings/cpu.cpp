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
#include "cpu/program/turns.h"
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

KvType kv_type(const std::string& name) {
    if (name == "f32") return KvType::f32;
    if (name == "f16") return KvType::f16;
    if (name == "q8_0") return KvType::q8_0;
    throw std::invalid_argument("KV type '" + name + "' is unknown; choose f32, f16 or q8_0");
}

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

bool run(Program& program, Cache& cache, const Ints& tokens, const Ints& positions, const Ints& offsets,
         const Pages& pages, const Ints& output_rows, const Table& cosines, const Table& sines, int first, int last,
         const std::optional<WindowPages>& window_pages, const std::optional<Table>& adapters,
         const std::optional<Ints>& slots_in, const std::optional<Ints>& slots_out, const std::optional<Pages>& keeps,
         const std::optional<Table>& hidden, bool is_hidden_normed) {
    BatchView b;
    b.n_rows = int64_t(tokens.shape(0));
    b.n_sequences = int64_t(offsets.shape(0)) - 1;
    b.n_output = int64_t(output_rows.shape(0));
    b.max_pages = int64_t(pages.shape(1));
    if (int64_t(positions.shape(0)) != b.n_rows || b.n_sequences < 1 || int64_t(pages.shape(0)) != b.n_sequences)
        throw std::invalid_argument("the arrays of the batch do not fit together");
    b.tokens = tokens.data();
    b.positions = positions.data();
    b.offsets = offsets.data();
    b.pages = pages.data();
    b.output_rows = output_rows.data();
    if (window_pages) {
        if (int64_t(window_pages->shape(1)) != b.n_sequences || int64_t(window_pages->shape(2)) != b.max_pages)
            throw std::invalid_argument("the page tables of windows do not fit the batch");
        b.n_windows = int64_t(window_pages->shape(0));
        b.window_pages = window_pages->data();
    }
    if (adapters) {
        if (int64_t(adapters->shape(0)) != b.n_sequences)
            throw std::invalid_argument("the scales of adapters do not fit the batch");
        b.n_adapters = int64_t(adapters->shape(1));
        b.adapters = adapters->data();
    }
    if (hidden) {
        if (int64_t(hidden->shape(0)) != b.n_rows)
            throw std::invalid_argument("the hidden states do not fit the batch");
        b.hidden_width = int64_t(hidden->shape(1));
        b.hidden = hidden->data();
        b.is_hidden_normed = is_hidden_normed;
    }
    if (slots_in && slots_out) {
        if (int64_t(slots_in->shape(0)) != b.n_sequences || int64_t(slots_out->shape(0)) != b.n_sequences)
            throw std::invalid_argument("the slots of the batch do not fit its sequences");
        b.slots_in = slots_in->data();
        b.slots_out = slots_out->data();
    }
    if (keeps) {
        if (keeps->shape(1) != 2) throw std::invalid_argument("what is to be kept is no (row, slot)");
        b.n_keeps = int64_t(keeps->shape(0));
        b.keeps = keeps->data();
    }
    b.cosines = cosines.data();
    b.sines = sines.data();
    b.n_turns = int64_t(cosines.shape(0));
    b.turn_width = int64_t(cosines.shape(1));
    const nb::gil_scoped_release release;
    return program.run(b, cache, first, last);
}

// Checks that a page or slot is there and that the bytes are as many as it has.
void check_block(const Cache& cache, int64_t number, int64_t count, size_t wanted, size_t given) {
    for (const Cache::Window& window : cache.windows())
        if (window.table >= 0) throw std::invalid_argument("pages of a cache with windows cannot be copied");
    if (number < 0 || number >= count) throw std::invalid_argument("the cache has no such page or slot");
    if (wanted != given) throw std::invalid_argument("the bytes are not as many as the cache keeps there");
}

void bind_turns(const Doubles& frequencies, const Doubles& magnitudes, const WritableTable& cosines,
                const WritableTable& sines) {
    const size_t n = frequencies.size();
    if (n == 0 || magnitudes.size() != n || cosines.shape(1) != n || sines.shape(1) != n ||
        cosines.shape(0) != sines.shape(0))
        throw std::invalid_argument("tables of turns need a column for each frequency and equally many rows");
    const nb::gil_scoped_release release;
    turns({frequencies.data(), n}, {magnitudes.data(), n}, {cosines.data(), cosines.size()},
          {sines.data(), sines.size()});
}

}  // namespace

void bind_program(nb::module_& m) {
    m.def("kernel_levels", &level_names, "Kernel levels that this machine can run, best first.");

    m.def("turns", &bind_turns, nb::arg("frequencies"), nb::arg("magnitudes"), nb::arg("cosines"), nb::arg("sines"),
          "Fills tables [position, pair] with cosines and sines of position * frequency, times the magnitude; the same "
          "bits on every machine.");
    m.attr("PAGE_SIZE") = kPageSize;
    m.def(
        "kv_value_bytes", [](const std::string& type) { return double(kv_block_bytes(kv_type(type), 32)) / (32 * 16); },
        nb::arg("type"), "Bytes of one number in the KV cache, scales included.");

    nb::class_<Cache>(m, "Cache")
        .def(
            "__init__",
            [](Cache* self, const std::string& type, int64_t n_pages,
               const std::vector<std::tuple<int, int, int>>& layers) {
                new (self) Cache(kv_type(type), n_pages);
                for (const auto& [n_kv_heads, k_dim, v_dim] : layers) self->add_layer(n_kv_heads, k_dim, v_dim);
            },
            nb::arg("type"), nb::arg("n_pages"), nb::arg("layers"))
        .def("set_window", &Cache::set_window, nb::arg("entry"), nb::arg("table"), nb::arg("length"),
             nb::arg("n_pages"))
        .def("add_slots", &Cache::add_slots, nb::arg("n_slots"), nb::arg("numbers"))
        .def(
            "read_page",
            [](const Cache& c, int64_t page, const WritableBytes& out) {
                check_block(c, page, c.n_pages(), c.page_bytes(), out.size());
                c.read_page(page, out.data());
            },
            nb::arg("page"), nb::arg("out"), "Copies a page of all entries to bytes.")
        .def(
            "write_page",
            [](Cache& c, int64_t page, const Bytes& in) {
                check_block(c, page, c.n_pages(), c.page_bytes(), in.size());
                c.write_page(page, in.data());
            },
            nb::arg("page"), nb::arg("source"), "Copies bytes of `read_page` to a page.")
        .def(
            "read_slot",
            [](const Cache& c, int32_t slot, const WritableBytes& out) {
                check_block(c, slot, c.n_slots(), c.slot_bytes(), out.size());
                c.read_slot(slot, out.data());
            },
            nb::arg("slot"), nb::arg("out"), "Copies a slot of all entries to bytes.")
        .def(
            "write_slot",
            [](Cache& c, int32_t slot, const Bytes& in) {
                check_block(c, slot, c.n_slots(), c.slot_bytes(), in.size());
                c.write_slot(slot, in.data());
            },
            nb::arg("slot"), nb::arg("source"), "Copies bytes of `read_slot` to a slot.")
        .def_prop_ro("page_bytes", &Cache::page_bytes)
        .def_prop_ro("slot_bytes", &Cache::slot_bytes)
        .def_prop_ro("n_bytes", &Cache::n_bytes)
        .def_prop_ro("n_pages", &Cache::n_pages);

    nb::class_<Program>(m, "Program")
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
            nb::arg("barrier_before") = true)
        .def("finish", &Program::finish)
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
             nb::arg("slots_in") = nb::none(), nb::arg("slots_out") = nb::none(), nb::arg("keeps") = nb::none(),
             nb::arg("hidden") = nb::none(), nb::arg("is_hidden_normed") = false)
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

}  // namespace woolly
