// Fibers: stack switches in a few instructions, without system calls.
#pragma once

#include <cstdint>

namespace emulated {

using Body = void (*)();

#if defined(__aarch64__)
// Saves callee-saved registers on the current stack, stores its pointer in *from, and continues on stack `to`.
extern "C" void emulated_switch(void** from, void* to);
asm(R"(
.text
.global emulated_switch
.hidden emulated_switch
.type emulated_switch, %function
emulated_switch:
    sub sp, sp, #160
    stp x19, x20, [sp, #0]
    stp x21, x22, [sp, #16]
    stp x23, x24, [sp, #32]
    stp x25, x26, [sp, #48]
    stp x27, x28, [sp, #64]
    stp x29, x30, [sp, #80]
    stp d8, d9, [sp, #96]
    stp d10, d11, [sp, #112]
    stp d12, d13, [sp, #128]
    stp d14, d15, [sp, #144]
    mov x9, sp
    str x9, [x0]
    mov sp, x1
    ldp x19, x20, [sp, #0]
    ldp x21, x22, [sp, #16]
    ldp x23, x24, [sp, #32]
    ldp x25, x26, [sp, #48]
    ldp x27, x28, [sp, #64]
    ldp x29, x30, [sp, #80]
    ldp d8, d9, [sp, #96]
    ldp d10, d11, [sp, #112]
    ldp d12, d13, [sp, #128]
    ldp d14, d15, [sp, #144]
    add sp, sp, #160
    ret
)");

// Creates a stack that enters `body` on the first switch. The body never returns.
inline void* new_stack(char* top, Body body) {
    auto** at = reinterpret_cast<void**>(reinterpret_cast<uintptr_t>(top) & ~uintptr_t{15}) - 20;
    for (int i = 0; i < 20; i++) at[i] = nullptr;
    at[11] = reinterpret_cast<void*>(body);  // x30, the return address
    return at;
}
#elif defined(__x86_64__)
extern "C" void emulated_switch(void** from, void* to);
asm(R"(
.text
.global emulated_switch
.hidden emulated_switch
.type emulated_switch, @function
emulated_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
)");

inline void* new_stack(char* top, Body body) {
    // After `ret` the stack must be as after a call: 8 modulo 16.
    auto** at = reinterpret_cast<void**>(reinterpret_cast<uintptr_t>(top) & ~uintptr_t{15}) - 8;
    for (int i = 0; i < 8; i++) at[i] = nullptr;
    at[6] = reinterpret_cast<void*>(body);
    return at;
}
#else
#error "the emulated GPU knows x86-64 and arm64"
#endif

}  // namespace emulated
