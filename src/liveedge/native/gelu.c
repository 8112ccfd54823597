/* GELU in its tanh form, in place: 0.5 x (1 + tanh u) = x / (1 + exp(-2u)), u = c (x + 0.044715 x^3).
 *
 * One exponential of our own (a polynomial, within 2 units of the last place) instead of a general
 * tanh: several times faster, and closer to the true value far below zero, where 1 + tanh u
 * cancels. A value's result does not depend on its place. Any thread.
 */
#include <stdint.h>

#if defined(__x86_64__)
#include <immintrin.h>
#define AVX2 __attribute__((target("avx2,fma")))

AVX2 static inline __m256 exponential(__m256 t)
{
    const __m256 most = _mm256_set1_ps(88.0f), least = _mm256_set1_ps(-87.0f);
    t = _mm256_min_ps(_mm256_max_ps(t, least), most);
    const __m256 n = _mm256_round_ps(_mm256_mul_ps(t, _mm256_set1_ps(1.44269504088896341f)),
                                     _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    /* what is left of t, by ln 2 in two parts: |r| <= ln(2) / 2 */
    __m256 r = _mm256_fnmadd_ps(n, _mm256_set1_ps(0.693359375f), t);
    r = _mm256_fnmadd_ps(n, _mm256_set1_ps(-2.12194440e-4f), r);
    __m256 p = _mm256_set1_ps(1.9875691500e-4f);
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.3981999507e-3f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(8.3334519073e-3f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(4.1665795894e-2f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.6666665459e-1f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(5.0000001201e-1f));
    p = _mm256_fmadd_ps(p, _mm256_mul_ps(r, r), _mm256_add_ps(r, _mm256_set1_ps(1.0f)));
    const __m256i power = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
    return _mm256_mul_ps(p, _mm256_castsi256_ps(_mm256_slli_epi32(power, 23)));
}

AVX2 static inline __m256 gelu(__m256 x)
{
    const __m256 inner = _mm256_fmadd_ps(_mm256_mul_ps(x, x), _mm256_set1_ps(0.044715f),
                                         _mm256_set1_ps(1.0f));
    /* -2 sqrt(2 / pi) */
    const __m256 t = _mm256_mul_ps(_mm256_mul_ps(x, _mm256_set1_ps(-1.5957691216057308f)), inner);
    return _mm256_div_ps(x, _mm256_add_ps(exponential(t), _mm256_set1_ps(1.0f)));
}

AVX2 static void gelu_avx2(float *x, int64_t n)
{
    int64_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(x + i, gelu(_mm256_loadu_ps(x + i)));
    if (i < n) {
        const __m256i mask = _mm256_cmpgt_epi32(_mm256_set1_epi32((int)(n - i)),
                                                _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
        _mm256_maskstore_ps(x + i, mask, gelu(_mm256_maskload_ps(x + i, mask)));
    }
}
#endif

/* 1: done. 0: this processor has not what it takes, and nothing was changed. */
int le_gelu_tanh(float *x, int64_t n)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
        gelu_avx2(x, n);
        return 1;
    }
#endif
    (void)x, (void)n;
    return 0;
}
