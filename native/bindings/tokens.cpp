#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bindings/bindings.h"
#include "gguf/strings.h"
#include "tokens/byte_pairs.h"
#include "tokens/piece_map.h"
#include "tokens/pieces.h"
#include "tokens/special.h"
#include "tokens/spm.h"
#include "tokens/texts.h"
#include "tokens/unigram.h"

namespace nb = nanobind;

namespace woolly {

namespace {

using Floats = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Buffer = nb::ndarray<const std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

std::string_view view(const nb::bytes& data) { return {data.c_str(), data.size()}; }

std::shared_ptr<Texts> to_texts(const nb::list& texts) {
    auto out = std::make_shared<Texts>();
    out->reserve(texts.size());
    for (const nb::handle text : texts) out->add(view(nb::cast<nb::bytes>(text)));
    return out;
}

std::shared_ptr<Texts> read_texts(const Buffer& buffer, std::uint64_t offset, std::uint64_t count) {
    const std::span<const std::uint8_t> bytes(buffer.data(), buffer.size());
    const nb::gil_scoped_release release;
    auto out = std::make_shared<Texts>();
    std::span<const std::uint8_t> text;
    for (std::uint64_t i = 0; i < count; ++i) {
        if (!read_string(bytes, offset, text))
            throw std::invalid_argument("a string reaches beyond the end of its buffer");
        out->add({reinterpret_cast<const char*>(text.data()), text.size()});
        offset += 8 + text.size();
    }
    return out;
}

nb::bytes text_at(const Texts& texts, std::size_t index) {
    if (index >= texts.size()) throw nb::index_error("there is no such text");
    return nb::bytes(texts[index].data(), texts[index].size());
}

nb::list to_list(const Texts& texts) {
    nb::list out;
    for (std::size_t i = 0; i < texts.size(); ++i) out.append(text_at(texts, i));
    return out;
}

// Views of the words. They are valid as long as the list, because Python caches the UTF-8 of a string.
std::vector<std::string_view> to_words(const nb::list& words) {
    std::vector<std::string_view> out;
    out.reserve(words.size());
    for (const nb::handle word : words) {
        Py_ssize_t size = 0;
        const char* data = PyUnicode_AsUTF8AndSize(word.ptr(), &size);
        if (data == nullptr) throw nb::python_error();
        out.emplace_back(data, static_cast<std::size_t>(size));
    }
    return out;
}

std::vector<std::int32_t> encode_words(const BytePairs& model, const nb::list& words) {
    const std::vector<std::string_view> views = to_words(words);
    const nb::gil_scoped_release release;
    return model.encode(views);
}

Pieces to_pieces(std::shared_ptr<Texts> texts, const Floats& scores, const nb::bytes& kinds) {
    Pieces pieces;
    pieces.texts = std::move(texts);
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
    nb::class_<Texts>(m, "Texts")
        .def(nb::new_(&to_texts), nb::arg("texts"))
        .def_static("read", &read_texts, nb::arg("buffer"), nb::arg("offset"), nb::arg("count"))
        .def("__len__", &Texts::size)
        .def("__getitem__", &text_at, nb::arg("index"))
        .def("tolist", &to_list)
        .def_prop_ro("has_empty", &Texts::has_empty);

    nb::class_<PieceMap>(m, "PieceMap")
        .def(
            "__init__",
            [](PieceMap* self, std::shared_ptr<Texts> texts) {
                const nb::gil_scoped_release release;
                new (self) PieceMap(std::move(texts));
            },
            nb::arg("texts"))
        .def(
            "find", [](const PieceMap& self, const nb::bytes& text) { return self.find(view(text)); }, nb::arg("text"));

    nb::class_<BytePairs>(m, "BytePairs")
        .def(
            "__init__",
            [](BytePairs* self, std::shared_ptr<PieceMap> tokens, const Texts& merges, const Texts& byte_characters,
               bool byte_level, bool ignore_merges, std::int32_t unknown) {
                const nb::gil_scoped_release release;
                new (self) BytePairs(std::move(tokens), merges, byte_characters, byte_level, ignore_merges, unknown);
            },
            nb::arg("tokens"), nb::arg("merges"), nb::arg("byte_characters"), nb::arg("byte_level"),
            nb::arg("ignore_merges"), nb::arg("unknown"))
        .def("encode", &encode_words, nb::arg("words"));

    nb::class_<SentencePieceBPE>(m, "SentencePieceBPE")
        .def(
            "__init__",
            [](SentencePieceBPE* self, std::shared_ptr<Texts> pieces, const Floats& scores, const nb::bytes& kinds,
               std::int32_t unknown) {
                new (self) SentencePieceBPE(to_pieces(std::move(pieces), scores, kinds), unknown);
            },
            nb::arg("pieces"), nb::arg("scores"), nb::arg("kinds"), nb::arg("unknown"))
        .def("encode", &encode<SentencePieceBPE>, nb::arg("text"));

    nb::class_<Unigram>(m, "Unigram")
        .def(
            "__init__",
            [](Unigram* self, std::shared_ptr<Texts> pieces, const Floats& scores, const nb::bytes& kinds,
               std::int32_t unknown, const nb::bytes& charsmap, bool add_space_prefix, bool merge_spaces) {
                new (self) Unigram(to_pieces(std::move(pieces), scores, kinds), Charsmap(std::string(view(charsmap))),
                                   unknown, add_space_prefix, merge_spaces);
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
