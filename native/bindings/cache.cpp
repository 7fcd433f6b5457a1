#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <stdexcept>
#include <utility>

#include "bindings/bindings.h"
#include "cpu/state/pages.h"

namespace nb = nanobind;

namespace woolly {

namespace {

using Bytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using WritableBytes = nb::ndarray<uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

KvType kv_type(const std::string& name) {
    std::string names;
    for (int i = 0; i < kKvTypes; ++i) {
        if (name == kKvInfos[i].name) return KvType(i);
        names += (i == 0 ? "" : ", ") + std::string(kKvInfos[i].name);
    }
    throw std::invalid_argument("KV type '" + name + "' is unknown; choose one of: " + names);
}

// Types of K and of V: "K/V", or one name for both.
std::pair<KvType, KvType> kv_types(const std::string& names) {
    const size_t bar = names.find('/');
    return {kv_type(names.substr(0, bar)), kv_type(bar == std::string::npos ? names : names.substr(bar + 1))};
}

// Throws unless the page or slot exists and the bytes have its size.
void check_block(int64_t number, int64_t count, size_t wanted, size_t given) {
    if (number < 0 || number >= count) throw std::invalid_argument("the cache has no such page or slot");
    if (wanted != given) throw std::invalid_argument("the bytes are not as many as the cache keeps there");
}

}  // namespace

void bind_cache(nb::module_& m) {
    m.attr("PAGE_SIZE") = kPageSize;
    m.def(
        "kv_value_bytes",
        [](const std::string& type) {
            const auto [k, v] = kv_types(type);
            return double(kv_block_bytes(k, 32) + kv_block_bytes(v, 32)) / (2 * 32 * 16);
        },
        nb::arg("type"), "Bytes of one number in the KV cache, scales included; the mean of K and V.");

    nb::class_<Cache>(m, "Cache")
        .def(
            "__init__",
            [](Cache* self, const std::string& type, int64_t n_pages,
               const std::vector<std::tuple<int, int, int>>& layers) {
                const auto [k, v] = kv_types(type);
                new (self) Cache(k, v, n_pages);
                for (const auto& [n_kv_heads, k_dim, v_dim] : layers) self->add_layer(n_kv_heads, k_dim, v_dim);
            },
            nb::arg("type"), nb::arg("n_pages"), nb::arg("layers"))
        .def("set_window", &Cache::set_window, nb::arg("entry"), nb::arg("table"), nb::arg("length"),
             nb::arg("n_pages"))
        .def("add_slots", &Cache::add_slots, nb::arg("n_slots"), nb::arg("numbers"))
        .def(
            "read_page",
            [](const Cache& c, int64_t page, const WritableBytes& out, const std::optional<std::vector<int>>& some) {
                const std::vector<int> entries = some ? *some : c.entries();
                check_block(page, c.n_pages(entries), c.page_bytes(entries), out.size());
                c.read_page(entries, page, out.data());
            },
            nb::arg("page"), nb::arg("out"), nb::arg("entries") = nb::none(),
            "Copies a page of some entries, which number their pages alike, to bytes; else of all.")
        .def(
            "write_page",
            [](Cache& c, int64_t page, const Bytes& in, const std::optional<std::vector<int>>& some) {
                const std::vector<int> entries = some ? *some : c.entries();
                check_block(page, c.n_pages(entries), c.page_bytes(entries), in.size());
                c.write_page(entries, page, in.data());
            },
            nb::arg("page"), nb::arg("source"), nb::arg("entries") = nb::none(),
            "Copies bytes of `read_page` to a page.")
        .def(
            "read_slot",
            [](const Cache& c, int32_t slot, const WritableBytes& out) {
                check_block(slot, c.n_slots(), c.slot_bytes(), out.size());
                c.read_slot(slot, out.data());
            },
            nb::arg("slot"), nb::arg("out"), "Copies a slot of all entries to bytes.")
        .def(
            "write_slot",
            [](Cache& c, int32_t slot, const Bytes& in) {
                check_block(slot, c.n_slots(), c.slot_bytes(), in.size());
                c.write_slot(slot, in.data());
            },
            nb::arg("slot"), nb::arg("source"), "Copies bytes of `read_slot` to a slot.")
        .def(
            "bytes_of", [](const Cache& c, const std::vector<int>& entries) { return c.page_bytes(entries); },
            nb::arg("entries"), "Bytes of one page of some entries.")
        .def_prop_ro("page_bytes", [](const Cache& c) { return c.page_bytes(); })
        .def_prop_ro("slot_bytes", &Cache::slot_bytes)
        .def_prop_ro("n_bytes", &Cache::n_bytes)
        .def_prop_ro("n_pages", [](const Cache& c) { return c.n_pages(); });
}

}  // namespace woolly
