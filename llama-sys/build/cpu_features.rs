//! CPU features that native code may be compiled for. Each has the macro that gcc and clang predefine, for the build
//! script, and the name by which `std::arch` detects it when the program starts.

macro_rules! x86_features {
    ($with:ident $($more:tt)*) => {
        $with! {
            "__SSE3__" "sse3", "__SSSE3__" "ssse3", "__SSE4_1__" "sse4.1", "__SSE4_2__" "sse4.2",
            "__POPCNT__" "popcnt", "__LZCNT__" "lzcnt", "__MOVBE__" "movbe", "__BMI__" "bmi1", "__BMI2__" "bmi2",
            "__AVX__" "avx", "__AVX2__" "avx2", "__FMA__" "fma", "__F16C__" "f16c", "__AVXVNNI__" "avxvnni",
            "__AVX512F__" "avx512f", "__AVX512BW__" "avx512bw", "__AVX512CD__" "avx512cd", "__AVX512DQ__" "avx512dq",
            "__AVX512VL__" "avx512vl", "__AVX512IFMA__" "avx512ifma", "__AVX512VBMI__" "avx512vbmi",
            "__AVX512VBMI2__" "avx512vbmi2", "__AVX512VNNI__" "avx512vnni", "__AVX512BITALG__" "avx512bitalg",
            "__AVX512VPOPCNTDQ__" "avx512vpopcntdq", "__AVX512BF16__" "avx512bf16", "__AVX512FP16__" "avx512fp16",
            "__GFNI__" "gfni", "__VAES__" "vaes", "__VPCLMULQDQ__" "vpclmulqdq", $($more)*
        }
    };
}

macro_rules! arm_features {
    ($with:ident) => {
        $with! {
            "__ARM_FEATURE_DOTPROD" "dotprod", "__ARM_FEATURE_FP16_VECTOR_ARITHMETIC" "fp16",
            "__ARM_FEATURE_MATMUL_INT8" "i8mm", "__ARM_FEATURE_BF16_VECTOR_ARITHMETIC" "bf16",
            "__ARM_FEATURE_SVE" "sve", "__ARM_FEATURE_SVE2" "sve2",
        }
    };
}
