// f64 functions, implemented here for values that are computed once and affect results: C libraries differ between
// systems. Products and sums are rounded one by one, in the order of woolly/runtime/f64_math.py, which is
// bit-identical. Accurate to about one unit in the last place.
#pragma once

#include <cmath>

namespace woolly {

constexpr double kLn2 = 0x1.62e42fefa39efp-1;
constexpr double kLn2Head = 0x1.62e42feep-1, kLn2Tail = 0x1.a39ef35793c76p-33;  // ln 2 in two parts

// e^r for |r| up to half of ln 2, times 2^whole: a series in r.
inline double exp_series(double r, int whole) {
    double sum = 1.0;
    for (int n = 13; n >= 1; --n) sum = 1.0 + sum * r / n;
    return std::ldexp(sum, whole);
}

// e^x for |x| up to 700.
inline double exp_double(double x) {
    const double whole = std::floor(x / kLn2 + 0.5);
    return exp_series((x - whole * kLn2Head) - whole * kLn2Tail, int(whole));
}

// 2^x for the same range: exact for integers.
inline double exp2_double(double x) {
    const double whole = std::floor(x + 0.5);
    return exp_series((x - whole) * kLn2, int(whole));
}

// Natural logarithm of a positive number: 2 artanh(s), a series in s^2, in which 2 s is f - s f.
inline double log_double(double x) {
    int power = 0;
    double part = std::frexp(x, &power);  // from 1/2 to 1
    if (part < 0x1.6a09e667f3bcdp-1) {    // sqrt(1/2)
        part = 2.0 * part;
        power = power - 1;
    }
    const double f = part - 1.0, s = f / (2.0 + f), z = s * s;
    double p = 0.0;
    for (int n = 23; n >= 3; n -= 2) p = (p + 1.0 / n) * z;
    return power * kLn2Head + ((f - s * (f - 2.0 * p)) + power * kLn2Tail);
}

}  // namespace woolly
