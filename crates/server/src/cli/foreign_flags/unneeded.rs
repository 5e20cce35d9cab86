//! Flags of others that ask for what is so anyway, with the values that do. It knows no command line.

/// What follows a flag that asks for nothing.
enum Value {
    /// It has none.
    None,
    /// The number of what there is one of.
    One,
    /// How many layers are on the GPU: all or none are, so that 0 asks for something.
    Layers,
    /// Perhaps a word that switches it on.
    On,
}

const UNNEEDED: &[(&[&str], Value, &str)] = &[
    (&["--jinja"], Value::None, "chat templates are always rendered so"),
    (&["-ngl", "--gpu-layers", "--n-gpu-layers"], Value::Layers, "--device has all layers"),
    (&["-fa", "--flash-attn"], Value::On, "there is one kernel of attention for a device"),
    (&["--enable-chunked-prefill"], Value::None, "long prompts always come in chunks"),
    (&["-cb", "--cont-batching"], Value::None, "requests always share steps"),
    (
        &["-tp", "--tensor-parallel-size", "-pp", "--pipeline-parallel-size", "-dp", "--data-parallel-size"],
        Value::One,
        "a server is always one engine on one device",
    ),
    (&["--trust-remote-code", "--no-trust-remote-code"], Value::None, "no code of a checkpoint is run"),
    (&["--disable-log-requests", "--no-enable-log-requests"], Value::None, "requests are not logged"),
    (&["--enforce-eager"], Value::None, "nothing is captured or compiled while a model runs"),
    (
        &[
            "--disable-auto-tool-choice",
            "--disable-tokenizer-info-endpoint",
            "--no-trust-request-chat-template",
            "--no-allow-credentials",
        ],
        Value::None,
        "it is off unless it is asked for",
    ),
];

/// Why `flag` with the value behind its `=`, or what comes next, asks for nothing, and whether it is that next word as well.
pub fn why(flag: &str, own: Option<&str>, next: Option<&str>) -> Option<(&'static str, bool)> {
    let (_, value, why) = UNNEEDED.iter().find(|(flags, ..)| flags.contains(&flag))?;
    let given = own.or(next);
    let is_taken = match value {
        Value::None => return own.is_none().then_some((*why, false)),
        Value::One => given? == "1",
        Value::Layers => ["all", "auto"].contains(&given?) || given?.parse::<i64>().is_ok_and(|layers| layers != 0),
        Value::On => match given {
            Some("on" | "auto" | "true" | "1") => true,
            Some("off" | "false" | "0") => false,
            // Another argument: older ones have no value.
            _ => return own.is_none().then_some((*why, false)),
        },
    };
    is_taken.then_some((*why, own.is_none()))
}
