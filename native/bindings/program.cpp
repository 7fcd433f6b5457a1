#include "program/program.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <stdexcept>

#include "bindings/bindings.h"
#include "kernels/select.h"
#include "quant/pack.h"

namespace nb = nanobind;

namespace woolly {

namespace {

using Bytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using WritableBytes = nb::ndarray<uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Floats = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Table = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Ints = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Pages = nb::ndarray<const int32_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using View = nb::ndarray<nb::numpy, float, nb::ndim<2>>;

KvType kv_type(const std::string& name) {
    if (name == "f32") return KvType::f32;
    if (name == "f16") return KvType::f16;
    if (name == "q8_0") return KvType::q8_0;
    throw std::invalid_argument("KV type '" + name + "' is unknown; choose f32, f16 or q8_0");
}

Op op_of(const std::string& name) {
    const std::pair<const char*, Op> ops[] = {
        {"embed", Op::embed}, {"rms_norm", Op::rms_norm},      {"linears", Op::linears}, {"moe", Op::moe},
        {"store", Op::store}, {"attend", Op::attend},          {"swiglu", Op::swiglu},   {"add", Op::add},
        {"scale", Op::scale}, {"output_rows", Op::output_rows}};
    for (const auto& [text, op] : ops)
        if (name == text) return op;
    throw std::invalid_argument("op '" + name + "' has no native form");
}

std::vector<std::string> level_names() {
    std::vector<std::string> names;
    for (const KernelTable* table : available_levels()) names.emplace_back(table->name);
    return names;
}

bool run(Program& program, Cache& cache, const Ints& tokens, const Ints& positions, const Ints& offsets,
         const Pages& pages, const Ints& output_rows, const Table& cosines, const Table& sines, int first, int last) {
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
    b.cosines = cosines.data();
    b.sines = sines.data();
    b.n_turns = int64_t(cosines.shape(0));
    const nb::gil_scoped_release release;
    return program.run(b, cache, first, last);
}

}  // namespace

void bind_program(nb::module_& m) {
    m.def("kernel_levels", &level_names, "Kernel levels that this machine can run, best first.");
    m.def(
        "pack",
        [](int type, int64_t rows, int64_t columns, const Bytes& source, const WritableBytes& out, bool pairs) {
            const TypeInfo info = type_info(type);
            if (info.block == 0 || rows < 1 || columns < 1 || columns % info.block != 0)
                throw std::invalid_argument("the matrix does not fit its type's blocks");
            const size_t stride = row_bytes(info, columns), panel = panel_bytes(info, columns);
            if (source.shape(0) < stride * size_t(rows) || out.shape(0) < panel * size_t((rows + kPanel - 1) / kPanel))
                throw std::invalid_argument("the arrays are too short for the matrix");
            const nb::gil_scoped_release release;
            for (int64_t r = 0; r < rows; r += kPanel)
                pack_panel(type, source.data() + size_t(r) * stride, stride, int(std::min<int64_t>(kPanel, rows - r)),
                           columns, pairs, out.data() + size_t(r / kPanel) * panel);
        },
        nb::arg("type"), nb::arg("rows"), nb::arg("columns"), nb::arg("source"), nb::arg("out"),
        nb::arg("pairs") = false);
    m.def(
        "dequantize_row",
        [](int type, const Bytes& source, int64_t columns, nb::ndarray<float, nb::ndim<1>, nb::c_contig> out) {
            const TypeInfo info = type_info(type);
            if (info.block == 0 || columns % info.block != 0 || source.shape(0) < row_bytes(info, columns) ||
                int64_t(out.shape(0)) < columns)
                throw std::invalid_argument("the arrays do not fit the row");
            dequantize_row(type, source.data(), columns, out.data());
        },
        nb::arg("type"), nb::arg("source"), nb::arg("columns"), nb::arg("out"));

    nb::class_<Cache>(m, "Cache")
        .def(
            "__init__",
            [](Cache* self, const std::string& type, int64_t n_pages, const std::vector<std::pair<int, int>>& layers) {
                new (self) Cache(kv_type(type), n_pages);
                for (const auto& [n_kv_heads, head_dim] : layers) self->add_layer(n_kv_heads, head_dim);
            },
            nb::arg("type"), nb::arg("n_pages"), nb::arg("layers"))
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
            [](Program& p, const std::string& op, const std::vector<int>& inputs, const std::vector<int>& outputs,
               const std::vector<int>& matrices, const std::vector<int>& biases, int norm, int k_norm,
               const std::string& epilogue, bool barrier_before, bool adjacent, float eps, float factor, float softcap,
               int layer, int head_dim, int n_rot, int window, int n_experts, int n_used, bool sigmoid, bool normalize,
               float weights_scale) {
                Step s;
                s.op = op_of(op);
                s.epilogue = epilogue == "swiglu"     ? Epilogue::swiglu
                             : epilogue == "residual" ? Epilogue::residual
                                                      : Epilogue::none;
                s.barrier_before = barrier_before;
                s.adjacent = adjacent;
                s.inputs = inputs;
                s.outputs = outputs;
                s.matrices = matrices;
                s.biases = biases;
                s.norm = norm;
                s.k_norm = k_norm;
                s.eps = eps;
                s.factor = factor;
                s.softcap = softcap;
                s.layer = layer;
                s.head_dim = head_dim;
                s.n_rot = n_rot;
                s.window = window;
                s.n_experts = n_experts;
                s.n_used = n_used;
                s.sigmoid = sigmoid;
                s.normalize = normalize;
                s.weights_scale = weights_scale;
                p.add_step(std::move(s));
            },
            nb::arg("op"), nb::arg("inputs"), nb::arg("outputs"), nb::kw_only(),
            nb::arg("matrices") = std::vector<int>(), nb::arg("biases") = std::vector<int>(), nb::arg("norm") = -1,
            nb::arg("k_norm") = -1, nb::arg("epilogue") = "none", nb::arg("barrier_before") = true,
            nb::arg("adjacent") = false, nb::arg("eps") = 0.0f, nb::arg("factor") = 1.0f, nb::arg("softcap") = 0.0f,
            nb::arg("layer") = 0, nb::arg("head_dim") = 0, nb::arg("n_rot") = 0, nb::arg("window") = 0,
            nb::arg("n_experts") = 0, nb::arg("n_used") = 0, nb::arg("sigmoid") = false, nb::arg("normalize") = false,
            nb::arg("weights_scale") = 1.0f)
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
             nb::arg("last"))
        .def("cancel", &Program::cancel)
        .def(
            "value",
            [](nb::handle self, int id, int64_t rows) {
                Program& p = nb::cast<Program&>(self);
                return View(p.value(id), {size_t(rows), size_t(p.value_width(id))}, self);
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
