//! What a checkpoint's configuration files make of its tokenizer: special tokens, and what is put around a text.

use std::time::Duration;

use serde_json::{Value, json};
use vllm_apple::text::{ChatTemplate, TextError, Tokenizer};

use crate::support::{byte_level, tokenizer_of};

/// `<s>`, `</s>` and `<x>` are ordinary tokens of the vocabulary, with `a` and `b`.
fn with_config(config: Value) -> Tokenizer {
    let json = byte_level(&["a", "b", "<s>", "</s>", "<x>", "<", "s", "/", "x", ">"]);
    tokenizer_of(&[("tokenizer.json", &json), ("tokenizer_config.json", &config)]).unwrap()
}

/// An added token in tokenizer.json, and what `added_tokens_decoder` and the named tokens say about it.
fn is_special(in_file: bool, in_config: Option<bool>, is_named: bool) -> bool {
    let mut json = byte_level(&["a", "b"]);
    json["added_tokens"] = json!([{
        "id": 2, "content": "<x>", "special": in_file, "lstrip": false, "rstrip": false, "single_word": false, "normalized": false,
    }]);
    let mut config = json!({});
    if let Some(special) = in_config {
        config["added_tokens_decoder"] = json!({"2": {"content": "<x>", "special": special}});
    }
    if is_named {
        config["pad_token"] = json!("<x>");
    }
    let tokenizer = tokenizer_of(&[("tokenizer.json", &json), ("tokenizer_config.json", &config)]).unwrap();
    assert_eq!(tokenizer.encode("a<x>b", false).unwrap(), [0, 2, 1], "whatever it is, it is one token");
    assert_eq!(tokenizer.vocab_size(), 3);
    tokenizer.is_special(2)
}

#[test]
fn a_token_that_is_special_anywhere_is_special() {
    assert!(!is_special(false, None, false));
    assert!(!is_special(false, Some(false), false));
    assert!(is_special(true, Some(false), false));
    assert!(is_special(true, Some(true), false));
    assert!(is_special(false, Some(true), false));
    assert!(is_special(false, Some(false), true));
    assert!(is_special(false, None, true));
}

#[test]
fn a_token_that_only_the_configuration_knows_is_added() {
    let tokens = json!({"11": {"content": "<new>", "special": false}, "10": {"content": "<old>", "special": true}});
    let tokenizer = with_config(json!({"added_tokens_decoder": tokens, "sep_token": {"content": "<sep>"}}));
    let (old, new, sep) =
        (tokenizer.token_to_id("<old>"), tokenizer.token_to_id("<new>"), tokenizer.token_to_id("<sep>"));
    assert_eq!((old, new, sep), (Some(10), Some(11), Some(12)), "in the order of their ids, then the named ones");
    assert_eq!([10, 11, 12].map(|id| tokenizer.is_special(id)), [true, false, true]);
    assert_eq!(tokenizer.encode("a<old><new>b", false).unwrap(), [0, 10, 11, 1]);
}

/// A token's flags come from the configuration where it alone knows the token.
#[test]
fn a_new_tokens_flags_are_those_of_the_configuration() {
    let encode = |flag: &str, text: &str| {
        let json = byte_level(&["a", "Ġ"]);
        let mut token = json!({"content": "<n>", "special": true});
        token[flag] = json!(true);
        let config = json!({"added_tokens_decoder": {"2": token}});
        let mut json = json;
        json["pre_tokenizer"] =
            json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
        let tokenizer = tokenizer_of(&[("tokenizer.json", &json), ("tokenizer_config.json", &config)]).unwrap();
        tokenizer.encode(text, false).unwrap()
    };
    assert_eq!(encode("special", "a <n> a"), [0, 1, 2, 1, 0]);
    assert_eq!(encode("lstrip", "a <n> a"), [0, 2, 1, 0]);
    assert_eq!(encode("rstrip", "a <n> a"), [0, 1, 2, 0]);
}

