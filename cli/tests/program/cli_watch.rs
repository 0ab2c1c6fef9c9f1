//! `autoplace doctor --watch`: with recorded answers of programs that run a model (`recorded/`), and with llama-server
//! itself if there is one (`cargo xtask llama-server`).

use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

use crate::cli_doctor::judged;
use crate::cli_support::{User, demo, text};
use serde_json::{Value, json};
use test_support::http::serve;
use test_support::llama_server::LlamaServer;
use test_support::running::Running;

/// A card that has room for the whole demo model and is faster than any host.
const CARD: [&str; 4] = ["--gpu", "RTX 4090", "--headroom", "0"];

/// A server that returns the recorded answers of a program, by path. All other paths have status 404.
struct Recorded {
    port: String,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Recorded {
    fn new(answers: Value) -> Self {
        Self::with_key(answers, "")
    }

    /// A program that answers a request only if it has the key.
    fn with_key(answers: Value, key: &'static str) -> Self {
        let asked = Arc::new(Mutex::new(Vec::new()));
        let paths = Arc::clone(&asked);
        let address = serve(move |request, mut stream| {
            let has_key = key.is_empty() || request.header("authorization") == Some(&format!("Bearer {key}"));
            paths.lock().unwrap().push(request.path.clone());
            let (status, body) = match answers.get(&request.path) {
                _ if !has_key => ("401 Unauthorized", "{}".to_owned()),
                Some(body) => ("200 OK", body.to_string()),
                None => ("404 Not Found", "{}".to_owned()),
            };
            let head = format!("HTTP/1.1 {status}\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n");
            let _ = stream.write_all((head + &body).as_bytes());
        });
        Self { port: address.port().to_string(), asked }
    }

    fn was_asked(&self, path: &str) -> bool {
        self.asked.lock().unwrap().iter().any(|asked| asked == path)
    }
}

/// For a process: the first finding, the facts about its program, and the whole verdict.
fn watched(user: &User, pid: u32) -> (Value, Value, Value) {
    let verdict = judged(user, &[&[&*format!("--watch={pid}")], &CARD[..]].concat());
    (verdict["findings"][0]["cause"].clone(), verdict["evidence"]["model"]["running"].clone(), verdict)
}

#[track_caller]
fn is_refused(user: &User, pid: u32, words: &[&str]) {
    user.fails(&["doctor", &format!("--watch={pid}")], 1, words);
}

/// A process with this name and these arguments that does nothing.
struct Process(Running);

impl Process {
    fn new(name: &str, arguments: &[&str], environment: &[(&str, &str)]) -> Self {
        // A shell that waits for input. It ignores the arguments after the two dashes.
        let mut command = Command::new("sh");
        command.arg0(name).args(["-s", "--"]).args(arguments).envs(environment.iter().copied());
        Self(Running(command.stdin(Stdio::piped()).spawn().unwrap()))
    }

    /// A process whose command line is `ollama serve`. It is a shell, with the name `ollama`, that runs a script with
    /// the name `serve`.
    fn ollama(user: &User, port: &str) -> Self {
        let script = user.path("serve");
        std::fs::write(&script, "read line\n").unwrap();
        let mut command = Command::new("sh");
        command.arg0("ollama").arg("serve").current_dir(script.parent().unwrap());
        command.env("OLLAMA_HOST", format!("127.0.0.1:{port}"));
        Self(Running(command.stdin(Stdio::piped()).spawn().unwrap()))
    }

