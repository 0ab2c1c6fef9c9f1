//! What a plan looks like to a person.

mod shapes;

use autoplace::machine::{Gpu, Host, Machine, gib, mib};
use autoplace::plan::{Context, Planner, Request};

use shapes::{LLAMA_1B, LLAMA_8B, LLAMA_70B, Shape};

fn machine(host: u64, free: u64) -> Machine {
    let card = Gpu::new("NVIDIA GeForce RTX 4090")
        .total(gib(24))
        .free(free);
    Machine::new(Host::new(host)).with_gpu(card)
}

fn report(shape: &Shape, machine: &Machine, request: Request) -> String {
    let profile = shape.profile();
    match Planner::new(&profile, machine).request(request).plan() {
        Ok(plan) => plan.to_string(),
        Err(error) => error.to_string(),
    }
}

#[test]
fn a_full_offload() {
    let text = report(&LLAMA_8B, &machine(gib(32), gib(22)), Request::new());
    assert_eq!(
        text,
        "\
Llama 3.1 8B Instruct · Q4_K_M · 4.6 GiB · 32 layers + output
                    weights       KV  compute  headroom      free
  RTX 4090          4.3 GiB  512 MiB  120 MiB   875 MiB  22.0 GiB   33 of 33 layers
  host              282 MiB        -   37 MiB   644 MiB  32.0 GiB
  why   all 33 layers on RTX 4090, 16.2 GiB to spare
  note  4096 tokens of context, the default; the model was trained on 131072"
    );
}

#[test]
fn a_partial_offload_says_what_the_next_layer_lacks() {
    let request = Request::new().context(Context::Tokens(8192));
    let text = report(&LLAMA_70B, &machine(gib(64), gib(22) + mib(600)), request);
    assert_eq!(
        text,
        "\
Llama 3.3 70B Instruct · Q4_K_M · 39.6 GiB · 80 layers + output
                     weights       KV  compute  headroom      free
  RTX 4090          19.9 GiB  1.3 GiB  328 MiB   940 MiB  22.6 GiB   41 of 81 layers
  host              19.7 GiB  1.3 GiB   73 MiB   856 MiB  64.0 GiB   40 layers
  why   41 of 81 layers: layer 42 needs 352 MiB more on RTX 4090"
    );
}

#[test]
fn the_host_alone() {
    let text = report(&LLAMA_1B, &Machine::new(Host::new(gib(16))), Request::new());
    assert_eq!(
        text,
        "\
Llama 3.2 1B Instruct · Q4_K_M · 763 MiB · 16 layers + output
                    weights       KV  compute  headroom      free
  host              763 MiB  128 MiB   73 MiB   212 MiB  16.0 GiB   all 17 layers
  why   no layer on a GPU: there is no usable one
  note  4096 tokens of context, the default; the model was trained on 131072"
    );
}

#[test]
fn a_card_that_the_build_cannot_drive_is_named() {
    let card = serde_json::to_value(Gpu::new("NVIDIA GeForce RTX 4090").total(gib(24))).unwrap();
    let unused = |why| serde_json::json!({ "gpu": card, "reason": why });
    let mut machine = Machine::new(Host::new(gib(16)));
    for reason in [
        serde_json::json!({ "why": "no_backend" }),
        serde_json::json!({ "why": "same_as", "device": "CUDA0" }),
    ] {
        machine
            .unused_gpus
            .push(serde_json::from_value(unused(reason)).unwrap());
    }
    let text = report(&LLAMA_1B, &machine, Request::new());
    assert!(
        text.contains("RTX 4090 is not used: this build has no backend for it"),
        "{text}"
    );
    assert!(!text.contains("same hardware"), "{text}");
}

#[test]
fn a_gpu_without_room_for_the_output_layer() {
    let text = report(&LLAMA_8B, &machine(gib(32), gib(1)), Request::new());
    assert_eq!(
        text,
        "\
Llama 3.1 8B Instruct · Q4_K_M · 4.6 GiB · 32 layers + output
                    weights       KV  compute  headroom      free
  host              4.6 GiB  512 MiB  129 MiB   389 MiB  32.0 GiB   all 33 layers
  why   no layer on a GPU: the output layer alone needs 241 MiB more on RTX 4090
  note  4096 tokens of context, the default; the model was trained on 131072"
    );
}

#[test]
fn nothing_fits() {
    let text = report(&LLAMA_70B, &machine(gib(16), gib(20)), Request::new());
    assert_eq!(
        text,
        "Llama 3.3 70B Instruct does not fit with 51 of 81 layers on a GPU and a context of 4096: \
         6.6 GiB missing on RTX 4090: 25.7 GiB needed, 19.1 GiB of 20.0 GiB free usable; \
         enough on host: 15.5 GiB needed, 15.5 GiB of 16.0 GiB free usable"
    );
}