/// As in transformers from version 5 on. Qwen's files say that no begin token is added, and mean the end token of its embedders to stay.
#[test]
fn what_stands_around_a_text_is_the_business_of_tokenizer_json() {
    let plain = byte_level(&["a", "<s>"]);
    let mut around = plain.clone();
    around["post_processor"] = json!({
        "type": "TemplateProcessing",
        "single": [{"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "<s>", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
    });
    let flags = [json!(null), json!(false), json!(true)];
    for (bos, eos) in flags.iter().flat_map(|bos| flags.iter().map(move |eos| (bos, eos))) {
        let config = json!({"bos_token": "<s>", "eos_token": "<s>", "add_bos_token": bos, "add_eos_token": eos});
        for (json, with_special_tokens) in [(&plain, &[0][..]), (&around, &[0, 1])] {
            let tokenizer = tokenizer_of(&[("tokenizer.json", json), ("tokenizer_config.json", &config)]).unwrap();
            assert_eq!(tokenizer.encode("a", true).unwrap(), with_special_tokens, "{config}");
            assert_eq!(tokenizer.encode("a", false).unwrap(), [0], "{config}");
        }
    }
}

/// What the file truncates or pads to is for training.
#[test]
fn truncation_and_padding_of_the_file_are_off() {
    let mut json = byte_level(&["a"]);
    json["truncation"] = json!({"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0});
    json["padding"] = json!({
        "strategy": {"Fixed": 20}, "direction": "Right", "pad_to_multiple_of": null, "pad_id": 0, "pad_type_id": 0, "pad_token": "a",
    });
    let tokenizer = tokenizer_of(&[("tokenizer.json", &json)]).unwrap();
    assert_eq!(tokenizer.encode(&"a".repeat(10), true).unwrap(), [0; 10]);
}

#[test]
fn lists_and_tables_of_further_special_tokens_are_read() {
    let named =
        json!({"additional_special_tokens": ["<x>", {"content": "<y>"}], "extra_special_tokens": {"image": "<z>"}});
    let tokenizer = with_config(named);
    let ids = ["<x>", "<y>", "<z>"].map(|token| tokenizer.token_to_id(token).unwrap());
    assert!(ids.iter().all(|&id| tokenizer.is_special(id)), "{ids:?}");
    assert_eq!(tokenizer.special_tokens().iter().collect::<Vec<_>>(), [("image", "<z>")]);
    assert_eq!(tokenizer.encode("<x>a", false).unwrap(), [4, 0]);
}

/// Each of them in constant time: some checkpoints name thousands.
#[test]
fn many_tokens_are_added_in_order() {
    const MANY: u32 = 100_000;
    let decoder: serde_json::Map<_, _> = (0..MANY)
        .map(|i| ((20 + i).to_string(), json!({"content": format!("<y{i}>"), "special": i % 2 == 0})))
        .collect();
    // Every fourth is named a second time.
    let list: Vec<_> = (0..MANY).step_by(4).map(|i| format!("<y{}>", i + 1)).collect();
    let more: Vec<_> = (0..MANY).map(|i| format!("<z{i}>")).collect();
    let config = json!({
        "added_tokens_decoder": decoder, "additional_special_tokens": list, "extra_special_tokens": more,
    });
    // A second, or hours where each token costs the time of all before it.
    let (send, receive) = std::sync::mpsc::channel();
    std::thread::spawn(move || drop(send.send(with_config(config))));
    let tokenizer = receive.recv_timeout(Duration::from_secs(30)).expect("the tokens are added in time");
    let first = tokenizer.token_to_id("<y0>").unwrap();
    for i in [0, 1, 2, 3, 5, MANY - 1] {
        let (y, z) = (first + i, first + MANY + i);
        assert_eq!(tokenizer.encode(&format!("a<y{i}><z{i}>"), false).unwrap(), [0, y, z]);
        assert_eq!((tokenizer.is_special(y), tokenizer.is_special(z)), (i % 2 == 0 || i % 4 == 1, true), "{i}");
    }
}

#[test]
fn values_of_another_type_are_named() {
    let json = byte_level(&["a", "b"]);
    for (config, named) in [
        (json!({"eos_token": 5}), "eos_token must be a text"),
        (json!({"pad_token": {"content": 5}}), "pad_token must be a text"),
        (json!({"bos_token": {"content": "<b>", "lstrip": "no"}}), "bos_token.lstrip must be true or false"),
        (json!({"added_tokens_decoder": [1, 2]}), "added_tokens_decoder must be an object"),
        (json!({"added_tokens_decoder": {"x": "<y>"}}), "added_tokens_decoder has the id \"x\""),
        (json!({"added_tokens_decoder": {"7": 7}}), "added_tokens_decoder.7 must be a text"),
        (json!({"additional_special_tokens": ["<x>", 1]}), "additional_special_tokens[1] must be a text"),
        (json!({"extra_special_tokens": 3}), "extra_special_tokens must be a list"),
    ] {
        let error = tokenizer_of(&[("tokenizer.json", &json), ("tokenizer_config.json", &config)]).unwrap_err();
        assert!(error.to_string().contains(named) && error.to_string().contains("tokenizer_config.json"), "{error}");
    }
    let nothing = json!({"add_bos_token": null, "eos_token": null, "pad_token": "", "added_tokens_decoder": null});
    assert_eq!(with_config(nothing).special_tokens().iter().count(), 0);
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("tokenizer_config.json"), json!({"chat_template": 5}).to_string()).unwrap();
    let error = ChatTemplate::from_dir(dir.path(), &with_config(json!({})), None).unwrap_err().to_string();
    assert!(error.contains("chat_template must be a text"), "{error}");
}

#[test]
fn a_configuration_that_cannot_be_read_is_an_error_that_says_why() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("tokenizer.json"), byte_level(&["a"]).to_string()).unwrap();
    let path = dir.path().join("tokenizer_config.json");
    for (json, found) in
        [("[]", "an array"), ("null", "null"), ("true", "a boolean"), ("1", "a number"), ("\"\"", "a string")]
    {
        std::fs::write(&path, json).unwrap();
        let error = Tokenizer::from_dir(dir.path()).unwrap_err().to_string();
        assert!(error.contains("tokenizer_config.json") && error.contains(&format!("found {found}")), "{error}");
    }
    std::fs::remove_file(&path).unwrap();
    std::fs::create_dir(&path).unwrap();
    assert!(matches!(Tokenizer::from_dir(dir.path()), Err(TextError::Read { path: named, .. }) if named == path));
}