    fn id(&self) -> u32 {
        self.0.id()
    }
}

fn llama_server() -> Value {
    json!({
        "/props": {
            "default_generation_settings": {"n_ctx": 2048},
            "total_slots": 1,
            "model_path": demo(),
            "build_info": "b11434-0000000",
        },
        "/slots": [{"id": 0, "is_processing": false, "id_task": -1, "next_token": [{"n_decoded": 0}]}],
    })
}

#[test]
fn a_server_with_too_few_layers_is_reported_with_the_flags_that_mend_it() {
    let user = User::new();
    let server = Recorded::new(llama_server());
    let port = &server.port;
    let demo = demo();
    let arguments = ["-m", &demo, "-ngl", "2", "--port", port, "-ctk", "q8_0", "-ctv", "q8_0"];
    let few = Process::new("llama-server", &arguments, &[]);
    let (cause, running, verdict) = watched(&user, few.id());
    assert_eq!(cause, "runs_slower", "{verdict}");
    assert_eq!((&running["n_gpu_layers"], &running["program"]), (&2.into(), &"llama-server b11434-0000000".into()));
    let plan = &verdict["evidence"]["model"]["plan"];
    // Other arguments of the process stay as they are.
    assert_eq!((&plan["context"]["n_ctx"], &plan["context"]["type_k"]), (&2048.into(), &"Q8_0".into()));
    let mend = verdict["findings"][0]["remedy"].as_str().unwrap();
    let layers = plan["n_gpu_layers"].as_u64().unwrap();
    for word in ["llama-server -m", &format!("-ngl {layers}"), "-c 2048", "-ctk q8_0"] {
        assert!(mend.contains(word), "no {word:?} in {mend}");
    }
    // An argument of the doctor replaces the same argument of the program.
    let watch = format!("--watch={}", few.id());
    let asked = judged(&user, &[&[&*watch, "--kv", "f16", "--flash-attn", "off"], &CARD[..]].concat());
    let context = &asked["evidence"]["model"]["plan"]["context"];
    let [n_ctx, type_k, flash_attn] = ["n_ctx", "type_k", "flash_attn"].map(|name| context[name].to_string());
    assert_eq!([&*n_ctx, &type_k, &flash_attn], ["2048", "\"F16\"", "\"off\""]);
    // The output is text here, in a report that can be given to others.
    let output = user.autoplace(&[&["doctor", &watch, "--report"], &CARD[..]].concat());
    let printed = text(&output.stdout);
    assert!(printed.starts_with("verdict: the model runs slower") && !printed.contains(&demo), "{printed}");

    // There is no finding here: the program already has as many layers on the card as possible.
    let all = Process::new("llama-server", &["-m", &demo, "-ngl", "99", "--port", port], &[]);
    let (cause, _, verdict) = watched(&user, all.id());
    assert_eq!(cause, Value::Null, "{verdict}");
}

#[test]
fn settings_of_a_server_in_a_container_are_read_from_its_variables() {
    let user = User::new();
    let server = Recorded::new(llama_server());
    let port = &server.port;
    let environment = [("LLAMA_ARG_N_GPU_LAYERS", "1"), ("LLAMA_ARG_PORT", port)];
    let process = Process::new("/app/llama-server", &[], &environment);
    let (cause, running, _) = watched(&user, process.id());
    assert_eq!((cause, &running["n_gpu_layers"]), ("runs_slower".into(), &1.into()));

    // If a program has settings that no plan has, it is not compared.
    let process = Process::new("/app/llama-server", &["-ot", "exps=CPU"], &environment);
    let (cause, running, verdict) = watched(&user, process.id());
    assert_eq!(cause, Value::Null, "{verdict}");
    assert_eq!((&running["n_gpu_layers"], &running["predicted"]), (&Value::Null, &Value::Null));
    assert!(running["notes"][0].as_str().unwrap().contains("-ot"), "{running}");
}

#[test]
fn a_server_is_asked_with_its_own_key_and_one_that_sleeps_is_not_woken() {
    let user = User::new();
    let mut answers = llama_server();
    answers["/props"]["is_sleeping"] = true.into();
    let server = Recorded::with_key(answers, "secret");
    let keys = user.path("keys");
    std::fs::write(&keys, "# for the phone\n\nsecret\nanother\n").unwrap();
    // If there are several keys, the first of them is used.
    for key in [["--api-key", "secret,another"], ["--api-key-file", keys.to_str().unwrap()]] {
        let demo = demo();
        let arguments = [&["-m", &demo, "--port", &server.port, "-ngl", "2"], &key[..]].concat();
        let process = Process::new("llama-server", &arguments, &[]);
        let (_, running, _) = watched(&user, process.id());
        let expected = (&2.into(), &"llama-server b11434-0000000".into());
        assert_eq!((&running["n_gpu_layers"], &running["program"]), expected, "{key:?}");
    }
    assert!(!server.was_asked("/slots"));

    // A router for several models has no placement of its own.
    let router = Recorded::new(json!({"/props": {
        "role": "router", "model_path": "none", "default_generation_settings": {"n_ctx": 0}}}));
    let process = Process::new("llama-server", &["--port", &router.port], &[]);
    is_refused(&user, process.id(), &["a server for each model"]);
}

#[test]
fn a_server_behind_a_prefix_is_asked_there() {
    let user = User::new();
    let answers: serde_json::Map<String, Value> =
        llama_server().as_object().unwrap().iter().map(|(path, body)| (format!("/a/b{path}"), body.clone())).collect();
    let server = Recorded::new(answers.into());
    let demo = demo();
    let arguments = ["-m", &demo, "-ngl", "2", "--port", &server.port];
    let by_flag = Process::new("llama-server", &[&arguments[..], &["--api-prefix", "/a/b"]].concat(), &[]);
    let by_variable = Process::new("llama-server", &arguments, &[("LLAMA_ARG_API_PREFIX", "/a/b")]);
    for process in [by_flag, by_variable] {
        let (_, running, _) = watched(&user, process.id());
        assert_eq!((&running["program"], &running["notes"]), (&"llama-server b11434-0000000".into(), &json!([])));
    }
    assert!(server.was_asked("/a/b/slots") && !server.was_asked("/props"));
}

#[test]
fn another_server_at_its_address_is_not_taken_for_it() {
    let user = User::new();
    let mut answers = llama_server();
    answers["/props"]["model_path"] = "/another.gguf".into();
    let server = Recorded::new(answers);
    let arguments = ["-m", &demo(), "--port", &server.port, "-ngl", "2", "-c", "512"];
    let process = Process::new("llama-server", &arguments, &[]);
    let (_, running, _) = watched(&user, process.id());
    assert_eq!((&running["n_gpu_layers"], &running["program"]), (&2.into(), &"llama-server".into()));
    assert!(running["notes"].to_string().contains("another server answers"), "{running}");
}

#[test]
fn ollama_reports_how_much_is_on_gpus_and_where_its_file_is() {
    let user = User::new();
    // From docs.ollama.com, `List running models` and `Show model details`.
    let ollama = |size_vram: u64| {
        json!({
            "/api/version": {"version": "0.12.6"},
            "/api/ps": {"models": [{
                "name": "demo:latest", "model": "demo:latest", "size": 6_000_000u64,
                "digest": "a2af6cc3eb7fa8be8504abaf9b04e88f17a119ec3f04a3addf55f92841195f5a",
                "details": {"format": "gguf", "family": "llama", "quantization_level": "Q8_0"},
                "expires_at": "2026-10-17T16:47:07.93355-07:00", "size_vram": size_vram, "context_length": 4096,
            }]},
            "/api/show": {
                "modelfile": format!("# Modelfile generated by \"ollama show\"\nFROM {}\nTEMPLATE x\n", demo()),
                "parameters": "stop                           \"x\"",
            },
        })
    };
    let serves = |answers: Value| Process::ollama(&user, &Recorded::new(answers).port);
    let (cause, running, verdict) = watched(&user, serves(ollama(0)).id());
    assert_eq!(cause, "runs_slower", "{verdict}");
    assert_eq!((&running["program"], &running["n_gpu_layers"]), (&"Ollama 0.12.6".into(), &0.into()));
    let mend = verdict["findings"][0]["remedy"].as_str().unwrap();
    assert!(mend.contains("PARAMETER num_gpu") && mend.contains("num_ctx 4096"), "{mend}");

    let (cause, _, verdict) = watched(&user, serves(ollama(6_000_000)).id());
    assert_eq!(cause, Value::Null, "{verdict}");

    // Another model, or an mmproj, uses memory that cannot be told apart from the model's memory.
    let mut beside = ollama(0);
    beside["/api/ps"]["models"].as_array_mut().unwrap().push(json!({"name": "b", "size": 1}));
    beside["/api/show"]["modelfile"] = format!("FROM {0}\nFROM {0}\n", demo()).into();
    let (cause, running, _) = watched(&user, serves(beside).id());
    assert_eq!(cause, Value::Null);
    let notes = running["notes"].to_string();
    assert!(notes.contains("1 more of its models") && notes.contains("mmproj"), "{notes}");

    // No model is loaded, so nothing can be inspected.
    let idle = serves(json!({"/api/ps": {"models": []}}));
    is_refused(&user, idle.id(), &["no model is loaded now"]);
}

#[test]
fn lm_studio_reports_its_context_and_not_its_file_which_is_then_asked_for() {
    let user = User::new();
    // From lmstudio.ai/docs, `GET /api/v1/models`, and in versions before 0.4 `GET /api/v0/models`.
    let answers = [
        json!({"/api/v1/models": {"models": [
            {"type": "llm", "key": "other", "loaded_instances": []},
            {"type": "llm", "key": "autoplace/demo", "loaded_instances": [{"id": "demo", "config": {
                "context_length": 4096, "eval_batch_size": 512, "flash_attention": false,
                "offload_kv_cache_to_gpu": false}}]},
        ]}}),
        json!({"/api/v0/models": {"object": "list", "data": [
            {"id": "other", "state": "not-loaded"},
            {"id": "autoplace/demo", "state": "loaded", "loaded_context_length": 4096},
        ]}}),
    ];
    for (index, answers) in answers.into_iter().enumerate() {
        let server = Recorded::new(answers);
        let process = Process::new("lm-studio", &["--port", &server.port], &[]);
        is_refused(&user, process.id(), &["autoplace/demo", "doctor FILE"]);
        let watch = format!("--watch={}", process.id());
        let verdict = judged(&user, &[&[&*demo(), &*watch], &CARD[..]].concat());
        let model = &verdict["evidence"]["model"];
        assert_eq!(model["running"]["program"], "LM Studio");
        assert!(model["running"]["notes"].to_string().contains("does not report its layers"), "{model}");
        // If a program's share is not known, the free memory of a real card is not known either. The free memory of a
        // described card is known.
        assert_eq!(model["plan"]["context"]["n_ctx"], 4096);
        assert_eq!(model["plan"]["context"]["offload_kqv"], index == 1, "{model}");
    }
    let idle = Recorded::new(json!({"/api/v0/models": {"data": [{"id": "a", "state": "not-loaded"}]}}));
    is_refused(&user, Process::new("llmster", &["--port", &idle.port], &[]).id(), &["no model is loaded now"]);
    // Another model uses memory that cannot be told apart from the model's memory.
    let two = Recorded::new(json!({"/api/v0/models": {"data": [
        {"id": "a", "state": "loaded"}, {"id": "b", "type": "embeddings", "state": "loaded"}]}}));
    let process = Process::new("lm-studio", &["--port", &two.port], &[]);
    let verdict = judged(&user, &[&[&*demo(), &*format!("--watch={}", process.id())], &CARD[..]].concat());
    let notes = verdict["evidence"]["model"]["running"]["notes"].to_string();
    assert!(notes.contains("1 more of its models"), "{notes}");
}

#[test]
fn koboldcpp_is_known_by_its_arguments_or_its_file_of_settings() {
    let user = User::new();
    let server = Recorded::new(json!({
        "/api/extra/version": {"result": "KoboldCpp", "version": "1.101"},
        "/api/v1/model": {"result": "koboldcpp/autoplace-demo-q8_0"},
        "/api/extra/true_max_context_length": {"value": 4096},
        "/api/extra/perf": {"last_eval_speed": 12.5, "total_gens": 2, "idle": 1},
    }));
    let settings = user.path("a.kcpps");
    let demo = demo();
    std::fs::write(&settings, json!({"model_param": demo, "gpulayers": 3, "quantkv": 1}).to_string()).unwrap();
    for arguments in [
        vec!["--port", &server.port, "--gpulayers=3", "--quantkv", "1", &demo],
        vec!["--port", &server.port, "--config", settings.to_str().unwrap()],
    ] {
        let process = Process::new("koboldcpp", &arguments, &[]);
        let (cause, running, verdict) = watched(&user, process.id());
        assert_eq!(cause, "runs_slower", "{verdict}");
        assert_eq!((&running["n_gpu_layers"], &running["program"]), (&3.into(), &"KoboldCpp 1.101".into()));
        assert_eq!(running["tokens_per_second"], 12.5);
        let context = &verdict["evidence"]["model"]["plan"]["context"];
        assert_eq!((&context["type_v"], &context["n_ctx"]), (&"Q8_0".into(), &4096.into()));
        let mend = verdict["findings"][0]["remedy"].as_str().unwrap();
        assert!(mend.contains("--gpulayers") && mend.contains("--quantkv 1"), "{mend}");
    }
    let process = Process::new("koboldcpp", &["--port", &server.port, "--moecpu", "5", &demo], &[]);
    let (_, running, _) = watched(&user, process.id());
    assert!(running["notes"].to_string().contains("--moecpu also affects its placement"), "{running}");
    let process = Process::new("koboldcpp", &["--port", &server.port, "--config", "/none.kcpps"], &[]);
    is_refused(&user, process.id(), &["/none.kcpps"]);
}

#[test]
fn a_process_that_runs_no_models_is_refused_with_a_reason() {
    let user = User::new();
    user.fails(&["doctor", "--watch=http://127.0.0.1:8080"], 2, &["--watch", "http://127.0.0.1:8080"]);
    let own = std::process::id();
    is_refused(&user, own, &[&own.to_string(), "llama-server, ollama, LM Studio"]);
    is_refused(&user, Process::ollama(&user, "1").id(), &["http://127.0.0.1:1: /api/ps"]);
}

#[test]
#[ignore = "compiles llama-server: cargo xtask llama-server"]
fn a_real_llama_server_is_seen_as_it_was_started() {
    let user = User::new();
    let few = LlamaServer::new(&["-c", "2048", "-ngl", "2", "-np", "1", "--context-shift"]);
    let pid = few.process.id();
    let (cause, running, verdict) = watched(&user, pid);
    assert_eq!(cause, "runs_slower", "{verdict}");
    assert_eq!((&running["n_gpu_layers"], &running["notes"]), (&2.into(), &json!([])), "{running}");
    assert_eq!(running["tokens_per_second"], Value::Null);
    let mend = verdict["findings"][0]["remedy"].as_str().unwrap();
    assert!(mend.contains("-ngl ") && mend.contains("-c 2048"), "{mend}");
    println!("{mend}");

    // While a text is generated, the speed can be seen.
    let body = r#"{"prompt": "And", "n_predict": 100000, "ignore_eos": true, "stream": true}"#;
    let ask = ureq::post(format!("{}/completion", few.url)).content_type("application/json");
    let mut stream = ask.send(body).unwrap().into_body().into_reader();
    stream.read_exact(&mut [0; 64]).unwrap();
    let (_, running, _) = watched(&user, pid);
    assert!(running["tokens_per_second"].as_f64().is_some_and(|speed| speed > 0.0), "{running}");
    drop((stream, few));

    let all = LlamaServer::new(&["-c", "2048", "-ngl", "all"]);
    let (cause, _, verdict) = watched(&user, all.process.id());
    assert_eq!(cause, Value::Null, "{verdict}");
    let mut props = ureq::get(format!("{}/props", all.url)).call().unwrap();
    println!("{}", props.body_mut().read_to_string().unwrap());
}
