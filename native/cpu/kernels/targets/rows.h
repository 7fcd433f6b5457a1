// Table entries of norms, activations, quantization and attention.

namespace woolly::WOOLLY_TARGET {

constexpr void set_rows(KernelTable& t) {
    t.row_block = 128;
    t.quantize_32 = quantize<32, 32>;
    t.quantize_256 = quantize<256, 16>;
    t.planes = planes;
    t.rms_norm = rms_norm;
    t.swiglu = swiglu;
    t.end = end;
    t.gelu_erf = gelu_erf;
    t.gelu = gelu;
    t.gelu_quick = gelu_quick;
#define WOOLLY_ROW(name, kept, bytes, columns) t.kv[int(KvType::name)] = kv_kernels<kept>();
    WOOLLY_KV_TYPES(WOOLLY_ROW)
#undef WOOLLY_ROW
    t.attend = attend;
    t.merge = merge;
    t.rank = rank;
}

}  // namespace woolly::WOOLLY_TARGET
