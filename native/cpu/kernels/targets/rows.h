// Norms, activations, quantization and attention as a table has them.

namespace woolly::WOOLLY_TARGET {

constexpr void set_rows(KernelTable& t) {
    t.row_block = 128;
    t.quantize_32 = quantize<32, 32>;
    t.quantize_256 = quantize<256, 16>;
    t.planes = planes;
    t.rms_norm = rms_norm;
    t.swiglu = swiglu;
    t.gelu_erf = gelu_erf;
    t.store_k[0] = KvF32::store_k, t.store_v[0] = KvF32::store_v, t.attend[0] = attend<KvF32>;
    t.store_k[1] = KvF16::store_k, t.store_v[1] = KvF16::store_v, t.attend[1] = attend<KvF16>;
    t.store_k[2] = KvQ8::store_k, t.store_v[2] = KvQ8::store_v, t.attend[2] = attend<KvQ8>;
    t.merge = merge;
}

}  // namespace woolly::WOOLLY_TARGET
