#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bindings/bindings.h"
#include "tokens/pieces.h"
#include "tokens/special.h"
#include "tokens/spm.h"
#include "tokens/unigram.h"

namespace nb = nanobind;

namespace woolly {

namespace {

using Floats = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

std::string_view view(const nb::bytes& data) { return {data.c_str(), data.size()}; }

Pieces to_pieces(const nb::list& texts, const Floats& scores, const nb::bytes& kinds) {
    Pieces pieces;
    pieces.texts.reserve(texts.size());
    for (const nb::handle text : texts) pieces.texts.emplace_back(view(nb::cast<nb::bytes>(text)));
    pieces.scores.assign(scores.data(), scores.data() + scores.size());
    for (const char kind : view(kinds)) pieces.kinds.push_back(static_cast<PieceKind>(kind));
    pieces.check();
    return pieces;
}

template <class Model>
std::vector<std::int32_t> encode(const Model& model, const nb::bytes& text) {
    const std::string_view data = view(text);
    const nb::gil_scoped_release release;
    return model.encode(data);
}

std::vector<SpecialSplitter::Fragment> split(const SpecialSplitter& splitter, const nb::bytes& text, bool control) {
    const std::string_view data = view(text);
    const nb::gil_scoped_release release;
    return splitter.split(data, control);
}

}  // namespace

void bind_text(nb::module_& m) {
    nb::class_<SentencePieceBPE>(m, "SentencePieceBPE")
        .def(
            "__init__",
            [](SentencePieceBPE* self, const nb::list& pieces, const Floats& scores, const nb::bytes& kinds,
               std::int32_t unknown) { new (self) SentencePieceBPE(to_pieces(pieces, scores, kinds), unknown); },
            nb::arg("pieces"), nb::arg("scores"), nb::arg("kinds"), nb::arg("unknown"))
        .def("encode", &encode<SentencePieceBPE>, nb::arg("text"));

    nb::class_<Unigram>(m, "Unigram")
        .def(
            "__init__",
            [](Unigram* self, const nb::list& pieces, const Floats& scores, const nb::bytes& kinds,
               std::int32_t unknown, const nb::bytes& charsmap, bool add_space_prefix, bool merge_spaces) {
                new (self) Unigram(to_pieces(pieces, scores, kinds), Charsmap(std::string(view(charsmap))), unknown,
                                   add_space_prefix, merge_spaces);
            },
            nb::arg("pieces"), nb::arg("scores"), nb::arg("kinds"), nb::arg("unknown"), nb::arg("charsmap"),
            nb::arg("add_space_prefix"), nb::arg("merge_spaces"))
        .def("encode", &encode<Unigram>, nb::arg("text"))
        .def("normalize", [](const Unigram& self, const nb::bytes& text) {
            const std::string out = self.normalize(view(text));
            return nb::bytes(out.data(), out.size());
        });

    nb::class_<SpecialSplitter>(m, "SpecialSplitter")
        .def(
            "__init__",
            [](SpecialSplitter* self,
               const std::vector<std::tuple<nb::bytes, std::int32_t, bool, bool, bool>>& tokens) {
                std::vector<SpecialToken> list;
                list.reserve(tokens.size());
                for (const auto& [text, id, always, lstrip, rstrip] : tokens)
                    list.push_back({std::string(view(text)), id, always, lstrip, rstrip});
                new (self) SpecialSplitter(std::move(list));
            },
            nb::arg("tokens"))
        .def("split", &split, nb::arg("text"), nb::arg("parse_control"));
}

}  // namespace woolly
