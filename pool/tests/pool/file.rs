//! `pool.toml`: how it is read, and the messages of its errors.

use std::path::Path;
use std::time::Duration;

use autoplace::memory::{KvType, Pooling};
use autoplace::plan::{Context, GpuLayers, KvCache, MoeCache, Request};
use autoplace::store::StoreOptions;
use autoplace_pool::{Limits, ModelSpec, PoolFile};

#[test]
fn every_key_is_read_and_paths_are_those_of_the_files_folder() {
    let text = r#"
        [pool]
        reloads_per_minute = 3
        ram = "12GiB"
        anticipate = false

        [models.coder]
        model = "models/coder.gguf"
        ctx = 16384
        kv = "q8_0"
        parallel = 2
        ngl = 20
        moe_cache = "4GiB"
        draft = "draft.gguf"
        mmproj = "mmproj-f16.gguf"
        lora = ["style.gguf"]
        template = "chatml"
        cache_ram = "2GiB"
        aliases = ["gpt-4o", "code"]
        keep = true
        idle = "30m"
        priority = 2.5
        beside = ["embedder"]

        [models.embedder]
        model = "hf:nomic-ai/nomic-embed-text-v1.5-GGUF:Q8_0"
        embed = "mean"
        template = "own.jinja"
        preload = true
        idle = 90
    "#;
    let pool = PoolFile::parse(text, "/etc/autoplace/pool.toml").unwrap();
    assert_eq!((pool.limits.reloads_per_minute, pool.limits.ram), (Some(3), Some(12 << 30)));
    assert!(!pool.limits.anticipate && Limits::default().anticipate);
    let [coder, embedder] = &pool.models[..] else { panic!("{pool:?}") };
    assert_eq!(coder.model, Path::new("/etc/autoplace/models/coder.gguf"));
    assert_eq!(coder.draft.as_deref(), Some(Path::new("/etc/autoplace/draft.gguf")));
    assert_eq!(coder.mmproj.as_deref(), Some(Path::new("/etc/autoplace/mmproj-f16.gguf")));
    assert_eq!((embedder.mmproj.as_deref(), embedder.finds_mmproj), (None, false));
    assert_eq!((coder.request.context, coder.request.gpu_layers), (Context::Tokens(16384), GpuLayers::AtMost(20)));
    assert_eq!((coder.request.moe_cache, embedder.request.moe_cache), (MoeCache::Bytes(4 << 30), MoeCache::Auto));
    assert_eq!((coder.request.params.type_k, coder.request.params.n_seq_max), (KvType::Q8_0, 2));
    assert_eq!((coder.keep, coder.idle, coder.priority), (true, Some(Duration::from_secs(1800)), 2.5));
    assert_eq!(coder.lora, [Path::new("/etc/autoplace/style.gguf")]);
    let templates = [coder, embedder].map(|model| model.template.as_deref());
    assert_eq!(templates, [Some("chatml"), Some("/etc/autoplace/own.jinja")]);
    assert_eq!((coder.preload, embedder.preload), (false, true));
    assert_eq!((&coder.prompt_store, &embedder.prompt_store), (&Some(StoreOptions::new(2 << 30)), &None));
    assert!(coder.is_named("gpt-4o") && coder.is_named("coder") && !coder.is_named("embedder"));
    assert_eq!(embedder.model, Path::new("hf:nomic-ai/nomic-embed-text-v1.5-GGUF:Q8_0"));
    assert_eq!(
        (embedder.request.params.embeddings, embedder.idle),
        (Some(Pooling::Mean), Some(Duration::from_secs(90)))
    );
    // A program that makes the same models gives them the same names.
    let made = ModelSpec::new("coder", "/etc/autoplace/models/coder.gguf").request(coder.request.clone());
    let made = made.draft("/etc/autoplace/draft.gguf").mmproj("/etc/autoplace/mmproj-f16.gguf");
    let made = made.lora("/etc/autoplace/style.gguf").template("chatml").prompt_store(StoreOptions::new(2 << 30));
    let made = made.alias("gpt-4o").alias("code").keep(true).idle(Duration::from_secs(1800)).priority(2.5);
    assert_eq!(&made.beside("embedder"), coder);
    assert_eq!(Limits::default().reloads_per_minute(3).ram(12 << 30).anticipate(false), pool.limits);
    assert_eq!(PoolFile::parse("", "pool.toml").unwrap(), PoolFile::default());
}

#[test]
fn a_projector_is_a_file_or_a_name_or_none_and_one_is_looked_for_where_nothing_is_said() {
    let read = |line: &str| PoolFile::parse(&format!("[models.a]\nmodel = \"a.gguf\"\n{line}"), "/etc/pool.toml");
    let of = |line: &str| {
        let model = read(line).unwrap().models.remove(0);
        (model.mmproj.map(|file| file.to_str().unwrap().to_owned()), model.finds_mmproj)
    };
    assert_eq!(of(""), (None, true));
    assert_eq!(of("mmproj = false"), (None, false));
    assert_eq!(of("mmproj = \"b.gguf\""), (Some("/etc/b.gguf".to_owned()), true));
    assert_eq!(of("mmproj = \"hf:owner/name:F16\""), (Some("hf:owner/name:F16".to_owned()), true));
    for (line, words) in [
        ("mmproj = true", "`true` names no projector"),
        ("mmproj = \"\"", "it is empty"),
        ("mmproj = 3", "a projector is a file, `hf:OWNER/NAME`, or false for none"),
        ("mmproj = \"b.gguf\"\nembed = \"mean\"", "a model for embeddings takes no projector"),
    ] {
        let error = read(line).unwrap_err().to_string();
        assert!(error.starts_with("/etc/pool.toml, line 3, `mmproj`: ") && error.contains(words), "{error}");
    }
}

