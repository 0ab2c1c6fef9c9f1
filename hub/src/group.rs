//! Groups the files in a folder or repository into models. In: names of files. Out: models, each with its quantisation,
//! and its shards in order. If a group is not a model, the reason is given.

use std::collections::BTreeMap;

use autoplace_planner::gguf::{shard_name, shard_of_name};

use crate::local::SkipReason;

/// The files of one model, or files that are not a model.
#[derive(Debug)]
pub(crate) struct Group<T> {
    /// The name with its folder, but without the number of the shard and without `.gguf`.
    pub(crate) stem: String,
    /// The quantisation in the name of the file or of its folder, in capitals: `Q4_K_M`, `UD-Q4_K_XL`.
    pub(crate) quant: Option<String>,
    /// The files' names with their folders, in the order of the shards. There is at least one.
    pub(crate) files: Vec<(String, T)>,
    /// Why the group cannot be loaded as a model; `None` if it can be.
    pub(crate) why: Option<SkipReason>,
}

/// The prefixes of draft models' names (llama.cpp, common/download.cpp, `gguf_filename_is_model`).
const DRAFTS: [&str; 4] = ["mtp-", "eagle3-", "dflash-", "dspark-"];

/// Groups the GGUF files in `files` into models. The groups are sorted by name. In a name, each folder ends with `/`.
/// Each file comes with a value, which the caller chooses and gets back.
pub(crate) fn group<T>(files: impl IntoIterator<Item = (String, T)>) -> Vec<Group<T>> {
    group_where(files, |_| false)
}

/// Like [`group`]. But if a file is named like a shard and `is_whole` says that it is a whole model, it is a group by
/// itself.
pub(crate) fn group_where<T>(
    files: impl IntoIterator<Item = (String, T)>,
    is_whole: impl Fn(&T) -> bool,
) -> Vec<Group<T>> {
    // A key consists of the name's stem and the number of shards.
    let mut stems: BTreeMap<(String, u16), BTreeMap<u16, (String, T)>> = BTreeMap::new();
    for file in files {
        let Some(whole) = without_extension(&file.0) else { continue };
        let shard = shard_of_name(&file.0).filter(|_| !is_whole(&file.1));
        let (stem, index, count) = shard.unwrap_or((whole, 0, 1));
        // `a.gguf` and `a.GGUF` are different models.
        let stem = if file.0.ends_with(".gguf") { stem } else { &file.0 };
        stems.entry((stem.to_owned(), count)).or_default().insert(index, file);
    }
    let made = stems.into_iter().map(|((stem, count), shards)| {
        let quant = quant_of(&stem);
        let missing: Vec<String> = (0..count)
            .filter(|index| !shards.contains_key(index))
            .map(|index| shard_name(&stem, index, count))
            .collect();
        let files = shards.into_values().collect();
        let name = stem.rsplit('/').next().unwrap_or(&stem).to_ascii_lowercase();
        let why = if name.contains("mmproj") {
            Some(SkipReason::Projector)
        } else if DRAFTS.iter().any(|begins| name.starts_with(begins)) {
            Some(SkipReason::Draft)
        } else if name.contains("imatrix") && quant.is_none() {
            Some(SkipReason::Imatrix)
        } else {
            (!missing.is_empty()).then_some(SkipReason::ShardsMissing(missing))
        };
        let stem = without_extension(&stem).map(str::to_owned).unwrap_or(stem);
        Group { stem, quant, files, why }
    });
    made.collect()
}

/// A name without its ending `.gguf`. The ending may be in capitals.
fn without_extension(name: &str) -> Option<&str> {
    let (stem, extension) = name.split_at_checked(name.len().checked_sub(".gguf".len())?)?;
    extension.eq_ignore_ascii_case(".gguf").then_some(stem)
}

/// The last quantisation in the name of a model. If there is none, the last in the name of its folder.
pub(crate) fn quant_of(stem: &str) -> Option<String> {
    stem.rsplit('/').find_map(|part| {
        let name = part.to_ascii_uppercase();
        let starts = name.char_indices().map(|(at, _)| at).filter(|&at| is_boundary(name[..at].chars().next_back()));
        let mut found = starts.filter_map(|at| Some((at, quant_at(&name[at..])?)));
        let (at, quant) = found.next_back()?;
        let dynamic = name[..at].ends_with("UD-");
        Some(if dynamic { format!("UD-{quant}") } else { quant })
    })
}

fn is_boundary(c: Option<char>) -> bool {
    c.is_none_or(|c| matches!(c, '-' | '.' | '_' | ' ' | '+'))
}

