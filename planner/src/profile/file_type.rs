//! The name of a file's quantisation. In: a `general.file_type`. Out: its name.

/// The short names of `general.file_type`, as in file names (include/llama.h, `llama_ftype`), ordered by number; `-`
/// stands for a removed type.
const FILE_TYPES: &str = "F32 F16 Q4_0 Q4_1 - - - Q8_0 Q5_0 Q5_1 Q2_K Q3_K_S Q3_K_M Q3_K_L Q4_K_S Q4_K_M Q5_K_S Q5_K_M \
    Q6_K IQ2_XXS IQ2_XS Q2_K_S IQ3_XS IQ3_XXS IQ1_S IQ4_NL IQ3_S IQ3_M IQ2_S IQ2_M IQ4_XS IQ1_M BF16 - - - TQ1_0 TQ2_0 \
    MXFP4_MOE NVFP4 Q1_0 Q2_0 F8_E4M3";

/// The name of a `general.file_type`.
pub(super) fn name(number: u32) -> Option<&'static str> {
    FILE_TYPES.split_whitespace().nth(number as usize).filter(|name| *name != "-")
}

#[cfg(test)]
mod tests {
    use super::name;

    #[test]
    fn file_types_have_the_names_of_llama_h() {
        for (number, expected) in
            [(0, "F32"), (7, "Q8_0"), (15, "Q4_K_M"), (32, "BF16"), (36, "TQ1_0"), (42, "F8_E4M3")]
        {
            assert_eq!(name(number), Some(expected), "{number}");
        }
        assert!([4, 33, 43].into_iter().all(|number| name(number).is_none()));
    }
}
