//! What a template does with a few messages: it says nothing of itself. Knows what is asked of it, no Jinja.

use serde_json::{Value, json};

use super::{ChatInput, ChatTemplate, ContentFormat, TextError};
use crate::text::system_messages::Leads;

impl ChatTemplate {
    /// Finds out how it wants content, and what it has no place for.
    pub(super) fn find_out(&mut self) -> Result<(), TextError> {
        self.content_format = self.detect_content_format()?;
        let system = self.leads("system")?;
        self.order.leads = Leads { system, developer: system && self.leads("developer")? };
        self.describes = std::mem::take(&mut self.describes) && self.needs_description()?;
        if self.is_harmony {
            self.joins_said = self.refuses_said()?;
            self.order.single_calls = self.loses_calls()?;
        }
        Ok(())
    }

    /// A template takes parts if it renders all of a list of text parts. It may lose or refuse the text itself, or put it otherwise, but one that
    /// exceeds a limit on a single short message is good for nothing.
    fn detect_content_format(&self) -> Result<ContentFormat, TextError> {
        const PROBE: &str = "a probe of the content format";
        const MORE: &str = "and one of a second part";
        let render = |content: Value| self.rendered(&[json!({"role": "user", "content": content})]);
        let part = |text: &str| json!({"type": "text", "text": text});
        let as_text = render(PROBE.into())?;
        let as_part = render(json!([part(PROBE)]))?;
        let as_parts = render(json!([part(PROBE), part(MORE)]))?;
        // What writes them as Python does shows the names of their fields.
        let shows = |text: &Option<String>, probe: &str| {
            text.as_ref().is_some_and(|text| text.contains(probe) && !text.contains("'type'"))
        };
        let takes_parts = shows(&as_part, PROBE) && shows(&as_parts, PROBE) && shows(&as_parts, MORE);
        Ok(match (takes_parts, shows(&as_text, PROBE)) {
            (true, false) => ContentFormat::PartsAlone,
            (true, true) if as_text == as_part => ContentFormat::Parts,
            _ => ContentFormat::String,
        })
    }

    /// Whether it takes messages of a role at the beginning only: else it renders one between those of users. Most that do not refuse it, some
    /// lose it.
    fn leads(&self, role: &str) -> Result<bool, TextError> {
        const PROBE: &str = "a probe of later system messages";
        let messages = [("system", "a"), ("user", "b"), (role, PROBE), ("user", "c")];
        let messages = messages.map(|(role, content)| self.adapt(json!({"role": role, "content": content})));
        Ok(!self.rendered(&messages)?.is_some_and(|text| text.contains(PROBE)))
    }

    /// Whether it refuses an assistant's text beside its thoughts, where it calls.
    fn refuses_said(&self) -> Result<bool, TextError> {
        let said = json!({"role": "assistant", "content": "a", "thinking": "b", "tool_calls": [call("c")]});
        Ok(self.rendered(&[json!({"role": "user", "content": "a"}), said])?.is_none())
    }

    /// Whether it shows the first call of a message alone.
    fn loses_calls(&self) -> Result<bool, TextError> {
        const PROBE: &str = "a_probe_of_several_calls";
        let calls = json!({"role": "assistant", "content": "", "tool_calls": [call("a"), call(PROBE)]});
        let rendered = self.rendered(&[json!({"role": "user", "content": "a"}), calls])?;
        Ok(rendered.is_some_and(|text| !text.contains(PROBE)))
    }

    /// Whether it refuses a tool for having no description.
    fn needs_description(&self) -> Result<bool, TextError> {
        let takes = |function: Value| {
            let messages = [self.adapt(json!({"role": "user", "content": "a"}))];
            let tools = json!([{"function": function}]);
            let tools = self.adapt_tools(tools);
            let input = ChatInput { tools: tools.as_array().map(Vec::as_slice), ..ChatInput::new(&messages) };
            self.rendered_with(&input).map(|text| text.is_some())
        };
        Ok(!takes(json!({"name": "a"}))? && takes(json!({"name": "a", "description": ""}))?)
    }

    /// The text of a few messages. `None`: it refuses them.
    fn rendered(&self, messages: &[Value]) -> Result<Option<String>, TextError> {
        self.rendered_with(&ChatInput::new(messages))
    }

    fn rendered_with(&self, input: &ChatInput) -> Result<Option<String>, TextError> {
        match self.render(input) {
            Err(limit @ TextError::TemplateLimit(_)) => Err(limit),
            rendered => Ok(rendered.ok()),
        }
    }
}

fn call(name: &str) -> Value {
    json!({"id": name, "type": "function", "function": {"name": name, "arguments": {}}})
}