/// The quantisation with which a text begins; the text is in capitals. It is a type (`Q4`, `IQ2`, `TQ1`) with the
/// suffixes that follow it (`_K_M`, `_XXS`, `_0`), or a type that takes no suffix (`BF16`).
fn quant_at(text: &str) -> Option<String> {
    let word = text.split(|c| c != '_' && is_boundary(Some(c))).next()?;
    let mut parts = word.split('_');
    let base = parts.next()?;
    match base {
        "MXFP4" if parts.next() == Some("MOE") => Some("MXFP4_MOE".to_owned()),
        "MXFP4" | "NVFP4" | "BF16" | "F16" | "F32" => Some(base.to_owned()),
        "FP16" | "FP32" => Some(base.replace('P', "")),
        _ => {
            let bits = base.trim_start_matches(['I', 'T']).strip_prefix('Q')?;
            let is_type = base.len() <= 3 && matches!(bits.as_bytes(), [b'1'..=b'9']);
            let kinds = parts.take_while(|part| is_kind(part));
            is_type.then(|| [base].into_iter().chain(kinds).collect::<Vec<_>>().join("_"))
        }
    }
}

/// What may follow a type in llama.cpp and in related programs: `0`, `K`, `M`, `XXS`, `NL`, `KSS`.
fn is_kind(text: &str) -> bool {
    let is_size = |c: char| matches!(c, 'K' | 'S' | 'M' | 'L' | 'X' | 'N' | 'T' | 'P' | 'R' | 'V');
    (1..=3).contains(&text.len()) && (text.chars().all(is_size) || text.chars().all(|c| c.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::{SkipReason, group, quant_of};

    fn names(of: &[&str]) -> Vec<(String, ())> {
        of.iter().map(|name| ((*name).to_owned(), ())).collect()
    }

    #[test]
    fn the_quantisation_is_read_from_the_names_that_people_give() {
        for (name, quant) in [
            ("Qwen3-8B-Q4_K_M", Some("Q4_K_M")),
            ("model.i1-IQ2_XXS", Some("IQ2_XXS")),
            ("Qwen3-30B-A3B-UD-Q4_K_XL", Some("UD-Q4_K_XL")),
            ("UD-IQ1_S/DeepSeek-R1", Some("UD-IQ1_S")),
            ("Phi-3-mini-4k-instruct-fp16", Some("F16")),
            ("gpt-oss-20b-MXFP4_MOE", Some("MXFP4_MOE")),
            ("llama-Q4_0_4_4", Some("Q4_0_4_4")),
            ("F16-to-Q4_K_M", Some("Q4_K_M")),
            ("Qwen3-8B-Q6_K-imatrix", Some("Q6_K")),
            ("Qwen3-8B", None),
            ("q8bert-large", None),
            ("Q", None),
            ("é-Ünïcode-Q4_K_M", Some("Q4_K_M")),
            ("ıq4_0", None),
            ("", None),
        ] {
            assert_eq!(quant_of(name).as_deref(), quant, "{name}");
        }
    }

    #[test]
    fn shards_are_one_model_in_their_order() {
        let all = ["b-00002-of-00003.gguf", "x/b-00001-of-00002.gguf", "b-00003-of-00003.gguf", "a.GGUF", "README.md"];
        let all = names(&[&all[..], &["b-00001-of-00003.gguf", "x/b-00002-of-00002.gguf", "a.gguf"]].concat());
        let models = group(all);
        let found: Vec<_> = models.iter().map(|model| (&model.stem[..], model.files.len(), &model.why)).collect();
        assert_eq!(found, [("a", 1, &None), ("a", 1, &None), ("b", 3, &None), ("x/b", 2, &None)]);
        assert!(models[2].files.iter().map(|(name, ())| &name[..]).is_sorted());
    }

    #[test]
    fn files_that_are_not_a_whole_model_are_left_out_with_the_reason() {
        let groups = group(names(&[
            "mmproj-F16.gguf",
            "mtp-Q8_0.gguf",
            "imatrix_unsloth.gguf",
            "b-Q4_0-imatrix.gguf",
            "c-00002-of-00004.gguf",
            "c-00004-of-00004.gguf",
            "d-00001-of-00002.gguf",
        ]));
        let missing = |names: &[&str]| SkipReason::ShardsMissing(names.iter().map(|name| (*name).to_owned()).collect());
        let c = missing(&["c-00001-of-00004.gguf", "c-00003-of-00004.gguf"]);
        let d = missing(&["d-00002-of-00002.gguf"]);
        let why: Vec<_> = groups.iter().map(|group| group.why.as_ref()).collect();
        let [imatrix, projector, draft] = [&SkipReason::Imatrix, &SkipReason::Projector, &SkipReason::Draft].map(Some);
        assert_eq!(why, [None, Some(&c), Some(&d), imatrix, projector, draft]);
        assert_eq!(groups[0].quant.as_deref(), Some("Q4_0"));
        assert_eq!(c.to_string(), "2 shards are missing, c-00001-of-00004.gguf to c-00003-of-00004.gguf");
        assert_eq!(groups[1].files.len(), 2);
    }
}
