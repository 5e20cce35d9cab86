//! Numbers that are out of their range are named as they were sent.

use serde_json::Value;

use crate::errors::{COMPLETIONS, error, post, send};
use crate::support::Setup;

#[tokio::test]
async fn a_number_out_of_its_range_is_named_as_it_was_sent() {
    let app = Setup::default().app();
    for (field, sent, got) in [
        ("temperature", "100.123456789", "100.123456789"),
        ("temperature", "\"-0.123456789\"", "-0.123456789"),
        ("top_p", "1.123456789", "1.123456789"),
        ("min_p", "16777217", "16777217"),
        ("repetition_penalty", "1e39", "1e39"),
        ("frequency_penalty", "-2.123456789", "-2.123456789"),
        ("presence_penalty", "3", "3"),
        ("logit_bias", "{\"5\": 123456789}", "123456789"),
    ] {
        let body = format!("{{\"prompt\": [5], \"{field}\": {sent}}}");
        let error: Value = error(send(&app, post(COMPLETIONS, body)).await, 400).await;
        assert_eq!(error["param"], field);
        let message = error["message"].as_str().unwrap();
        assert!(message.ends_with(&format!(", got {got}")), "{message}");
    }
}
