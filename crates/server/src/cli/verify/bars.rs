//! How far the examination is, on the terminal.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use vllm_apple_verify::Progress;

/// The bar of a section.
pub struct Bars(ProgressBar);

impl Bars {
    /// Section `at` of `total`, counted from 0.
    pub fn new(at: usize, total: usize, title: &str) -> Self {
        let template = "{prefix} [{bar:30}] {elapsed}, {eta} left: {msg}";
        let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
        let bar = ProgressBar::new(1).with_style(style).with_prefix(format!("{}/{total} {title}", at + 1));
        // The clock goes on while a part takes long.
        bar.enable_steady_tick(Duration::from_secs(1));
        Self(bar)
    }
}

impl Progress for Bars {
    fn show(&mut self, done: u64, total: u64, part: &str) {
        self.0.set_length(total);
        self.0.set_position(done);
        self.0.set_message(part.to_owned());
    }
}

impl Drop for Bars {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