#[test]
fn keys_come_before_defaults_and_vectors_have_none() {
    let text = r#"
        [models.a]
        model = "a.gguf"

        [models.b]
        model = "b.gguf"
        ctx = 512
        kv = "f16"
        parallel = 3
        ngl = 5

        [models.vectors]
        model = "c.gguf"
        embed = "cls"
    "#;
    let mut defaults = Request::new().context(Context::Tokens(2048)).n_seq_max(2).kv_cache(KvCache::Auto);
    (defaults.params.type_k, defaults.gpu_layers) = (KvType::Q8_0, GpuLayers::Exactly(7));
    let pool = PoolFile::parse_with_defaults(text, "pool.toml", &defaults).unwrap();
    let [a, b, vectors] = &pool.models[..] else { panic!("{pool:?}") };
    assert_eq!(a.request, defaults);
    assert_eq!((b.request.context, b.request.params.n_seq_max), (Context::Tokens(512), 3));
    assert_eq!((b.request.params.type_k, b.request.kv_cache), (KvType::F16, KvCache::Given));
    assert_eq!(b.request.gpu_layers, GpuLayers::AtMost(5));
    assert_eq!(vectors.request, Request::new().embeddings(Pooling::Cls));
}

#[test]
fn an_error_names_the_file_the_line_the_key_and_what_is_valid() {
    let model = "[models.a]\nmodel = \"a.gguf\"\n";
    for (text, line, words) in [
        ("[models.a\n".to_owned(), 1, &["unclosed"][..]),
        (format!("{model}contxt = 5\n"), 3, &["`contxt`", "unknown field", "`ctx`"]),
        (format!("{model}ctx = \"big\"\n"), 3, &["`ctx`", "expected u32"]),
        (format!("{model}ctx = 1\n"), 3, &["`ctx`", "at least 2 tokens"]),
        (format!("{model}kv = \"q9\"\n"), 3, &["`kv`", "q8_0"]),
        (format!("{model}parallel = 65\n"), 3, &["`parallel`", "1 to 64"]),
        (format!("{model}embed = \"sum\"\n"), 3, &["`embed`", "`sum`", "mean"]),
        (format!("{model}idle = \"soon\"\n"), 3, &["`idle`", "`soon`", "10m"]),
        (format!("{model}idle = -1\n"), 3, &["`idle`", "number of seconds"]),
        (format!("{model}idle = \"99999999999999999999h\"\n"), 3, &["`idle`", "is not a time"]),
        (format!("{model}cache_ram = \"much\"\n"), 3, &["`cache_ram`", "not a size", "24GiB"]),
        (format!("{model}moe_cache = \"lots\"\n"), 3, &["`moe_cache`", "not a size", "`auto`, or `off`"]),
        (format!("{model}embed = \"mean\"\ncache_ram = 5\n"), 4, &["`cache_ram`", "embeddings"]),
        (format!("{model}priority = 0\n"), 1, &["models.a", "above 0"]),
        (format!("{model}priority = nan\n"), 1, &["above 0"]),
        (format!("{model}beside = [\"b\"]\n"), 1, &["models.a", "`beside` lists `b`", "it has a"]),
        (format!("{model}beside = [\"a\"]\n"), 1, &["lists the model itself"]),
        (
            format!("{model}[models.b]\nmodel = \"b\"\naliases = [\"a\"]\n"),
            3,
            &["models.b", "another model is named `a`"],
        ),
        (format!("{model}{model}"), 3, &["duplicate key"]),
        ("[models.a]\nctx = 5\n".to_owned(), 1, &["missing field `model`"]),
        ("[models.a]\nmodel = \"\"\n".to_owned(), 2, &["`model`", "a path"]),
        ("[models.\"a\\u0000b\"]\nmodel = \"x\"\n".to_owned(), 1, &["not a name"]),
        ("[pool]\nreload = 1\n".to_owned(), 2, &["`reload`", "reloads_per_minute"]),
    ] {
        let error = PoolFile::parse(&text, "folder/pool.toml").unwrap_err().to_string();
        assert!(error.starts_with(&format!("folder/pool.toml, line {line}")), "{text}: {error}");
        assert!(words.iter().all(|word| error.contains(word)), "{text}: {error}");
        assert!(!error.contains('\n'), "{error}");
    }
}

#[test]
fn a_file_that_is_missing_or_no_text_or_too_long_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pool.toml");
    let problems = ["byte 1 is not text in UTF-8", "more than 1048576 bytes", "it is a GGUF file"];
    let contents = [b"a\xff\xfe".to_vec(), vec![b'#'; 2 << 20], b"GGUF\x03\0".to_vec()];
    assert!(PoolFile::read(&path).unwrap_err().to_string().contains("pool.toml: "));
    for (bytes, problem) in contents.into_iter().zip(problems) {
        std::fs::write(&path, bytes).unwrap();
        let error = PoolFile::read(&path).unwrap_err().to_string();
        let expected = format!("pool.toml: {problem}; a file of models is TOML (docs/pool.md)");
        assert!(error.ends_with(&expected), "{error}");
    }
    std::fs::write(&path, "[models.a]\nmodel = \"a.gguf\"\n").unwrap();
    assert_eq!(PoolFile::read(&path).unwrap().models[0].model, folder.path().join("a.gguf"));
}
